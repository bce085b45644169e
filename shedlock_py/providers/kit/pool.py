"""A pool of connections for threads: how long a request waits for one, and when one is closed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar
from weakref import ReferenceType, ref

from shedlock_py.errors import ConfigurationError, ProviderError
from shedlock_py.providers.kit.failures import NotSent, TimedOut
from shedlock_py.runtime.process import is_from_signal, monotonic
from shedlock_py.runtime.threads import WorkerPool

T = TypeVar("T")
C = TypeVar("C")
_NONE: Any = None
"""In place of a connection, where a slot has none."""

FREE_CONNECTION = "a free connection"
CONNECTION = "a connection"


def seconds_left(until: float) -> float:
    """Seconds from now until that moment of the monotonic clock, at least 0."""
    return max(0.0, until - monotonic())


class Lent(Generic[C]):
    """A connection in use by a ``with`` block, which returns it to its pool at its end.

    :ivar is_good: set it True when the connection can be used again: after a reply, or an error reply of a healthy
        server. Otherwise it is closed, and so are all connections of the pool that are as old: the server is down, or
        its host name means another server now.
    """

    __slots__ = ("_generation", "_lane", "_pool", "_slot", "connection", "is_good")

    def __init__(
        self, lane: _Lane[C] = _NONE, slot: _Slot = _NONE, connection: C = _NONE, generation: object = None
    ) -> None:
        self.connection = connection
        self.is_good = False
        self._generation = generation
        """The pool's, when the connection was opened; None: it is not open."""
        self._lane = lane
        self._slot = slot
        self._pool: ConnectionPool[C] = _NONE

    def __enter__(self) -> Lent[C]:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool._give_back(self)

    def _renewed(self) -> Lent[C]:
        """The same connection and slot for the next user: a traceback may keep this object for long."""
        slot, self._slot = self._slot, _NONE
        return Lent(self._lane, slot, self.connection, self._generation)


class _Slot:
    """The right to one of a pool's connections. Only the :class:`Lent` that has it now refers to it."""

    __slots__ = ("__weakref__",)


