"""Acquire, take over, recover, extend, release and undo, the same for every store."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable, hidden_frames
from shedlock_py.model.durations import Duration
from shedlock_py.model.lease import MOST_RECOVERIES, Claim, Lease
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import LockRequest
from shedlock_py.model.run import error_of, outcome_of
from shedlock_py.providers.kit.failures import kept_changing, refused, require_same_name
from shedlock_py.providers.kit.fire_times import former_of
from shedlock_py.providers.kit.operation import Operation, Undo, carry_out
from shedlock_py.providers.kit.store_programs import StorePrograms
from shedlock_py.runtime.program import Program

__tracebackhide__ = hidden_frames

MOST_TAKE_OVERS = 16
"""The most attempts if operators and nodes take over at the same time. One of them succeeds in each round."""
_REQUEST = "LockRequest('nightly-report', '30m')"
_GRANTED = "the Lease that acquire returned; it returns None if the lock was not granted"


def acquire(programs: StorePrograms, request: LockRequest) -> Program[Any, Any, Lease | None]:
    _require(request, LockRequest, "acquire", _REQUEST)
    operation = Operation(programs, "acquire", request.name)
    return claimed(programs, operation, Claim(request, programs.clock, programs.new_claim_id), None, force=False)


def take_over(
    programs: StorePrograms, request: LockRequest, expected: LockRecord | None = None
) -> Program[Any, Any, Lease]:
    """Read the record, and replace exactly what was read."""
    _require(request, LockRequest, "take_over", _REQUEST)
    require_same_name(request.name, expected)
    claim = Claim(request, programs.clock, programs.new_claim_id)
    operation = Operation(programs, "take_over", request.name)
    for _ in range(MOST_TAKE_OVERS):
        if expected is None:
            before = yield from operation.carry_out(programs.read_before_take_over(request))
        else:
            before, record = yield from operation.carry_out(read_twice(programs, request))
            if record is None or record.acquisition != expected.acquisition:
                what = "its record has changed since it was read"
                raise refused("take_over", request.name, what, hint="look at the record again")
        claim.restart_clock()
        lease = yield from claimed(programs, operation, claim, before, force=True)
        if lease is not None:
            lease.fire_time = None  # it may have run before, so an undo must not give it back
            return lease
    raise kept_changing("take_over", request.name)


def recover(programs: StorePrograms, request: LockRequest, expected: LockRecord) -> Program[Any, Any, Lease | None]:
    """Claim the fire time of a run that never ended, if the store still has exactly its record ``expected``.

    Return None if the record has changed. A claim in doubt is not undone: it expires, and can be recovered then.

    :raises ConfigurationError: ``expected`` is not the record of a run that has expired without a release.
    """
    _require(request, LockRequest, "recover", _REQUEST)
    _require(expected, LockRecord, "recover", "the LockRecord that record(name) returned")
    is_of_dead_run = expected.is_released is False and not expected.is_held and not expected.is_of_operator
    if expected.name != request.name or not is_of_dead_run:
        raise ConfigurationError(f"lock {request.name!r}: recover takes the record of a run that never ended")
    if expected.recoveries >= MOST_RECOVERIES:
        raise ConfigurationError(f"lock {request.name!r}: its run was recovered {MOST_RECOVERIES} times already")
    claim = Claim(request, programs.clock, programs.new_claim_id, expected.recoveries + 1)
    operation = Operation(programs, "recover", request.name)
    return (yield from claimed(programs, operation, claim, expected, force=True))


def claimed(
    programs: StorePrograms, operation: Operation, claim: Claim, before: LockRecord | None, *, force: bool
) -> Program[Any, Any, Lease | None]:
    """Claim the lock. After any error, an acquire with an unknown outcome is undone.

    A take-over is left to expire instead: the former holder may still trust its lease, so the lock must not be free
    now.
    """
    try:
        token = yield from operation.carry_out(programs.claim(claim, before=before, force=force))
        return None if token is None else claim.granted(token or None)
    except GeneratorExit:
        raise
    except BaseException as error:
        if isinstance(error, ProviderUnreachable):
            error.locked_by = claim.locked_by if operation.is_in_doubt or operation.has_reply else ""
        # A signal handler or a job's time limit may raise its exception after the reply has arrived.
        is_reported = isinstance(error, ProviderError | ConfigurationError)
        if not force and (operation.is_in_doubt or (operation.has_written and not is_reported)):
            yield undo_of(programs, claim)
        raise


def undo_of(programs: StorePrograms, claim: Claim) -> Undo:
    """Return the command that undoes an acquire that ``claim`` may have been granted, or may be granted later."""
    return Undo(undo_claimed(programs, claim), useful_for=claim.request.lock_at_most_for.total_seconds())


def undo_claimed(programs: StorePrograms, claim: Claim) -> Program[Any, Any, bool]:
    """Undo an acquire that ``claim`` may have been granted, with retries. False if the record has another claim id."""
    return (yield from carry_out(programs, "undo", claim.request.name, programs.undo_acquire(claim)))


def undo(programs: StorePrograms, lease: Lease) -> Program[Any, Any, bool]:
    """Give back an unused acquisition: free the lock at once, and let its fire time be granted again."""
    if lease.has_ended():
        return False
    lease._begin_release()
    undoing = programs.undo_claim(lease.name, lease.locked_by, former_of(lease.fire_time))
    is_undone = yield from carry_out(programs, "undo", lease.name, undoing)
    if is_undone:
        lease._end()
    else:
        lease._lose()
    return is_undone


def extend(programs: StorePrograms, lease: Lease, lock_at_most_for: Duration) -> Program[Any, Any, Lease | None]:
    _require(lease, Lease, "extend", _GRANTED)
    extension = lease._begin_extension(lock_at_most_for)
    if lease.is_being_released():
        return None
    operation = Operation(programs, "extend", lease.name)
    if not (yield from operation.carry_out(programs.set_end(lease, extension.lock_for, releasing=False))):
        lease._lose()
        return None
    return extension.granted(repeated=operation.was_repeated and not programs.recognises_retries)


def release(programs: StorePrograms, lease: Lease) -> Program[Any, Any, bool]:
    _require(lease, Lease, "release", _GRANTED)
    if lease.has_ended():
        return False
    if programs.history:
        lease.error = error_of(lease)
        lease.outcome = outcome_of(lease)
    operation, was_trusted = Operation(programs, "release", lease.name), lease.is_trusted()
    lock_for = lease._begin_release()
    try:
        return (yield from _released(programs, operation, lease, lock_for, was_trusted))
    except (ProviderError, ConfigurationError, GeneratorExit):
        raise
    except BaseException:  # SIGTERM's SystemExit or a job's time limit: the process should free its lock
        again = Operation(programs, "release", lease.name)
        again.was_repeated = True  # the first release may have been carried out
        program = _released(programs, again, lease, lock_for, was_trusted)
        yield Undo(program, useful_for=lease.lock_at_most_for.total_seconds())
        raise


def _released(
    programs: StorePrograms, operation: Operation, lease: Lease, lock_for: timedelta, was_trusted: bool
) -> Program[Any, Any, bool]:
    is_done = yield from operation.carry_out(programs.set_end(lease, lock_for, releasing=True))
    if not is_done and operation.was_repeated and not programs.recognises_retries:
        is_done = was_trusted  # the first copy of the command released it; the second copy found nothing to do
    if is_done:
        lease._end()
    else:
        lease._lose()
    if programs.history and programs.is_history_on():
        try:
            yield from operation.carry_out(programs.end_run(lease, is_lost=not is_done))
        except ProviderError as error:
            programs.history_failed(error)
    return is_done


def read_twice(programs: StorePrograms, request: LockRequest) -> Program[Any, Any, tuple[Any, LockRecord | None]]:
    """Read the ``before`` of a claim, then the record. The claim fails if the record has changed between them."""
    before: Any = yield from programs.read_before_take_over(request)
    if isinstance(before, LockRecord):
        return before, before
    return before, (yield from programs.record(request.name))


def _require(given: object, kind: type, operation: str, example: str) -> None:
    """:raises TypeError: ``given`` has the wrong type for the operation."""
    if not isinstance(given, kind):
        raise TypeError(f"{operation} takes a {kind.__name__}, not {given!r}: {example}")
