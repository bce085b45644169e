"""Pauses a lock. An operator holds the lock until a time, so every store can do it."""

from __future__ import annotations

from typing import Any

from shedlock_py.model.durations import LONGEST, Duration, parse_duration
from shedlock_py.model.lease import Claim, Lease
from shedlock_py.model.record import LONGEST_OPERATOR, LockRecord, Pause
from shedlock_py.model.request import LockRequest, default_holder, request_for_operator
from shedlock_py.providers.kit import locking
from shedlock_py.providers.kit.failures import kept_changing, refused, require_same_name
from shedlock_py.providers.kit.operation import Operation, carry_out
from shedlock_py.providers.kit.store_programs import StorePrograms
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.program import Program

RETRY_SECONDS = 1.0
"""Time between two attempts of a pause that waits for a running job."""


def default_operator() -> str:
    """Return ``user@host`` of this process."""
    import getpass  # late: few programs pause a lock
    import socket

    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):  # the user id of a container may have no name
        return default_holder()[:LONGEST_OPERATOR]
    return f"{user}@{socket.gethostname()}"[:LONGEST_OPERATOR]


class Pausing:
    """One call of ``pause``: its request, and its deadline.

    :param expected: the record of the pause to replace. Any other pause stays.
    :ivar granted: the lease, if this call has acquired a free lock. None if it has replaced a pause.
    """

    def __init__(
        self,
        programs: StorePrograms,
        name: str,
        for_: Duration,
        reason: str,
        wait: Duration | None,
        by: str | None,
        expected: LockRecord | None = None,
    ) -> None:
        require_same_name(name, expected)
        pause = Pause.validated(default_operator() if by is None else by, reason)
        self._request = request_for_operator(name, parse_duration(for_, "for_"), pause.holder)
        waits_for = parse_duration(0 if wait is None else wait, "wait", zero=True)
        self._programs = programs
        self._expected = expected
        self._gives_up_at = monotonic() + waits_for.total_seconds()
        self._is_done = False
        self.granted: Lease | None = None

    def attempt(self) -> Program[Any, Any, LockRecord]:
        """Acquire the lock if it is free, or replace the expected pause. Return the record afterwards.

        :raises ProviderError: another pause holds the lock.
        """
        programs, name = self._programs, self._request.name
        operation = Operation(programs, "pause", name)
        for _ in range(locking.MOST_TAKE_OVERS):
            before, record = yield from operation.carry_out(locking.read_twice(programs, self._request))
            is_paused = record is not None and record.is_paused
            if record is not None and record.is_held and not is_paused:
                return record
            if record is not None and is_paused:
                self._check_replaced(record)
            claim = Claim(self._request, programs.clock, programs.new_claim_id)
            lease = yield from locking.claimed(programs, operation, claim, before, force=is_paused)
            if lease is not None:
                self.granted = None if is_paused else lease
                record = yield from self._read_back(operation, claim)
                if record is not None:
                    self._is_done = True
                    return record
        raise kept_changing("pause", name)

    def _check_replaced(self, found: LockRecord) -> None:
        if self._expected is None or self._expected.acquisition != found.acquisition:
            raise refused(
                "pause",
                found.name,
                f"it is {found.holder} until {found.lock_until}",
                hint="to replace that pause, pass its record as expected=",
            )

    def _read_back(self, operation: Operation, claim: Claim) -> Program[Any, Any, LockRecord | None]:
        """Return the record after ``claim`` was granted. If reading fails, undo a new pause."""
        try:
            return (yield from operation.carry_out(self._programs.record(claim.request.name)))
        except GeneratorExit:
            raise
        except BaseException:
            if self.granted is not None:
                yield locking.undo_of(self._programs, claim)
            raise

    def seconds_until_next(self) -> float | None:
        """Return the seconds until the next attempt. None if the lock is paused, or the time to wait is over."""
        left = self._gives_up_at - monotonic()
        return None if self._is_done or left <= 0 else min(RETRY_SECONDS, left)


def resume(programs: StorePrograms, name: str, expected: LockRecord | None = None) -> Program[Any, Any, bool]:
    """Release exactly the pause in the record. Return False if ``name`` is not paused, or no longer paused.

    :param expected: the record that the operator saw. Without it, the program reads the record.
    """
    require_same_name(name, expected)
    record = expected or (yield from carry_out(programs, "resume", name, programs.record(name)))
    if record is None or not record.is_paused:
        return False
    lease = Lease(LockRequest(name, LONGEST), "", record.fencing_token, programs.clock, programs.clock())
    lease.holder, lease.locked_by = record.holder, record.locked_by
    return (yield from locking.release(programs, lease))