class _Lane(Generic[C]):
    """Some slots of a pool, each in a :class:`Lent`, and the threads that wait for one.

    It survives exceptions that a signal handler raises at any moment: ``threading.Semaphore`` is Python code around a
    lock, and an exception in there keeps the lock for ever. Here each step is one atomic call. If an exception makes a
    thread lose its slot, Python deletes the slot, which takes it out of the set of all slots; the next thread that
    waits adds another. (``SimpleQueue.get(timeout)`` may wait for ever if another thread takes the item at the end of
    the time.)
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._slots: set[ReferenceType[_Slot]] = set()
        self.waiting: deque[Any] = deque()
        """Locks of the threads that wait."""
        self.free: deque[Lent[C]] = deque()
        """Those with open connections are on the right."""
        self.add_missing()

    def add_missing(self) -> None:
        while len(self._slots) < self._count:
            slot = _Slot()
            self._slots.add(ref(slot, self._slots.discard))
            self.free.appendleft(Lent(self, slot))

    def put(self, idle: Lent[C]) -> None:
        if len(self._slots) <= self._count:  # else two threads have replaced the same slot
            if idle.connection is None:
                self.free.appendleft(idle)
            else:
                self.free.append(idle)
        if self.waiting:
            self.wake()

    def wake(self) -> None:
        """Wake one thread that waits."""
        with suppress(IndexError):
            while True:
                with suppress(RuntimeError):  # it was woken by the other lane
                    self.waiting.popleft().release()
                    return


class ConnectionPool(Generic[C]):
    """The connections of one process, for threads.

    A pool of a parent process must not be used in a forked child: keep it in a ``kit.PerProcess``.

    :param connect: opens a connection by a moment of the monotonic clock, and raises the driver's own errors. It runs
        in a daemon thread, because no driver has a time limit for a DNS lookup.
    :param disconnect: closes a connection, without waiting. Its errors are ignored.
    :param size: the most connections at a time.
    :param reserved: so many are kept for urgent requests, so that no lease ends while its heartbeat waits for an
        acquire.
    :param name: of the threads that connect.
    :param connect_in_thread: False for a driver that connects to no server.
    :param poll_seconds: a waiting thread checks this often for a slot that another thread has lost.
    """

    def __init__(
        self,
        connect: Callable[[float], C],
        disconnect: Callable[[C], object],
        *,
        size: int,
        reserved: int,
        name: str,
        connect_in_thread: bool = True,
        poll_seconds: float = 0.1,
    ) -> None:
        self._connect = connect
        self._disconnect = disconnect
        self._poll_seconds = poll_seconds
        reserved = min(reserved, size - 1)
        self._for_all: _Lane[C] = _Lane(size - reserved)
        self._for_urgent: _Lane[C] = _Lane(reserved)
        self._generation = object()
        self._workers = WorkerPool(size, name) if connect_in_thread else None

    def connection(self, until: float, *, is_urgent: bool) -> Lent[C]:
        """A connection, for a ``with`` block.

        :param until: a moment of the monotonic clock.
        :param is_urgent: the request may use the reserved connections, too.
        :raises TimedOut: there was none until that moment; nothing was sent.
        :raises NotSent: from the driver's error: no connection could be opened.
        """
        try:
            lent = self._for_all.free.pop()
        except IndexError:
            lent = self._wait((self._for_all, self._for_urgent) if is_urgent else (self._for_all,), until)
        lent._pool = self
        try:
            if until <= monotonic():  # the threads that had it until now gave up at the same moment
                lent.is_good = True
                raise TimedOut(FREE_CONNECTION, sent=False)
            if lent._generation is not self._generation:
                self._close(lent)
                generation = self._generation
                lent.connection = self._opened(until)
                lent._generation = generation
        except BaseException:
            self._give_back(lent)
            raise
        return lent

    def outdate(self) -> None:
        """Do not use the present connections again. Each is closed when it would be taken, or is returned."""
        self._generation = object()

    def close(self) -> None:
        """Close the idle connections now, and the others when they are returned."""
        self.outdate()
        self._close_idle()

    def _close_idle(self) -> None:
        """Close the idle connections that are outdated."""
        for lane in (self._for_all, self._for_urgent):
            idle: list[Lent[C]] = []
            with suppress(IndexError):
                while True:
                    idle.append(lane.free.popleft())
            for lent in idle:
                if lent._generation is not self._generation:
                    self._close(lent)
                lane.put(lent)

    def _wait(self, lanes: tuple[_Lane[C], ...], until: float) -> Lent[C]:
        while True:
            for lane in lanes:
                with suppress(IndexError):
                    return lane.free.pop()
            left = seconds_left(until)
            if not left:
                raise TimedOut(FREE_CONNECTION, sent=False)
            woken = threading.Lock()
            woken.acquire()
            for lane in lanes:
                lane.add_missing()
                lane.waiting.append(woken)
            try:
                if not any(lane.free for lane in lanes):  # else a slot was returned before this thread was in the queue
                    woken.acquire(timeout=min(left, self._poll_seconds))
            finally:
                for lane in lanes:
                    try:
                        lane.waiting.remove(woken)
                    except ValueError:  # another thread woke this one: if this one takes no slot, a third thread may
                        if lane.free:
                            lane.wake()

    def _give_back(self, lent: Lent[C]) -> None:
        is_current = lent._generation is self._generation
        is_fault = is_current and not lent.is_good
        try:
            if is_fault:
                self.outdate()
            if not is_current or is_fault:
                self._close(lent)
        finally:
            lent._lane.put(lent._renewed())
        if is_fault:
            self._close_idle()

    def _close(self, lent: Lent[C]) -> None:
        connection, lent.connection, lent._generation = lent.connection, _NONE, None
        if connection is not None:
            self._disconnect_quietly(connection)

    def _disconnect_quietly(self, connection: C) -> None:
        with driver_errors(is_connecting=False):
            self._disconnect(connection)

    def _opened(self, until: float) -> C:
        def connect() -> C:
            if not seconds_left(until):
                raise TimedOut(CONNECTION, sent=False)  # the thread came too late: the caller has given up
            with driver_errors(is_connecting=True):
                return self._connect(until)

        if self._workers is None:
            return connect()
        return call_within(self._workers, seconds_left(until), CONNECTION, connect, self._disconnect_quietly)


@contextmanager
def driver_errors(*, is_connecting: bool) -> Iterator[None]:
    """Raise :class:`NotSent` from an error of the driver that connects; ignore one of the driver that disconnects."""
    try:
        yield
    except (NotSent, TimedOut, ProviderError, ConfigurationError):
        raise
    except Exception as error:
        if is_from_signal(error):
            raise
        if is_connecting:
            raise NotSent from error


def call_within(
    pool: WorkerPool,
    seconds: float | None,
    waiting_for: str,
    function: Callable[[], T],
    discard: Callable[[T], object] | None = None,
    *,
    sent: bool = False,
) -> T:
    """Call ``function`` in a thread of ``pool``: for calls that drivers cannot limit, such as a DNS lookup.

    :param discard: called with a result that comes too late, if that has to be closed.
    :param sent: ``function`` sends commands, so that one may have reached the store when the time is over.
    :raises TimedOut: after ``seconds``; never if they are None.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    # Which comes first, the thread with its result or the caller that gives up: setdefault() is one atomic step.
    first: dict[str, str] = {}
    # The caller shares no future with the thread: an exception of a signal handler can leave one locked for ever.
    ended = threading.Lock()
    ended.acquire()

    def work() -> None:
        try:
            if first:
                return  # the caller gave up before a thread was free
            results.append(function())
            if first.setdefault("is", "result") == "caller" and discard is not None:
                discard(results[0])
        except BaseException as error:
            errors.append(error)
        finally:
            ended.release()

    try:
        try:
            pool.submit(work)
        except RuntimeError:  # no thread can be started: better without the limit than not at all
            return function()
        if not ended.acquire(timeout=-1 if seconds is None else seconds):
            raise TimedOut(waiting_for, sent=sent)
        if errors:
            raise errors.pop()
        return results[0]
    except BaseException:  # of a signal handler, too
        if first.setdefault("is", "caller") == "result" and discard is not None:
            discard(results[0])
        raise
