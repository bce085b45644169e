"""Time limits for clients: a bounded number of threads, and calls that end in time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, overload
from weakref import ReferenceType, ref

from shedlock_py._process import OwningProcess, monotonic
from shedlock_py._timers import WorkerPool
from shedlock_py.providers.kit.operation import TimedOut

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

_READ_SECONDS = 0.02
"""Time that an event loop, after it was blocked, has to read the replies that have arrived."""
_AGAIN_SECONDS = 0.25
"""Time after which a request is cancelled again that the first cancellation has not ended."""
_POLL_SECONDS = 0.1
"""A waiting thread checks this often for a permit that another thread has lost."""


@overload
def seconds_left(until: float) -> float: ...
@overload
def seconds_left(until: float | None) -> float | None: ...
def seconds_left(until: float | None) -> float | None:
    """Seconds from now until that moment of the monotonic clock, at least 0; None for None."""
    return None if until is None else max(0.0, until - monotonic())


class _Permit:
    """One of :class:`Permits`."""

    __slots__ = ("__weakref__",)


class Permits:
    """A semaphore for threads with a time limit, which survives exceptions that a signal handler raises at any moment.

    ``threading.Semaphore`` is Python code around a lock, and an exception in there keeps the lock for ever. Here each
    step is one atomic call. If an exception makes a thread lose its permit, Python deletes the permit, which takes it
    out of the set of all permits; the next thread that waits adds another. (``SimpleQueue.get(timeout)`` may wait for
    ever if another thread takes the item at the end of the time.)
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._refill()

    def _refill(self) -> None:
        self._waiting: deque[Any] = deque()  # locks of the threads that wait
        self._free: deque[_Permit] = deque()
        self._all: set[ReferenceType[_Permit]] = set()
        self._add_missing()
        self._owner = OwningProcess()

    def _add_missing(self) -> None:
        while len(self._all) < self._count:
            permit = _Permit()
            self._all.add(ref(permit, self._all.discard))
            self._free.append(permit)

    @contextmanager
    def one_until(self, until: float) -> Iterator[None]:
        """Hold a permit. :raises TimedOut: there was none until that moment, in monotonic seconds."""
        if not self._owner.is_current():
            self._refill()  # the threads of the parent process do not return their permits here
        permit = self._take(until)
        try:
            if not seconds_left(until):  # the threads that had it until now gave up at the same moment
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
            left = seconds_left(until)
            if not left:
                raise TimedOut("a free connection", sent=False)
            self._add_missing()
            woken = threading.Lock()
            woken.acquire()
            self._waiting.append(woken)
            try:
                if not self._free:  # else another thread returned one before this thread was in the queue
                    woken.acquire(timeout=min(left, _POLL_SECONDS))
            finally:
                try:
                    self._waiting.remove(woken)
                except ValueError:  # another thread woke this one: if this one takes no permit, a third thread may
                    if self._free:
                        self._wake()

    def _wake(self) -> None:
        with suppress(IndexError, RuntimeError):
            self._waiting.popleft().release()


def call_within(
    pool: WorkerPool,
    seconds: float | None,
    waiting_for: str,
    function: Callable[[], T],
    discard: Callable[[T], object],
) -> T:
    """Call ``function`` in a thread of ``pool``: for calls that drivers cannot limit, such as a DNS lookup.

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
    """A time limit for async clients. Yields the ``asyncio.Timeout``, which the client may reschedule.

    A reply counts that arrived while something else blocked the event loop: the loop reads it in the
    :data:`_READ_SECONDS` after the limit. ``asyncio.timeout`` alone would cancel the task that the reply has woken.

    A driver may lose a cancellation: ``asyncio.wait_for`` of Python 3.11 does, if what it waits for has just been done.
    ``asyncio.timeout`` cancels once; therefore a second one follows.

    :raises TimedOut: after ``seconds``.
    """
    import asyncio  # late: sync programs do without

    limit, second_limit = asyncio.timeout(None), asyncio.timeout(None)
    try:
        async with second_limit, limit:
            if seconds is None:
                yield limit
                return
            loop = asyncio.get_running_loop()

            def end() -> None:
                at = loop.time() + _READ_SECONDS
                limit.reschedule(at)
                second_limit.reschedule(at + _AGAIN_SECONDS)

            timer = loop.call_later(seconds, end)
            try:
                yield limit
            finally:
                timer.cancel()
    except TimeoutError:
        if not limit.expired() and not second_limit.expired():
            raise  # the driver's own
        raise TimedOut(waiting_for, sent=sent) from None
