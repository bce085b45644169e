"""The provider kit: what all stores share. Public, for built-in and third-party stores alike.

A store supplies two things. :class:`StorePrograms` has a few small programs: generators that yield the store's commands
and are sent the replies. A client carries a single command out, sync or async. The kit supplies the rest: acquire, take
over, extend and release, the retry after a broken connection, the undo of an acquire whose outcome is unknown, the time
limit of each operation, and the nine methods of both providers.

A program of a store only asks and decides. The kit retries each command where that is safe, and throws a
:class:`ProviderError` into the program where it is not::

    def claim(self, claim, *, before, force):
        rows = yield Query(ACQUIRE, name=claim.request.name, locked_by=claim.locked_by, ...)
        return rows[0].token if rows else None
"""

from __future__ import annotations

import enum
import os
import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar
from urllib.parse import unquote_plus
from weakref import ReferenceType, ref

from shedlock_py._clock import monotonic
from shedlock_py._program import Program, run, run_async
from shedlock_py._timers import WorkerPool, finish_at_exit
from shedlock_py.durations import Duration, parse_duration
from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable
from shedlock_py.events import logger
from shedlock_py.lease import Claim, Clock, Lease
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.record import LockRecord
from shedlock_py.request import LockRequest, validate_name, validate_prefix

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

DEFAULT_TIMEOUT = timedelta(seconds=5)
"""How long one operation of a provider that was opened from a URL may take, everything included."""
DEFAULT_FIRE_TIME_TOLERANCE = timedelta(minutes=5)
"""How far a fire time may lie in the future of the store's clock: a replica's clock may be that wrong."""

MOST_RETRIES = 5
"""Of a command that the store undid because of a concurrent one: one of the two always succeeds."""
MOST_TAKE_OVERS = 16
"""For operators and nodes that take over at the same time: one of them succeeds in each round."""
_MOMENT = 0.02
"""Seconds in which an event loop, after it was blocked, reads the replies that have arrived."""
_BEFORE = timedelta(microseconds=1)
_EARLIEST = datetime.min.replace(tzinfo=UTC) + _BEFORE


class Failure(enum.Enum):
    """How a program must react to an error of the store."""

    CONFLICT = "undone by the store because of a concurrent command; a retry is safe and can succeed"
    CONNECTION_LOST = (
        "the connection broke, and the command may have been carried out; retried once, on a new connection"
    )
    SESSION_CLOSED = "the server ended the session, and is up: retried like a conflict, as the next session may end too"
    UNREACHABLE = "no reply, or one that will not change soon; the command may have been carried out"
    NOT_DONE = "no reply, or one that will not change soon; the command was certainly not carried out"
    REFUSED = "the store replied with an error; the command was not carried out"
    NOT_A_STORE_ERROR = "raised by something else, such as a signal handler; the command may have been carried out"


_RETRIED = {
    Failure.CONFLICT: MOST_RETRIES,
    Failure.SESSION_CLOSED: MOST_RETRIES,
    Failure.CONNECTION_LOST: 1,  # a pooled connection may be older than the server; a new one is not
}
"""How often."""
_OUTCOME_KNOWN = (Failure.CONFLICT, Failure.NOT_DONE, Failure.REFUSED)


class NotSent(Exception):
    """Raised by a client, ``from`` the driver's error: no connection could be had, so nothing was sent."""


class TimedOut(Exception):
    """Raised by a client: the time for the operation is over.

    :param waiting_for: what was waited for, for the message: "a free connection", "a connection", "a reply".
    :param sent: whether a byte of the command may have reached the store.
    """

    def __init__(self, waiting_for: str, *, sent: bool) -> None:
        super().__init__(f"no answer in time: waited for {waiting_for}")
        self.waiting_for = waiting_for
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Undo:
    """A command that the provider itself carries out: this program, in the background if the time is over.

    It is not begun later than ``useful_for`` seconds after it was made: what it would undo has ended by itself.
    """

    program: Program[Any, Any, object]
    useful_for: float


