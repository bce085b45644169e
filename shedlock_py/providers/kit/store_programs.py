"""The programs of one store: what its author writes, and what is written once for all stores."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypeVar

from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable, hidden_frames
from shedlock_py.events import logger
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.lease import MOST_RECOVERIES, Claim, Clock, Lease, random_claim_id
from shedlock_py.model.record import ONCE, LockRecord
from shedlock_py.model.request import LockRequest
from shedlock_py.model.run import Run, error_of, newest_first, outcome_of
from shedlock_py.model.text import one_line
from shedlock_py.provider import Check
from shedlock_py.providers.kit.failures import Failure, TimedOut, kept_changing, refused, unreachable
from shedlock_py.providers.kit.masking import Masking
from shedlock_py.providers.kit.operation import Operation, Undo
from shedlock_py.providers.kit.options import DEFAULT_FIRE_TIME_TOLERANCE
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.program import Program

__tracebackhide__ = hidden_frames
T = TypeVar("T")

MOST_TAKE_OVERS = 16
"""For operators and nodes that take over at the same time: one of them succeeds in each round."""
HISTORY_SECONDS = 1.0
"""A command that writes history only waits no longer for its reply."""
HISTORY_PAUSE = 60.0
"""Seconds without history after it could not be written, so that not every run waits for it."""
_BEFORE = timedelta(microseconds=1)
_EARLIEST = datetime.min.replace(tzinfo=UTC) + _BEFORE


def given_back(record: LockRecord) -> datetime | None:
    """Return the ``former_fire_time`` of ``undo_claim`` for an operator who frees ``record``.

    That of a key of ``run_once`` is given back, because its task has not succeeded.
    """
    is_key_in_use = record.last_fire_time == ONCE and record.is_released is False and not record.is_of_operator
    return ONCE - _BEFORE if is_key_in_use else None


GRANTED = "the Lease that acquire returned; it returns None if the lock was not granted"


def require(given: object, kind: type, operation: str, example: str) -> None:
    """:raises TypeError: ``given`` is of another kind than the operation takes."""
    if not isinstance(given, kind):
        raise TypeError(f"{operation} takes a {kind.__name__}, not {given!r}: {example}")


def require_same_name(name: str, expected: LockRecord | None) -> None:
    """:raises ConfigurationError: ``expected`` is the record of another lock."""
    if expected is not None and expected.name != name:
        raise ConfigurationError(f"lock {name!r}: expected is the record of another lock, {expected.name!r}")


class StorePrograms(ABC):
    """The programs of one store.

    :param clock: the holder's monotonic clock, in seconds.
    :param timeout: how long an operation may take in all; None: a user-supplied client has limits of its own.
    :param fire_time_tolerance: how far a fire time may lie in the future of the store's clock.
    :param passwords: what must not be in a message, each as the URL or as the driver writes it.
    :param names: what messages name besides, such as the user, the hosts and the database: a password may be the same.
    :param history: how many runs of each name to keep; 0: none.
    """

    keeps_history: ClassVar[bool] = False
    """True for a store that can keep runs: ``claim``, ``set_end`` and ``undo_claim`` write them while
    :meth:`is_history_on`, and there is :meth:`runs`."""
    recognises_retries: ClassVar[bool] = False
    """True for a store whose record shows that a repeated extend or release was carried out before.

    It must be true if the client repeats commands by itself: then the programs do not know that one was repeated, and
    the first copy of a short extension could arrive late and cut a longer one, while the holder trusts the longer one.
    """

    def __init__(
        self,
        *,
        clock: Clock = monotonic,
        timeout: Duration | None = None,
        fire_time_tolerance: timedelta = DEFAULT_FIRE_TIME_TOLERANCE,
        passwords: Iterable[str] = (),
        names: Iterable[str] = (),
        history: int = 0,
    ) -> None:
        self.clock = clock
        self.history = history if self.keeps_history else 0
        self._history_resumes_at = float("-inf")
        self._has_warned_of_history = False
        self.new_claim_id: Callable[[], str] = random_claim_id
        """Where claims get their ids from. A simulation sets another source, whose ids it can repeat."""
        self.timeout = None if timeout is None else parse_duration(timeout, "timeout").total_seconds()
        """In seconds."""
        self.fire_time_tolerance = fire_time_tolerance
        self._masking = Masking(passwords, names)

    # A store's author writes these. Each yields commands; the kit sends the replies.

    @abstractmethod
    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> Program[Any, Any, int | None]:
        """Grant the lock to ``claim``: its fencing token (0 where the store keeps none); None: it is not granted.

        In one atomic step, by the store's clock, and idempotent: a claim that finds itself in the record is granted
        with the token that is there. A claim with a fire time is granted only if that is newer than the newest granted
        one, and raises :func:`fire_time_too_late` if it is later than now plus ``fire_time_tolerance``.

        :param force: take over: grant it from any holder, but only if the record is still ``before`` (by its fencing
            token; None: there is no record). So a late copy of this command matches nothing. If ``claim.recoveries`` is
            not 0, only if it has expired, too, and was not released: its holder has died.
        """

    @abstractmethod
    def set_end(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> Program[Any, Any, bool]:
        """Let exactly this lease end ``lock_for`` from now. False: the store does not have it any more.

        After a release, an undo or a force release no extension matches, not even one that waited for the record.
        """

    @abstractmethod
    def undo_claim(self, name: str, locked_by: str, former_fire_time: datetime | None) -> Program[Any, Any, bool]:
        """Free ``name`` at once if ``locked_by`` is still in its record. False: it is not.

        :param former_fire_time: what the newest fire time becomes, where it is later; None: leave it.
        """

    @abstractmethod
    def record(self, name: str) -> Program[Any, Any, LockRecord | None]:
        """The lock record of ``name``."""

    @abstractmethod
    def records(self, prefix: str) -> Program[Any, Any, list[LockRecord]]:
        """All lock records whose names start with ``prefix``, and perhaps others, in any order."""

    def delete_fire_time(self, name: str, fire_time: datetime) -> Program[Any, Any, bool]:
        """Delete ``fire_time``, which was read, from the record of ``name``. False: the record does not have it.

        In one atomic step: a late copy must not delete one that was granted since.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither delete_fire_time() nor forget_fire_time()")

    @abstractmethod
    def prune(self, unused_for: timedelta) -> Program[Any, Any, int]:
        """Delete the records that are free and were last held longer than ``unused_for`` ago."""

    def create_schema(self) -> Program[Any, Any, None]:
        """Create what the store needs. Nothing by default."""
        yield from ()

    def checks(self) -> Program[Any, Any, list[Check]]:
        """What the store says of its settings and this user's rights: see :class:`Check`. Nothing by default."""
        yield from ()
        return []

    def runs(self, name: str, limit: int) -> Program[Any, Any, list[Run]]:
        """The newest ``limit`` runs of ``name``, and perhaps others, in any order, each as it was written."""
        raise NotImplementedError(f"{type(self).__name__} keeps history, and has no runs()")

    def recent_runs(self, names: Sequence[str], limit: int) -> Program[Any, Any, list[Run]]:
        """The newest ``limit`` runs of each of ``names``. A store replaces this where one command reads several."""
        found: list[Run] = []
        for name in names:
            try:
                found += newest_first((yield from self.runs(name, limit)), limit)
            except ProviderUnreachable:
                raise
            except ProviderError as error:  # odd values of one name must not hide the others
                logger.warning("%s", error)
        return found

    @abstractmethod
    def classify(self, error: Exception) -> Failure:
        """What an error that the client raised means."""

    def text_of(self, error: Exception) -> str:
        """The driver's message; :meth:`reason` shortens it and takes the passwords out."""
        return str(error)

    def hint(self, error: Exception) -> str | None:
        """What the user can do about an error, if that is known."""
        return None

    # A store may replace these.

    def is_all_said(self, error: Exception) -> bool:
        """Whether message and hint say all that the driver's ``error`` says, so that its traceback is left out."""
        return False

    def explain(self, error: Exception, failure: Failure, operation: str, lock_name: str | None) -> ProviderError:
        """The error for the caller."""
        make = refused if failure is Failure.REFUSED else unreachable
        return make(operation, lock_name, self.reason(error), hint=self.hint(error))

    def explain_timeout(self, error: TimedOut, operation: str, lock_name: str | None) -> ProviderError:
        """The error for the caller after the time limit."""
        limit = "" if self.timeout is None else f" of {self.timeout:g} s (timeout)"
        cause = error.__cause__
        driver = f" ({self.reason(cause)})" if isinstance(cause, Exception) else ""
        what = f"no reply in the time limit{limit}: waited for {error.waiting_for}{driver}"
        return unreachable(operation, lock_name, what)

    def force_release(self, name: str, expected: LockRecord | None = None) -> Program[Any, Any, bool]:
        """Free ``name`` from the holder in ``expected``. Without ``expected``, free it from the present holder."""
        require_same_name(name, expected)
        operation = Operation(self, "force_release", name)
        record = expected or (yield from operation.carry_out(self.record(name)))
        if record is None or not record.is_held:
            return False
        is_freed = yield from operation.carry_out(self.free(record))
        if expected is None:
            if not is_freed:  # that hold has ended by itself, and a release leaves the minimum hold
                found = yield from operation.carry_out(self.record(name))
                if found is not None and found.is_held and found.is_released:
                    yield from operation.carry_out(self.free(found))
            return True
        if not is_freed and operation.was_repeated:  # the first copy may have freed it
            found = yield from operation.carry_out(self.record(name))
            is_freed = found is not None and found.locked_by == record.locked_by and not found.is_held
        return is_freed

    def free(self, record: LockRecord) -> Program[Any, Any, bool]:
        """Free the lock at once if the store still has the acquisition of ``record``. False: it has not.

        In one atomic step. The newest fire time becomes :func:`given_back`. The holder's release must then return
        False, and its run stays in the history. A store replaces this if ``undo_claim`` deletes the run. It also
        replaces this if a release after it looks like a retry and returns True, or if its holders may lack claim ids.
        """
        return self.undo_claim(record.name, record.locked_by, given_back(record))

    def forget_fire_time(self, name: str, expected: LockRecord | None = None) -> Program[Any, Any, bool]:
        """Forget the newest fire time of ``name``. False: there was none when it was read.

        :param expected: the record that the operator saw. Without it, the program reads the record.

        True also if the record has another one, or none, when it is deleted: a first copy, whose reply was lost, may
        have forgotten it.
        """
        require_same_name(name, expected)
        record = expected or (yield from self.record(name))
        newest = record.last_fire_time if record else None
        if record is None or newest is None:
            return False
        if newest == ONCE:
            return (yield from self._forget_key(record))
        if not (yield from self.delete_fire_time(name, newest)):
            record = yield from self.record(name)
            if record is not None and record.last_fire_time == newest:
                what = f"the store has the fire time {newest} still, in a form that this library does not write"
                raise refused("forget_fire_time", name, what, hint="delete it from the record by hand")
        return True

    def _forget_key(self, record: LockRecord) -> Program[Any, Any, bool]:
        """Let a key of ``run_once`` run again. All its runs have one fire time, so this goes by the claim id."""
        if record.is_held:
            return False  # its task may succeed yet
        if not record.is_released:  # one reply with a wrong time may say that the lease of a living holder has ended
            again = yield from self.record(record.name)
            if again is None or again.is_held or again.acquisition != record.acquisition:
                return False
        if not (yield from self.undo_claim(record.name, record.locked_by, ONCE - _BEFORE)):
            found = yield from self.record(record.name)
            return found is None or found.last_fire_time != ONCE  # a first copy may have done it
        return True

    def end_run(self, lease: Lease, *, is_lost: bool) -> Program[Any, Any, None]:
        """Write the end of a run that has none, for a store whose :meth:`set_end` does not write it."""
        yield from ()

    def read_twice(self, name: str) -> Program[Any, Any, tuple[Any, LockRecord | None]]:
        """Read the ``before`` of a claim, then the record. The claim fails if the record has changed since."""
        before: Any = yield from self.read_before_take_over(name)
        if isinstance(before, LockRecord):
            return before, before
        return before, (yield from self.record(name))

    def read_before_take_over(self, name: str) -> Program[Any, Any, LockRecord | None]:
        """What :meth:`claim` gets as ``before``. A store whose claim reads what it replaces by itself returns None."""
        return self.record(name)

    # Written once

    def reason(self, error: Exception) -> str:
        """The driver's message for people to read: one line of 300 characters, without passwords."""
        text = one_line(self._masking.masked(self.text_of(error))) or type(error).__name__
        return text if len(text) <= 300 else f"{text[:300]}…"

    def acquire(self, request: LockRequest) -> Program[Any, Any, Lease | None]:
        require(request, LockRequest, "acquire", "LockRequest('nightly-report', '30m')")
        operation = Operation(self, "acquire", request.name)
        return self.claimed(operation, Claim(request, self.clock, self.new_claim_id), None, force=False)

    def take_over(self, request: LockRequest, expected: LockRecord | None = None) -> Program[Any, Any, Lease]:
        """Read the record, and replace exactly what was read."""
        require(request, LockRequest, "take_over", "LockRequest('nightly-report', '30m')")
        require_same_name(request.name, expected)
        claim = Claim(request, self.clock, self.new_claim_id)
        operation = Operation(self, "take_over", request.name)
        for _ in range(MOST_TAKE_OVERS):
            if expected is None:
                before = yield from operation.carry_out(self.read_before_take_over(request.name))
            else:
                before, record = yield from operation.carry_out(self.read_twice(request.name))
                if record is None or record.acquisition != expected.acquisition:
                    what = "its record has changed since it was read"
                    raise refused("take_over", request.name, what, hint="look at the record again")
            claim.restart_clock()
            lease = yield from self.claimed(operation, claim, before, force=True)
            if lease is not None:
                lease.fire_time = None  # noted, not granted: it may have run before, so an undo must not give it back
                return lease
        raise kept_changing("take_over", request.name)

    def recover(self, request: LockRequest, expected: LockRecord) -> Program[Any, Any, Lease | None]:
        """Claim the fire time of a run that never ended, if the store still has exactly its record ``expected``.

        None: the record has changed. A claim in doubt is not undone: it expires, and then it can be recovered.

        :raises ConfigurationError: ``expected`` is not the record of a run that has expired without a release.
        """
        require(request, LockRequest, "recover", "LockRequest('nightly-report', '30m')")
        require(expected, LockRecord, "recover", "the LockRecord that record(name) returned")
        is_of_dead_run = expected.is_released is False and not expected.is_held and not expected.is_of_operator
        if expected.name != request.name or not is_of_dead_run:
            raise ConfigurationError(f"lock {request.name!r}: recover takes the record of a run that never ended")
        if expected.recoveries >= MOST_RECOVERIES:
            raise ConfigurationError(f"lock {request.name!r}: its run was recovered {MOST_RECOVERIES} times already")
        claim = Claim(request, self.clock, self.new_claim_id, expected.recoveries + 1)
        operation = Operation(self, "recover", request.name)
        return (yield from self.claimed(operation, claim, expected, force=True))

    def claimed(
        self, operation: Operation, claim: Claim, before: LockRecord | None, *, force: bool
    ) -> Program[Any, Any, Lease | None]:
        """Claim. Whatever goes wrong, an acquire whose outcome is unknown is undone.

        A take-over is left to expire: the former holder may still trust its lease, so the name must not be free now.
        """
        try:
            token = yield from operation.carry_out(self.claim(claim, before=before, force=force))
            return None if token is None else claim.granted(token or None)
        except GeneratorExit:
            raise
        except BaseException as error:
            # A signal handler, or a job's time limit, may raise its exception after the reply has arrived.
            is_reported = isinstance(error, ProviderError | ConfigurationError)
            if not force and (operation.is_in_doubt or (operation.has_written and not is_reported)):
                yield self.undo_of(claim)
            raise

    def undo_of(self, claim: Claim) -> Undo:
        """The command that undoes an acquire that may have been granted to ``claim``."""
        request = claim.request
        program = self.undo_for(request.name, claim.locked_by, request.fire_time)
        return Undo(program, useful_for=request.lock_at_most_for.total_seconds())

    def undo(self, lease: Lease) -> Program[Any, Any, bool]:
        """Give back an unused acquisition: free at once, and its fire time can be granted again."""
        if lease.has_ended():
            return False
        lease._begin_release()
        is_undone = yield from self.undo_for(lease.name, lease.locked_by, lease.fire_time)
        if is_undone:
            lease._end()
        else:
            lease._lose()
        return is_undone

    def undo_for(self, name: str, locked_by: str, fire_time: datetime | None) -> Program[Any, Any, bool]:
        """Free ``name`` if ``locked_by`` still has it, and let ``fire_time`` be granted again."""
        # The store does not know which fire time was granted before this one. The moment just before it will do: this
        # fire time can be granted again, and those that were granted before cannot.
        former = None if fire_time is None else max(fire_time, _EARLIEST) - _BEFORE
        return (yield from self.carry_out("undo", name, self.undo_claim(name, locked_by, former)))

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Program[Any, Any, Lease | None]:
        require(lease, Lease, "extend", GRANTED)
        extension = lease._begin_extension(lock_at_most_for)
        if lease.is_being_released():
            return None
        operation = Operation(self, "extend", lease.name)
        if not (yield from operation.carry_out(self.set_end(lease, extension.lock_for, releasing=False))):
            lease._lose()
            return None
        return extension.granted(repeated=operation.was_repeated and not self.recognises_retries)

    def release(self, lease: Lease) -> Program[Any, Any, bool]:
        require(lease, Lease, "release", GRANTED)
        if lease.has_ended():
            return False
        lease.error = error_of(lease)
        if self.is_history_on():
            lease.outcome = outcome_of(lease)
        operation, was_trusted = Operation(self, "release", lease.name), lease.is_trusted()
        lock_for = lease._begin_release()
        try:
            return (yield from self._released(operation, lease, lock_for, was_trusted))
        except (ProviderError, ConfigurationError, GeneratorExit):
            raise
        except BaseException:  # SIGTERM's SystemExit, or a job's time limit: the process should free its lock
            again = Operation(self, "release", lease.name)
            again.was_repeated = True  # it may have been carried out
            program = self._released(again, lease, lock_for, was_trusted)
            yield Undo(program, useful_for=lease.lock_at_most_for.total_seconds())
            raise

    def _released(
        self, operation: Operation, lease: Lease, lock_for: timedelta, was_trusted: bool
    ) -> Program[Any, Any, bool]:
        is_done = yield from operation.carry_out(self.set_end(lease, lock_for, releasing=True))
        if not is_done and operation.was_repeated and not self.recognises_retries:
            is_done = was_trusted  # the first copy of the command released it, and the second found nothing to do
        if is_done:
            lease._end()
        else:
            lease._lose()
        if self.is_history_on():
            yield from operation.carry_out(self.warn_if_failed(self.end_run(lease, is_lost=not is_done)))
        return is_done

    # Run history. No error of it is an error of the operation that it belongs to.

    def is_history_on(self) -> bool:
        """Whether a grant or a release is to write history as well."""
        return self.history > 0 and self.clock() >= self._history_resumes_at

    def history_failed(self, error: Exception) -> None:
        """History could not be written: one warning, and no further attempt for a while. The lease counts."""
        self._history_resumes_at = self.clock() + HISTORY_PAUSE
        level = logging.DEBUG if self._has_warned_of_history else logging.WARNING
        self._has_warned_of_history = True
        logger.log(level, "the run history is not written, locks are not affected: %s", error)

    def resume_history(self) -> None:
        """Write history again, after its cause of failure was mended."""
        self._history_resumes_at = float("-inf")

    def warn_if_failed(self, program: Program[Any, Any, object]) -> Program[Any, Any, None]:
        """Carry out ``program``, which writes history only, after the operation itself."""
        try:
            yield from program
        except ProviderError as error:
            self.history_failed(error)

    def carry_out(self, operation: str, lock_name: str | None, program: Program[Any, Any, T]) -> Program[Any, Any, T]:
        """A program of the store with retries, and with errors that name the ``operation``."""
        return Operation(self, operation, lock_name).carry_out(program)
