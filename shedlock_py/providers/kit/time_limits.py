"""Time limits for calls that drivers cannot limit."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from shedlock_py.errors import ConfigurationError, ProviderError
from shedlock_py.providers.kit.failures import NotSent, TimedOut
from shedlock_py.runtime.process import is_from_signal, monotonic
from shedlock_py.runtime.threads import WorkerPool

T = TypeVar("T")

ORDER_SECONDS = 1.0
"""How long an interrupted command waits for its reply, so that its undo cannot overtake it in the store."""
_READ_SECONDS = 0.02
"""After the event loop was blocked, the time it has to read the replies that have arrived."""
_AGAIN_SECONDS = 0.25
"""Time until a request is cancelled a second time, if the first cancellation did not end it."""


def seconds_left(until: float) -> float:
    """Return the seconds until that moment of the monotonic clock, at least 0."""
    return max(0.0, until - monotonic())


@contextmanager
def driver_errors(*, is_connecting: bool) -> Iterator[None]:
    """Raise :class:`NotSent` from an error of a driver that connects. Ignore an error of a driver that disconnects."""
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
    in_order: bool = False,
) -> T:
    """Call ``function`` in a thread of ``pool``: for calls that drivers cannot limit, such as a DNS lookup.

    :param discard: called with a result that comes too late and must be closed.
    :param sent: True if ``function`` sends commands. A command may have reached the store when the time is over.
    :param in_order: True to wait up to :data:`ORDER_SECONDS` for the end of ``function`` after an exception of a signal
        handler, such as Ctrl-C.
    :raises TimedOut: after ``seconds``. Never if ``seconds`` is None.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    # Records which was first: the thread's result, or the caller that gives up. setdefault() is one atomic step.
    first: dict[str, str] = {}
    begun: list[bool] = []
    # The caller and the thread share no future: an exception from a signal handler can leave a future locked for ever.
    ended = threading.Lock()
    ended.acquire()

    def work() -> None:
        try:
            begun.append(True)  # before it looks at `first`: the caller looks at both in the other order
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
        except RuntimeError:  # no thread can be started: call it without a limit
            return function()
        if not ended.acquire(timeout=-1 if seconds is None else seconds):
            raise TimedOut(waiting_for, sent=sent)
        if errors:
            raise errors.pop()
        return results[0]
    except BaseException as error:  # also from a signal handler
        if first.setdefault("is", "caller") == "result" and discard is not None:
            discard(results[0])
        if in_order and is_from_signal(error) and begun and not results and not errors:
            ended.acquire(timeout=ORDER_SECONDS)
        raise


@asynccontextmanager
async def within(seconds: float | None, waiting_for: str, *, sent: bool) -> AsyncIterator[None]:
    """Limit the time of a block, for async clients.

    A reply counts if it arrived while other code blocked the event loop: the loop has :data:`_READ_SECONDS` after the
    limit to read it. ``asyncio.timeout`` alone would cancel the task that the reply has woken.

    A driver may lose a cancellation: ``asyncio.wait_for`` of Python 3.11 does if the awaited object has just completed.
    ``asyncio.timeout`` cancels only once, so a second timeout follows.

    :raises TimedOut: after ``seconds``.
    """
    import asyncio

    limit, second_limit = asyncio.timeout(None), asyncio.timeout(None)
    try:
        async with second_limit, limit:
            if seconds is None:
                yield
                return
            loop = asyncio.get_running_loop()

            def end() -> None:
                at = loop.time() + _READ_SECONDS
                limit.reschedule(at)
                second_limit.reschedule(at + _AGAIN_SECONDS)

            timer = loop.call_later(seconds, end)
            try:
                yield
            finally:
                timer.cancel()
    except TimeoutError:
        if not limit.expired() and not second_limit.expired():
            raise  # the driver's own TimeoutError
        raise TimedOut(waiting_for, sent=sent) from None