class StorePrograms(ABC):
    """The programs of one store.

    :param clock: the holder's monotonic clock, in seconds.
    :param timeout: seconds that an operation may take; None: the user's own client has limits of its own.
    :param fire_time_tolerance: how far a fire time may lie in the future of the store's clock.
    """

    recognises_retries: ClassVar[bool] = False
    """True for a store whose record shows that a repeated extend or release was carried out before."""

    def is_write(self, command: Any) -> bool:
        """Whether ``command`` can grant a lock. After one that cannot, there is nothing to undo."""
        return True

    def __init__(
        self,
        *,
        clock: Clock = monotonic,
        timeout: float | None = None,
        fire_time_tolerance: timedelta = DEFAULT_FIRE_TIME_TOLERANCE,
    ) -> None:
        self.clock = clock
        self.timeout = timeout
        self.fire_time_tolerance = fire_time_tolerance

    # A store's author writes these. Each yields commands; the kit sends the replies.

    @abstractmethod
    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> Program[Any, Any, int | None]:
        """Grant the lock to ``claim``: its fencing token (0 where the store keeps none); None: it is not granted.

        In one atomic step, by the store's clock, and idempotent: a claim that finds itself in the record is granted
        with the token that is there. A claim with a fire time is granted only if that is newer than the newest granted
        one, and raises :func:`fire_time_too_late` if it is later than now plus ``fire_time_tolerance``.

        :param force: take over: grant it from any holder, but only if the record is still ``before`` (by its fencing
            token; None: there is no record). So a late copy of this command matches nothing.
        """

    @abstractmethod
    def hold(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> Program[Any, Any, bool]:
        """Let exactly this lease end ``lock_for`` from now. False: the store does not have it any more."""

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

    @abstractmethod
    def force_release(self, name: str) -> Program[Any, Any, bool]:
        """Free ``name`` from any holder. False: it was not held."""

    @abstractmethod
    def forget_fire_time(self, name: str) -> Program[Any, Any, bool]:
        """Forget the newest fire time of ``name``. False: there was none."""

    @abstractmethod
    def prune(self, unused_for: timedelta) -> Program[Any, Any, int]:
        """Delete the records that are free and were last held longer than ``unused_for`` ago."""

    def create_schema(self) -> Program[Any, Any, None]:
        """Create what the store needs. Nothing, unless a store says otherwise."""
        yield from ()

    @abstractmethod
    def classify(self, error: Exception) -> Failure:
        """What an error that the client raised means."""

    @abstractmethod
    def explain(self, error: Exception, failure: Failure, operation: str, lock_name: str | None) -> ProviderError:
        """The error for the caller: what failed, in the driver's words without passwords, and the cure.

        :class:`ProviderUnreachable` for failures that say so.
        """

    # Written once

    def read_before_take_over(self, name: str) -> Program[Any, Any, LockRecord | None]:
        """What :meth:`claim` gets as ``before``. A store whose claim reads what it replaces by itself returns None."""
        return self.record(name)

    def acquire(self, request: LockRequest) -> Program[Any, Any, Lease | None]:
        """See :meth:`LockProvider.acquire`."""
        claim = Claim(request, self.clock)
        operation = _Operation(self, "acquire", request.name)
        return (yield from self._claimed(operation, claim, None, force=False))

    def take_over(self, request: LockRequest) -> Program[Any, Any, Lease]:
        """See :meth:`LockProvider.take_over`: read the record, and replace exactly what was read."""
        claim = Claim(request, self.clock)
        operation = _Operation(self, "take_over", request.name)
        for _ in range(MOST_TAKE_OVERS):
            before = yield from operation.carry_out(self.read_before_take_over(request.name))
            claim.restart_clock()
            lease = yield from self._claimed(operation, claim, before, force=True)
            if lease is not None:
                lease.fire_time = None  # noted, not granted: it may have run before, so an undo must not give it back
                return lease
        raise ProviderError(
            f"take_over of lock {request.name!r}: the record changed again and again; try once more",
            operation="take_over",
            lock_name=request.name,
        )

    def _claimed(
        self, operation: _Operation, claim: Claim, before: LockRecord | None, *, force: bool
    ) -> Program[Any, Any, Lease | None]:
        """Claim; whatever goes wrong, nobody keeps what may have been granted."""
        try:
            token = yield from operation.carry_out(self.claim(claim, before=before, force=force))
            return None if token is None else claim.granted(token or None)
        except GeneratorExit:
            raise
        except BaseException as error:
            # A signal handler, or a job's time limit, may raise its exception after the reply has arrived.
            is_reported = isinstance(error, ProviderError | ConfigurationError)
            if operation.is_in_doubt or (operation.has_written and not is_reported):
                yield self.undo_of(claim, is_take_over=force)
            raise

    def undo_of(self, claim: Claim, *, is_take_over: bool) -> Undo:
        """The command that undoes what ``claim`` may have been granted. A take-over gives no fire time back."""
        fire_time = None if is_take_over else claim.request.fire_time
        program = self._undone(claim.request.name, claim.locked_by, fire_time)
        return Undo(program, useful_for=claim.request.lock_at_most_for.total_seconds())

    def undo(self, lease: Lease) -> Program[Any, Any, bool]:
        """Give back an acquisition that nobody used: free at once, and its fire time can be granted again."""
        if lease.has_ended():
            return False
        lease.begin_release()
        is_undone = yield from self._undone(lease.name, lease.locked_by, lease.fire_time)
        if is_undone:
            lease.end()
        else:
            lease.lose()
        return is_undone

    def _undone(self, name: str, locked_by: str, fire_time: datetime | None) -> Program[Any, Any, bool]:
        # The store does not know which fire time was granted before this one. The moment just before it will do: this
        # fire time can be granted again, and those that were granted before cannot.
        former = None if fire_time is None else max(fire_time, _EARLIEST) - _BEFORE
        return (yield from self.carry_out("undo", name, self.undo_claim(name, locked_by, former)))

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Program[Any, Any, Lease | None]:
        """See :meth:`LockProvider.extend`."""
        extension = lease.begin_extension(lock_at_most_for)
        if lease.has_ended():
            return None
        operation = _Operation(self, "extend", lease.name)
        if not (yield from operation.carry_out(self.hold(lease, extension.lock_for, releasing=False))):
            lease.lose()
            return None
        return extension.granted(repeated=operation.was_repeated and not self.recognises_retries)

    def release(self, lease: Lease) -> Program[Any, Any, bool]:
        """See :meth:`LockProvider.release`."""
        if lease.has_ended():
            return False
        was_trusted = lease.is_trusted()
        operation = _Operation(self, "release", lease.name)
        lock_for = lease.begin_release()
        try:
            is_done = yield from operation.carry_out(self.hold(lease, lock_for, releasing=True))
        except (Exception, GeneratorExit):
            raise
        except (
            BaseException
        ):  # such as SIGTERM's SystemExit: the process ends, and its lock should not be held for long
            program = self.carry_out("release", lease.name, self.hold(lease, lock_for, releasing=True))
            yield Undo(program, useful_for=lease.lock_at_most_for.total_seconds())
            raise
        if not is_done and operation.was_repeated and not self.recognises_retries:
            is_done = was_trusted  # the first of the two requests did it, and the second found nothing to do
        if is_done:
            lease.end()
        else:
            lease.lose()
        return is_done

    def carry_out(self, operation: str, lock_name: str | None, program: Program[Any, Any, T]) -> Program[Any, Any, T]:
        """A program of the store with retries, and with errors that say which ``operation`` failed."""
        return _Operation(self, operation, lock_name).carry_out(program)

    def explained(self, error: Exception, failure: Failure, operation: str, lock_name: str | None) -> ProviderError:
        """The error for the caller, also for those that the kit itself raises."""
        if not isinstance(error, TimedOut):
            return self.explain(error, failure, operation, lock_name)
        limit = "" if self.timeout is None else f" of {self.timeout:g} s (timeout)"
        what = f"no answer in the time limit{limit}: waited for {error.waiting_for}"
        return ProviderUnreachable(describe(operation, lock_name, what), operation=operation, lock_name=lock_name)


class _Operation:
    """One operation while it is carried out: its commands, its retries, and whether its outcome is known."""

    def __init__(self, programs: StorePrograms, name: str, lock_name: str | None) -> None:
        self._programs = programs
        self._name = name
        self._lock_name = lock_name
        self._until = programs.clock() + (programs.timeout or DEFAULT_TIMEOUT.total_seconds())
        self.was_repeated = False
        """A command was sent twice: the first copy may have been carried out, or may be so later."""
        self.has_written = False
        """A command that can grant a lock was sent."""
        self.is_in_doubt = False
        """The outcome of such a command is unknown."""

    def carry_out(self, program: Program[Any, Any, T]) -> Program[Any, Any, T]:
        """Pass the commands of ``program`` on, and retry each where that is safe."""
        try:
            command = next(program)
            while True:
                try:
                    reply = yield from self._request(command)
                except GeneratorExit:
                    raise
                except BaseException as error:
                    command = program.throw(error)
                else:
                    command = program.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            program.close()

    def _request(self, command: Any) -> Program[Any, Any, Any]:
        is_write = self._programs.is_write(command)
        failures = Counter[Failure]()
        while True:
            self.has_written = self.has_written or is_write
            try:
                reply = yield command
            except GeneratorExit:
                raise
            except BaseException as error:
                failure = self._classify(error)
                failures[failure] += 1
                self.is_in_doubt = self.is_in_doubt or (is_write and failure not in _OUTCOME_KNOWN)
                if self._may_retry(failures):
                    self.was_repeated = self.was_repeated or failure is not Failure.CONFLICT
                    continue
                is_for_caller = isinstance(error, ProviderError | ConfigurationError)
                if not isinstance(error, Exception) or failure is Failure.NOT_A_STORE_ERROR or is_for_caller:
                    raise
                cause = _cause(error)
                raise self._programs.explained(cause, failure, self._name, self._lock_name) from cause
            else:
                self.is_in_doubt = False
                return reply

    def _may_retry(self, failures: Counter[Failure]) -> bool:
        """Whether a command that failed like this may be sent once more."""
        if self._programs.clock() >= self._until or failures.keys() - _RETRIED.keys():
            return False
        return all(count <= _RETRIED[failure] for failure, count in failures.items())

    def _classify(self, error: BaseException) -> Failure:
        if isinstance(error, TimedOut):
            return Failure.UNREACHABLE if error.sent else Failure.NOT_DONE
        if isinstance(error, NotSent) and isinstance(error.__cause__, Exception):
            why = self._programs.classify(error.__cause__)
            if why is Failure.SESSION_CLOSED:
                return Failure.CONFLICT
            return Failure.REFUSED if why is Failure.REFUSED else Failure.NOT_DONE
        if isinstance(error, ProviderUnreachable):
            return Failure.UNREACHABLE
        if isinstance(error, ProviderError | ConfigurationError):
            return Failure.REFUSED
        if not isinstance(error, Exception):
            return Failure.NOT_A_STORE_ERROR
        return self._programs.classify(error)


def _cause(error: Exception) -> Exception:
    """The driver's own error, where the client has wrapped it."""
    return error.__cause__ if isinstance(error, NotSent) and isinstance(error.__cause__, Exception) else error


def describe(operation: str, lock_name: str | None, what: str) -> str:
    """The message of a :class:`ProviderError`: which operation on which lock, and what went wrong."""
    return f"{operation}: {what}" if lock_name is None else f"{operation} of lock {lock_name!r}: {what}"


def fire_time_too_late(operation: str, request: LockRequest, tolerance: timedelta) -> ProviderError:
    """The error for a fire time that is later than the store's clock allows.

    Granted, it would be the newest, and every replica would skip its runs until that time has come.
    """
    return ProviderError(
        describe(
            operation,
            request.name,
            f"fire time {request.fire_time} is more than {tolerance} later than the store's clock — set the clock of "
            f"this replica ({request.holder}) right, or open the provider with a larger fire_time_tolerance",
        ),
        operation=operation,
        lock_name=request.name,
    )


# The providers


class StoreClient(Protocol):
    """Carries a command out for :class:`ProgramProvider`."""

    def execute(self, command: Any, timeout: float | None, /) -> Any:
        """The reply, within ``timeout`` seconds (None: as long as the user's client takes), or :class:`TimedOut`."""


class AsyncStoreClient(Protocol):
    """Carries a command out for :class:`AsyncProgramProvider`."""

    async def execute(self, command: Any, timeout: float | None, /) -> Any:  # noqa: ASYNC109 (what is left of the operation's)
        """See :class:`StoreClient`."""


class ProgramProvider(LockProvider):
    """A :class:`LockProvider` from programs and a client."""

    def __init__(self, programs: StorePrograms, client: StoreClient) -> None:
        self.programs = programs
        self._client = client
        self._undo_workers = WorkerPool(4, "shedlock-undo")

    def acquire(self, request: LockRequest) -> Lease | None:
        return self._run(self.programs.acquire(request))

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return self._run(self.programs.extend(lease, lock_at_most_for))

    def release(self, lease: Lease) -> bool:
        return self._run(self.programs.release(lease))

    def undo(self, lease: Lease) -> bool:
        """Give back an acquisition that nobody used: free at once, without minimum hold.

        Its fire time can be granted again. False: the lease had ended.
        """
        return self._run(self.programs.undo(lease))

    def record(self, name: str) -> LockRecord | None:
        return self._run(self.programs.carry_out("record", name, self.programs.record(validate_name(name))))

    def records(self, prefix: str = "") -> list[LockRecord]:
        program = self.programs.records(validate_prefix(prefix))
        return _by_name(self._run(self.programs.carry_out("records", None, program)), prefix)

    def force_release(self, name: str) -> bool:
        program = self.programs.force_release(validate_name(name))
        return self._run(self.programs.carry_out("force_release", name, program))

    def forget_fire_time(self, name: str) -> bool:
        """Forget the newest fire time that was granted for ``name``; then any fire time can be granted again.

        For operators, after a replica with a wrong clock has run. False: there was none.
        """
        program = self.programs.forget_fire_time(validate_name(name))
        return self._run(self.programs.carry_out("forget_fire_time", name, program))

    def take_over(self, request: LockRequest) -> Lease:
        return self._run(self.programs.take_over(request))

    def prune(self, unused_for: Duration) -> int:
        unused = parse_duration(unused_for, "unused_for", zero=True)
        return self._run(self.programs.carry_out("prune", None, self.programs.prune(unused)))

    def create_schema(self) -> None:
        return self._run(self.programs.carry_out("create_schema", None, self.programs.create_schema()))

    def _run(self, program: Program[Any, Any, T]) -> T:
        timeout = self.programs.timeout
        until = None if timeout is None else monotonic() + timeout

        def execute(command: Any) -> Any:
            seconds = _left(until)
            if isinstance(command, Undo):
                return self._undo_in_background(command, seconds)
            if seconds == 0:
                raise TimedOut("the requests before the next one", sent=False)
            return self._client.execute(command, seconds)

        return run(program, execute)

    def _undo_in_background(self, command: Undo, seconds: float | None) -> None:
        """In another thread: the caller waits for it only as long as its own operation may take."""
        from concurrent.futures import Future, wait  # late: needed when something has failed only

        useful_until = monotonic() + command.useful_for

        def undo() -> None:
            try:
                if monotonic() < useful_until:  # it may have waited for a thread
                    self._run(command.program)
            except Exception as error:
                # It ends by itself, lock_at_most_for after it was granted.
                logger.debug("could not undo: %s", error)

        try:
            future: Future[None] = self._undo_workers.submit(undo)
        except RuntimeError:  # no thread can be started
            return
        finish_at_exit(future)  # after Ctrl-C the process may end before the undo has
        wait([future], DEFAULT_TIMEOUT.total_seconds() if seconds is None else seconds)


class AsyncProgramProvider(AsyncLockProvider):
    """An :class:`AsyncLockProvider` from programs and a client.

    The only place where cancellation is shielded: an operation that was begun is carried out to its end in a task of
    its own, so that a release cannot be overtaken by an extension, nor a driver lose a connection. An acquire whose
    caller was cancelled is undone.
    """

    def __init__(self, programs: StorePrograms, client: AsyncStoreClient) -> None:
        self.programs = programs
        self._client = client

    async def acquire(self, request: LockRequest) -> Lease | None:
        return await self._run(self.programs.acquire(request), when_abandoned=self.undo)

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return await self._run(self.programs.extend(lease, lock_at_most_for))

    async def release(self, lease: Lease) -> bool:
        return await self._run(self.programs.release(lease))

    async def undo(self, lease: Lease) -> bool:
        """See :meth:`ProgramProvider.undo`."""
        return await self._run(self.programs.undo(lease))

    async def record(self, name: str) -> LockRecord | None:
        return await self._run(self.programs.carry_out("record", name, self.programs.record(validate_name(name))))

    async def records(self, prefix: str = "") -> list[LockRecord]:
        program = self.programs.records(validate_prefix(prefix))
        return _by_name(await self._run(self.programs.carry_out("records", None, program)), prefix)

    async def force_release(self, name: str) -> bool:
        program = self.programs.force_release(validate_name(name))
        return await self._run(self.programs.carry_out("force_release", name, program))

    async def forget_fire_time(self, name: str) -> bool:
        """See :meth:`ProgramProvider.forget_fire_time`."""
        program = self.programs.forget_fire_time(validate_name(name))
        return await self._run(self.programs.carry_out("forget_fire_time", name, program))

    async def take_over(self, request: LockRequest) -> Lease:
        return await self._run(self.programs.take_over(request), when_abandoned=self.undo)

    async def prune(self, unused_for: Duration) -> int:
        unused = parse_duration(unused_for, "unused_for", zero=True)
        return await self._run(self.programs.carry_out("prune", None, self.programs.prune(unused)))

    async def create_schema(self) -> None:
        return await self._run(self.programs.carry_out("create_schema", None, self.programs.create_schema()))

    async def _run(self, program: Program[Any, Any, T], when_abandoned: Callable[[Lease], Any] | None = None) -> T:
        from shedlock_py._aio import shielded  # late: loads asyncio

        return await shielded(self._run_here(program), when_abandoned)

    async def _run_here(self, program: Program[Any, Any, T]) -> T:
        timeout = self.programs.timeout
        until = None if timeout is None else monotonic() + timeout

        async def execute(command: Any) -> Any:
            seconds = _left(until)
            if isinstance(command, Undo):
                return await self._undo_in_background(command, seconds)
            if seconds == 0:
                raise TimedOut("the requests before the next one", sent=False)
            return await self._client.execute(command, seconds)

        return await run_async(program, execute)

    async def _undo_in_background(self, command: Undo, seconds: float | None) -> None:
        """In another task: the caller waits for it only as long as its own operation may take."""
        import asyncio

        async def undo() -> None:
            try:
                await self._run_here(command.program)
            except Exception as error:
                # It ends by itself, lock_at_most_for after it was granted.
                logger.debug("could not undo: %s", error)

        task = asyncio.create_task(undo())
        _background.add(task)
        task.add_done_callback(_background.discard)
        await asyncio.wait({task}, timeout=DEFAULT_TIMEOUT.total_seconds() if seconds is None else seconds)


_background: set[Any] = set()  # the event loop itself keeps only weak references


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - monotonic())


