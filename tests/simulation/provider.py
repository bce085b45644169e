"""The provider of a simulated process: the real driver runs the real programs, in virtual time.

Like the kit's providers, it has one time limit for the whole operation, and undoes in the background.
Each operation is recorded for the checker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from shedlock_py import Lease, LockRecord, LockRequest, ProviderError
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.providers.kit import StorePrograms, TimedOut, Undo, carry_out, locking
from shedlock_py.providers.kit.options import DEFAULT_TIMEOUT
from shedlock_py.runtime.program import Program, drive_async
from tests.faults.history import NEVER, Operation
from tests.faults.recording import CLAIMS, OUTCOMES
from tests.simulation.log import Recorder
from tests.simulation.network import Network
from tests.simulation.world import Cancelled, Process, Signal, Task

T = TypeVar("T")


class SimulatedProvider:
    """The operations of one process. Operations of workers are recorded."""

    def __init__(
        self,
        process: Process,
        programs: StorePrograms,
        network: Network,
        recorder: Recorder | None,
        is_calm: Callable[[int, float, float], bool],
    ) -> None:
        """:param programs: with the clock and the claim ids of ``process``.
        :param is_calm: whether no fault meets a node between two moments.
        """
        self.is_calm = is_calm
        self.programs = programs
        self._process = process
        self._network = network
        self._recorder = recorder
        self._log = process.world.log

    async def acquire(self, request: LockRequest, *, keep_alive: bool = False) -> Lease | None:
        lease: Lease | None = await self._claim("acquire", request, locking.acquire(self.programs, request), keep_alive)
        return lease

    async def acquire_shielded(self, request: LockRequest, *, keep_alive: bool = False) -> Lease | None:
        """Acquire like the kit's async provider: a cancellation does not interrupt the operation.

        If the operation then gets a lease, the lease is undone.
        """
        process, operation = self._process, self._of_request("acquire", request, keep_alive)
        self._network.claims(process)
        number = self._begin(operation)
        acquiring = process.spawn(self._run(locking.acquire(self.programs, request), number))
        try:
            lease: Lease | None = await self._noted(number, operation, _result_of(acquiring), None)
        except Cancelled:
            process.spawn(self._undo_abandoned(acquiring, number))
            raise
        return lease

    async def _undo_abandoned(self, acquiring: Task, number: int) -> None:
        try:
            lease = await _result_of(acquiring)
            if lease is not None:
                self._log.counts["abandoned and undone"] += 1
                await self._run(locking.undo(self.programs, lease), -number)
        except ProviderError:
            pass

    async def take_over(self, request: LockRequest, expected: LockRecord | None = None) -> Lease:
        program = locking.take_over(self.programs, request, expected)
        lease: Lease = await self._claim("take_over", request, program, False)
        return lease

    async def recover(self, request: LockRequest, expected: LockRecord) -> Lease | None:
        program = locking.recover(self.programs, request, expected)
        lease: Lease | None = await self._claim("recover", request, program, False)
        return lease

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        seconds = parse_duration(lock_at_most_for).total_seconds()
        operation = self._of_lease("extend", lease, seconds)
        program = locking.extend(self.programs, lease, lock_at_most_for)
        reply: Lease | None = await self._recorded(operation, program, lease)
        return reply

    async def release(self, lease: Lease) -> bool:
        program = locking.release(self.programs, lease)
        is_done: bool = await self._recorded(self._of_lease("release", lease, 0.0), program, lease)
        return is_done

    async def undo(self, lease: Lease) -> bool:
        """Undo the lease of a task that raised. It is recorded as a release."""
        program = locking.undo(self.programs, lease)
        is_done: bool = await self._recorded(self._of_lease("release", lease, 0.0), program, lease)
        return is_done

    async def record(self, name: str) -> LockRecord | None:
        return await self._run(carry_out(self.programs, "record", name, self.programs.record(name)))

    async def force_release(self, name: str, expected: LockRecord | None = None) -> bool:
        program = self.programs.force_release(name, expected)
        process = self._process
        operation = Operation(process.name, "force_release", name, process.world.now)
        is_done: bool = await self._recorded(operation, program, None)
        return is_done

    async def prune(self, unused_for: Duration, prefix: str = "") -> int:
        program = self.programs.prune(parse_duration(unused_for, zero=True), prefix)
        process = self._process
        operation = Operation(process.name, "prune", "", process.world.now)
        deleted: int = await self._recorded(operation, carry_out(self.programs, "prune", None, program), None)
        return deleted

    # Execution

    async def _run(self, program: Program[Any, Any, T], number: int = 0) -> T:
        """:param number: the recorded operation that the program belongs to; negative: the operation that it undoes."""
        clock, network, process = self._process.clock, self._network, self._process
        timeout = self.programs.timeout or DEFAULT_TIMEOUT.total_seconds()
        until = clock() + timeout

        async def execute(command: Any) -> Any:
            seconds = max(0.0, until - clock())
            if isinstance(command, Undo):
                return await self._undo_in_background(command, seconds, number)
            if seconds == 0:
                raise TimedOut("its earlier requests", sent=False)
            return await network.request(process, command, seconds, number)

        return await drive_async(program, execute)

    async def _undo_in_background(self, command: Undo, seconds: float, number: int) -> None:
        """Undo. The caller waits only for the time limit of its own operation."""
        self._log.counts["undone in the background"] += 1
        undo = self._process.spawn(self._run(command.program, -number))
        await self._process.first(undo.ended, seconds)

    # The record

    def _of_lease(self, kind: str, lease: Lease, at_most: float) -> Operation:
        process = self._process
        return Operation(
            process.name, kind, lease.name, process.world.now, claim=lease.claim_id, token=lease.fencing_token,
            at_most=at_most, trusted_before=self._trust(lease),
        )  # fmt: skip

    def _trust(self, lease: Lease | None) -> float:
        return NEVER if lease is None else self._process.to_world(lease.trusted_until)

    async def _claim(self, kind: str, request: LockRequest, program: Program[Any, Any, Any], keep_alive: bool) -> Any:
        self._network.claims(self._process)
        return await self._recorded(self._of_request(kind, request, keep_alive), program, None)

    def _of_request(self, kind: str, request: LockRequest, keep_alive: bool) -> Operation:
        process = self._process
        return Operation(
            process.name, kind, request.name, process.world.now,
            at_most=request.lock_at_most_for.total_seconds(), at_least=request.lock_at_least_for.total_seconds(),
            keep_alive=keep_alive, fire_time=request.fire_time.timestamp() if request.fire_time else None,
        )  # fmt: skip

    async def _recorded(self, operation: Operation, program: Program[Any, Any, Any], lease: Lease | None) -> Any:
        number = self._begin(operation)
        return await self._noted(number, operation, self._run(program, number), lease)

    def _begin(self, operation: Operation) -> int:
        self._log.add(operation.started, operation.worker, "{} {} …", operation.kind, operation.name)
        return 0 if self._recorder is None else self._recorder.begin(operation)

    def _undone_by(self, operation: Operation, outcome: str) -> float:
        now = self._process.world.now
        has_failed = operation.kind == "acquire" and outcome in ("error", "cancelled")
        is_calm = has_failed and self.is_calm(self._process.number, operation.started, now + 2 * UNDO_SECONDS)
        return now + UNDO_SECONDS if is_calm else float("inf")

    async def _noted(self, number: int, operation: Operation, carried_out: Awaitable[Any], lease: Lease | None) -> Any:
        world, has_died = self._process.world, False
        kind, name = operation.kind, operation.name
        outcome, error = "cancelled", ""
        try:
            reply = await carried_out
            outcome = OUTCOMES[kind][not reply]
            if kind in CLAIMS:
                lease = reply
            return reply
        except GeneratorExit:
            has_died = True
            raise
        except ProviderError as failure:
            outcome, error = "error", str(failure.__cause__ or failure)
            raise
        finally:
            if not has_died:
                if self._recorder is not None:
                    undone_by = self._undone_by(operation, outcome)
                    self._recorder.end(number, world.now, outcome, lease, self._trust(lease), error, undone_by)
                self._log.counts[f"{kind} {outcome}"] += 1
                token = "" if lease is None else lease.fencing_token
                self._log.add(world.now, self._process.name, "{} {}: {} {} {}", kind, name, outcome, token, error)


UNDO_SECONDS = 0.1
"""Longest time of the undo of an acquire when no fault happens."""


async def _result_of(task: Task) -> Any:
    """Return or raise the result of ``task``. The task goes on when this wait is interrupted."""
    ended = task.ended
    if not ended.is_done:
        ended.also = waiting = Signal()
        await waiting
    return await ended
