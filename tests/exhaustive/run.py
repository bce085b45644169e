"""The programs of one acquisition, driven step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple

from shedlock_py import Lease, LockRequest, ProviderError
from shedlock_py.model.lease import Claim
from shedlock_py.model.record import LockRecord
from shedlock_py.providers.kit import StorePrograms, TimedOut, Undo, carry_out, locking
from shedlock_py.runtime.program import Program
from tests.exhaustive.fingerprint import ClaimIds
from tests.exhaustive.times import NOW, STEP, STORE_NOW_US, TICK, HolderClock
from tests.simulation.stores.times import EPOCH

LOCK = "job"
CLAIMS = ("acquire", "take over", "recover")
FIRE_TIME = EPOCH + timedelta(microseconds=STORE_NOW_US)
LATER = FIRE_TIME + timedelta(microseconds=1)


class Event(NamedTuple):
    """An event of a claimant. ``what``: "begins", "receives", "loses the connection of", "gives up"."""

    what: str
    operation: int
    """The number of the operation."""
    kind: str = ""
    """For an operation that begins: "acquire", "take over", "recover", "extend" or "release"."""
    reply: int = -1
    """The number of a received reply."""
    age: int = 0
    """How many ticks ago."""


@dataclass(frozen=True)
class Plan:
    """The plan of a claimant, in ticks."""

    at_most: int
    at_least: int = 0
    by_force: bool = False
    has_fire_time: bool = False
    """Claimants with a fire time share it, or have the later fire time. At most one claimant may run."""
    is_later: bool = False
    """It has the later fire time."""
    recovers: bool = False
    """It reads the record, and recovers the run of the fire time."""
    extensions: tuple[int, ...] = ()
    retries: bool = False
    """Whether the connection of an operation can break, so that its program sends the command again."""
    most_sent: int = 6
    """The most commands of a take-over, two or three in each round. Then the search lets it send no more."""


@dataclass
class _Operation:
    kind: str
    program: Any
    command: Any
    is_repeated: bool = False
    sent: int = 1
    before: int = 0
    may_be_granted: bool = False
    """A command that can grant the lock was sent."""


def recovery(programs: StorePrograms, request: LockRequest) -> Program[Any, Any, Lease | None]:
    """Recover the run in the record, if it was not ended. The clock of this replica is far ahead."""
    record = yield from carry_out(programs, "record", LOCK, programs.record(LOCK))
    if record is None or record.is_released is not False or record.last_fire_time != request.fire_time:
        return None
    return (yield from locking.recover(programs, request, replace(record, read_at=record.lock_until)))


class Spy:
    """Notes the record that a take-over or a recovery replaces."""

    def __init__(self, programs: StorePrograms) -> None:
        self.programs = programs
        self.before = 0
        self._claim = programs.claim
        programs.claim = self.claim  # type: ignore[method-assign]  # of this object only

    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> Program[Any, Any, int | None]:
        self.before = 0 if before is None else before.fencing_token or 0
        return self._claim(claim, before=before, force=force)


class Run:
    """The programs of a claimant, after its events so far."""

    def __init__(self, name: str, plan: Plan, spy: Spy, clock: HolderClock, replies: list[Any]) -> None:
        self._name, self._plan, self._spy, self._clock, self._replies = name, plan, spy, clock, replies
        self._programs = spy.programs
        self.operations: dict[int, _Operation] = {}
        """Operations that wait for a reply."""
        self.lease: Lease | None = None
        self.begun = 0
        self.extended = 0
        self.is_over = False
        """It got no lease, or has released it."""
        self.commands: list[tuple[int, str, Any, bool, int]] = []
        """Commands of the last event: as :class:`Sent`, but with the command itself."""
        self.is_skip = False
        self.broken = ""

    def do(self, event: Event) -> None:
        self.commands = []
        if event.what == "begins":
            self.begun += 1
        self._clock.now = NOW - event.age * TICK + self.begun * STEP
        self._programs.new_claim_id = ClaimIds(self._name)
        if event.what == "begins":
            self._begin(event.operation, event.kind)
            return
        operation = self.operations[event.operation]
        match event.what:
            case "receives":
                self._step(event.operation, operation, lambda: operation.program.send(self._replies[event.reply]))
            case "loses the connection of":
                operation.is_repeated = True
                error: Exception = OSError("the connection broke")
                self._step(event.operation, operation, lambda: operation.program.throw(error), has_failed=True)
            case "gives up":
                error = TimedOut("a reply", sent=True)
                self._step(event.operation, operation, lambda: operation.program.throw(error), has_failed=True)

    def _begin(self, number: int, kind: str) -> None:
        plan, programs, lease = self._plan, self._programs, self.lease
        fire_time = (LATER if plan.is_later else FIRE_TIME) if plan.has_fire_time else None
        request = LockRequest(LOCK, plan.at_most * TICK, plan.at_least * TICK, f"holder-{self._name}", fire_time)
        match kind:
            case "acquire":
                program: Any = locking.acquire(programs, request)
            case "take over":
                program = locking.take_over(programs, request)
            case "recover":
                program = recovery(programs, request)
            case "extend":
                assert lease is not None
                program = locking.extend(programs, lease, timedelta(seconds=plan.extensions[self.extended] * TICK))
                self.extended += 1
            case _:
                assert lease is not None
                program = locking.release(programs, lease)
                self.is_over = True
        operation = self.operations[number] = _Operation(kind, program, None)
        self._step(number, operation, lambda: next(program))

    def _step(self, number: int, operation: _Operation, go: Callable[[], Any], *, has_failed: bool = False) -> None:
        try:
            command = go()
            while isinstance(command, Undo):
                # Carried out in the background, whether the operation goes on or not: so it is under way for any time.
                self.commands.append((number, "undo", next(command.program), False, 0))
                command = operation.program.send(None)
        except StopIteration as stop:
            del self.operations[number]
            self._ended(operation.kind, stop.value, has_failed=has_failed)
        except ProviderError as error:
            del self.operations[number]
            self._failed(operation, error, has_failed=has_failed)
        else:
            operation.may_be_granted = operation.may_be_granted or getattr(command, "can_grant", True)
            operation.sent += command is not operation.command
            operation.command = command
            if operation.kind == "take over" or (operation.kind == "recover" and operation.may_be_granted):
                operation.before = self._spy.before
            self.commands.append((number, operation.kind, command, True, operation.before))

    def _ended(self, kind: str, result: Any, *, has_failed: bool) -> None:
        if has_failed:
            self.broken = f"I5: {kind} returned {result!r} although the store did not reply"
        if kind in CLAIMS:
            self.lease, self.is_skip, self.is_over = result, result is None, result is None

    def _failed(self, operation: _Operation, error: ProviderError, *, has_failed: bool) -> None:
        if not has_failed:
            self.broken = f"I5: the store replied, and {operation.kind} failed: {error}"
        if operation.kind in CLAIMS:
            self.is_over = True
        is_undone = any(kind == "undo" for _, kind, *_ in self.commands)
        if operation.kind == "acquire" and operation.may_be_granted and not is_undone:
            self.broken = self.broken or "I12: the acquire may be granted, and nothing undoes it"

    def trusted_ticks(self, most: int) -> int:
        """For how many ticks from now the lease is trusted."""
        if self.lease is None:
            return 0
        for ticks in range(most):
            self._clock.now = NOW + ticks * TICK + (self.begun + 1) * STEP
            if not self.lease.is_trusted():
                return ticks
        return most