def _by_name(records: list[LockRecord], prefix: str) -> list[LockRecord]:
    """Filtered here as well: a store may fold case, or find a prefix by a pattern."""
    return sorted((record for record in records if record.name.startswith(prefix)), key=lambda record: record.name)


# For clients


class _Permit:
    """One of :class:`Permits`."""

    __slots__ = ("__weakref__",)


class Permits:
    """So many threads at a time, with a time limit, also where a signal handler raises at any moment.

    ``threading.Semaphore`` is Python code around a lock, and an exception in there keeps the lock for ever. Here each
    step is one atomic call. A permit that an exception makes a thread lose is deleted by Python, which takes it out of
    the set of all of them; the next thread that waits adds another. (``SimpleQueue.get(timeout)`` may wait for ever if
    another thread takes the item at the end of the time.)
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._refill()

    def _refill(self) -> None:
        self._waiting: deque[Any] = deque()  # locks of the threads that wait
        self._free: deque[_Permit] = deque()
        self._all: set[ReferenceType[_Permit]] = set()
        self._add_missing()
        self._process = os.getpid()

    def _add_missing(self) -> None:
        while len(self._all) < self._count:
            permit = _Permit()
            self._all.add(ref(permit, self._all.discard))
            self._free.append(permit)

    @contextmanager
    def one_until(self, until: float) -> Iterator[None]:
        """Hold a permit. :raises TimedOut: there was none until that moment, in monotonic seconds."""
        if self._process != os.getpid():
            self._refill()  # the threads of the parent process do not give theirs back here
        permit = self._take(until)
        try:
            if monotonic() >= until:  # the threads that had it until now gave up at the same moment
                raise TimedOut("a free connection", sent=False)
            yield
        finally:
            if len(self._all) <= self._count:  # else two threads have replaced the same one
                self._free.append(permit)
            self._wake()

    def _take(self, until: float) -> _Permit:
        while True:
            with suppress(IndexError):
                return self._free.popleft()
            left = until - monotonic()
            if left <= 0:
                raise TimedOut("a free connection", sent=False)
            self._add_missing()
            woken = threading.Lock()
            woken.acquire()
            self._waiting.append(woken)
            try:
                if not self._free:  # else it was given back before this thread was in the queue
                    woken.acquire(timeout=min(left, _LOOK_SECONDS))
            finally:
                try:
                    self._waiting.remove(woken)
                except ValueError:  # it was woken: if it takes no permit, another thread may
                    if self._free:
                        self._wake()

    def _wake(self) -> None:
        with suppress(IndexError, RuntimeError):
            self._waiting.popleft().release()


_LOOK_SECONDS = 0.1
"""A thread that waits looks this often for a permit that another one has lost."""


def call_within(
    pool: WorkerPool,
    seconds: float | None,
    waiting_for: str,
    function: Callable[[], T],
    discard: Callable[[T], object],
) -> T:
    """What ``function`` returns or raises, in a thread of ``pool``: for calls that drivers cannot limit, such as
    opening a connection to a host whose name must be looked up.

    :param discard: called with a result that comes too late.
    :raises TimedOut: after ``seconds``; nothing was sent.
    """
    if seconds is None:
        return function()
    from concurrent.futures import Future, wait

    results: list[T] = []
    # Which comes first, the thread with its result or the caller that gives up: setdefault() is one atomic step.
    first: dict[str, str] = {}

    def work() -> T:
        result = function()
        results.append(result)
        if first.setdefault("is", "result") == "caller":
            discard(result)
        return result

    future: Future[T] | None = None
    try:
        try:
            future = pool.submit(work)
        except RuntimeError:  # no thread can be started: better without the limit than not at all
            return function()
        done, _ = wait([future], seconds)
        if not done:
            raise TimedOut(waiting_for, sent=False)
        return future.result()
    except BaseException:  # of a signal handler, too
        if future is not None:
            future.cancel()  # it may still wait for a thread
        if first.setdefault("is", "caller") == "result":
            discard(results[0])
        raise


@asynccontextmanager
async def within(seconds: float | None, waiting_for: str, *, sent: bool) -> AsyncIterator[asyncio.Timeout]:
    """A time limit for async clients, which gets the ``asyncio.Timeout`` that it may reschedule.

    A reply counts that arrived while something else blocked the event loop: it is read in the :data:`_MOMENT` after
    the limit. ``asyncio.timeout`` alone would cancel the task that such a reply has just woken.

    :raises TimedOut: after ``seconds``.
    """
    import asyncio  # late: sync programs do without

    limit = asyncio.timeout(None)
    try:
        async with limit:
            if seconds is None:
                yield limit
                return
            loop = asyncio.get_running_loop()
            timer = loop.call_later(seconds, lambda: limit.reschedule(loop.time() + _MOMENT))
            try:
                yield limit
            finally:
                timer.cancel()
    except TimeoutError as error:
        if not limit.expired():
            raise  # the driver's own
        raise TimedOut(waiting_for, sent=sent) from error


# The options that every provider has, in its constructor and in its URL

OPTIONS = ("timeout", "fire_time_tolerance")


def split_options(url: str, names: Collection[str] = OPTIONS) -> tuple[str, dict[str, str]]:
    """``url`` without the query parameters ``names``, and those."""
    start, question_mark, query = url.partition("?")
    query, hash_mark, fragment = query.partition("#")
    parts: Sequence[str] = query.split("&") if query else ()
    options = {name: unquote_plus(value) for name, _, value in (part.partition("=") for part in parts) if name in names}
    rest = "&".join(part for part in parts if part.partition("=")[0] not in names)
    return start + (question_mark + rest if rest else "") + hash_mark + fragment, options


def parse_timeout(timeout: Duration | None, in_url: str | None, *, is_managed: bool) -> float | None:
    """Seconds that an operation may take, from the constructor's option or else from the URL; None: no limit of ours.

    A bare number in a URL is seconds.

    :param is_managed: the provider opens its own connections; else the user's client has limits of its own.
    :raises ConfigurationError: no duration, or a limit for a client that is not ours.
    """
    if not is_managed:
        if timeout is not None:
            raise ConfigurationError(
                "timeout= is for providers that are made from a URL: set the time limits of your own engine or client "
                "where you make it"
            )
        return None
    if timeout is None and in_url is not None:
        timeout = float(in_url) if _is_number(in_url) else in_url
    return parse_duration(DEFAULT_TIMEOUT if timeout is None else timeout, "timeout").total_seconds()


def parse_tolerance(tolerance: Duration | None, in_url: str | None) -> timedelta:
    """How far a fire time may lie in the future of the store's clock, from the constructor's option or the URL."""
    if tolerance is None:
        tolerance = in_url if in_url is not None else DEFAULT_FIRE_TIME_TOLERANCE
    return parse_duration(tolerance, "fire_time_tolerance", zero=True)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
