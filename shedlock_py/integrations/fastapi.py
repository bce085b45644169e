"""For FastAPI, Starlette and other ASGI applications: a lifespan, and a job that repeats.

Needs neither of them: :func:`lifespan` returns what they take, and :func:`repeat_every` needs asyncio only.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import copy_context
from dataclasses import replace
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Unpack

from shedlock_py.config import configure_store, is_configured, lock_request
from shedlock_py.durations import Duration, parse_duration
from shedlock_py.errors import ConfigurationError
from shedlock_py.events import logger as default_logger
from shedlock_py.guard import attempt_async
from shedlock_py.options import GuardOptions, LockOptions, is_async_provider
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.request import LockRequest
from shedlock_py.texts import quoted
from shedlock_py.urls import async_provider_from_url

__all__ = ["lifespan", "repeat_every"]

Provider = AsyncLockProvider | LockProvider
Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_running: set[asyncio.Task[None]] = set()
"""An event loop keeps weak references to its tasks only."""


def lifespan(
    provider: Provider | str,
    *,
    start: Iterable[Any] = (),
    create_schema: bool = True,
    stop_within: Duration = "5s",
    then: Lifespan | None = None,
    **defaults: Any,
) -> Lifespan:
    """A lifespan: ``FastAPI(lifespan=lifespan("postgresql://…", start=[scheduler, elector, clean_up]))``.

    At the start of each worker: ``configure()``, the tables, then what is in ``start``, in this order. At the end all
    that is stopped, in reverse order: coroutine jobs are cancelled and release their locks, others are waited for, as
    long as they take. Then the connections are closed.

    :param provider: a URL, as for :func:`async_provider_from_url`, or a provider of yours, which is not closed.
    :param start: what runs while the application does: a scheduler of APScheduler, an elector, ``lead(…)``, or a
        function of :func:`repeat_every`.
    :param create_schema: call ``create_schema()``, which is safe in all workers at once.
    :param stop_within: how long the end waits for the cancelled coroutine jobs of a scheduler.
    :param then: the application's own lifespan, which begins after all this and ends before it.
    :param defaults: as for :func:`configure`: ``default_lock_at_most_for``, ``listeners``, …
    :raises ConfigurationError: something in ``start`` cannot be started.
    """
    if not isinstance(provider, str):
        is_async_provider(provider)  # a mistake shows now
    items, seconds = list(start), parse_duration(stop_within, "stop_within").total_seconds()
    for item in items:
        if not (inspect.iscoroutinefunction(item) or (hasattr(item, "start") and hasattr(item, _stop_of(item)))):
            raise ConfigurationError(
                f"start=[…]: {quoted(item)} is no scheduler, elector, lead(…), or function of repeat_every"
            )

    @asynccontextmanager
    async def running(app: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            opened: Any = async_provider_from_url(provider) if isinstance(provider, str) else provider
            if opened is not provider and hasattr(opened, "close"):
                stack.push_async_callback(opened.close)
            stack.enter_context(configure_store(opened, **defaults))
            if create_schema:
                await (opened.create_schema() if is_async_provider(opened) else asyncio.to_thread(opened.create_schema))
            for item in items:
                await _start(item, stack, seconds)
            if then is not None:
                await stack.enter_async_context(then(app))
            yield

    return running


def _stop_of(item: object) -> str:
    return "shutdown" if hasattr(item, "shutdown") else "stop"  # of a scheduler; of an elector


async def _start(item: Any, stack: AsyncExitStack, stop_within: float) -> None:
    """Start ``item``, and stop it when ``stack`` is left."""
    if inspect.iscoroutinefunction(item):
        task = await item()
        if isinstance(task, asyncio.Task):
            stack.push_async_callback(_cancel, task)
        return
    starting, stop = item.start(), getattr(item, _stop_of(item))
    if inspect.isawaitable(starting):
        await starting
        stack.push_async_callback(stop)
        return
    if hasattr(item, "shutdown"):
        stack.push_async_callback(_wait_for_jobs, stop_within)
    stack.push_async_callback(asyncio.to_thread, stop)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


async def _wait_for_jobs(seconds: float) -> None:
    """Wait until the cancelled coroutine jobs have released their locks."""
    from shedlock_py.integrations.apscheduler.worker import JOB_TASK  # late: there is a scheduler

    await asyncio.sleep(0)  # an AsyncIOScheduler shuts down in the next iteration of the event loop
    jobs = {task for task in asyncio.all_tasks() if task.get_name().startswith(JOB_TASK)}
    if jobs:
        await asyncio.wait(jobs, timeout=seconds)


def repeat_every(
    *,
    seconds: float,
    wait_first: bool | Duration | None = None,
    logger: logging.Logger | None = None,
    raise_exceptions: bool = False,
    max_repetitions: int | None = None,
    on_complete: Callable[[], Any] | None = None,
    on_exception: Callable[[Exception], Any] | None = None,
    lock: str | None = None,
    **options: Unpack[GuardOptions[Provider]],
) -> Callable[[Callable[[], Any]], Callable[[], Awaitable[asyncio.Task[None]]]]:
    """``repeat_every`` of fastapi-utils, where each repetition runs in one worker of all: ``uvicorn --workers 4``.

    Call the decorated function once in each worker, at its start: ``await clean_up()``, or in ``start`` of
    :func:`lifespan`. It returns the task in which the function is repeated.

    Time is divided into slots of ``seconds``, counted from 1970 UTC. In each slot the function runs once, in the worker
    that gets the lock; a worker that starts in the middle of a slot that was run waits for the next one. A store that
    fails is an error of that repetition.

    A ``def`` runs in a thread, which cannot be stopped: if the task is cancelled, it ends when the function returns,
    and the lock is held until then. ``on_lost="cancel"`` does not stop it either.

    :param wait_first: how long to wait before the first repetition ("5s", seconds, ``timedelta``); True: ``seconds``.
    :param logger: for what the function raises; by default ``shedlock_py``.
    :param raise_exceptions: end with what the function raises, which the task then has.
    :param max_repetitions: end after so many slots, wherever they were run.
    :param on_complete: called after the last of them.
    :param on_exception: called with what the function raises, after that was logged. What it raises is logged as well.
        Both may be coroutine functions.
    :param lock: the lock name; by default the module and name of the function.
    :param options: as for :func:`hold_async`: ``lock_at_most_for``, ``provider``, ``keep_alive``, …
    :raises ConfigurationError: a value that cannot work, or the function has a ``@scheduler_lock``. Durations that do
        not go with the defaults of :func:`configure` are refused by the call that starts the repetition; if
        ``configure()`` is called later, they are an error of each repetition.
    """
    interval = parse_duration(seconds, "seconds")
    LockOptions.parse("repeat_every", options)  # a mistake shows now
    durations = options.pop("lock_at_most_for", None), options.pop("lock_at_least_for", None)
    first = interval if wait_first is True else parse_duration(wait_first or 0, "wait_first", zero=True)
    if max_repetitions is not None and not isinstance(max_repetitions, int):
        raise ConfigurationError(f"max_repetitions must be a whole number or None, not {max_repetitions!r}")

    def decorate(function: Callable[[], Any]) -> Callable[[], Awaitable[asyncio.Task[None]]]:
        if not callable(function):
            raise TypeError(f"repeat_every decorates a function, not {function!r}")
        if not lock and not hasattr(function, "__qualname__"):  # a partial, an object with __call__
            raise ConfigurationError(f"{function!r} has no name: give repeat_every a lock='…'")
        name = lock or f"{function.__module__}.{function.__qualname__}"
        if hasattr(function, "__shedlock__"):
            raise ConfigurationError(
                f"{name}: repeat_every takes the lock itself. Leave @scheduler_lock out; its options go to repeat_every"
            )
        is_async = inspect.iscoroutinefunction(function)

        @wraps(function)  # with the gates that @leader_only left on it
        async def run() -> Any:
            return await _uncancelled(function() if is_async else _run_in_thread(function))

        LockRequest(name, "10m")  # is it a lock name? The durations' defaults may be configured later

        async def attempt_slot(slot: datetime) -> None:
            try:
                request = lock_request(name, *durations, fire_time=slot)
                await attempt_async(replace(request, next_fire_time=slot + interval), run, **options)
            except Exception as error:
                log = logger or default_logger
                log.error("%s failed: %r", name, error, exc_info=error)
                if on_exception is not None:
                    try:
                        await _call(on_exception, error)
                    except Exception:
                        log.exception("%s: on_exception failed", name)
                if raise_exceptions:
                    raise

        async def repeat() -> None:
            await asyncio.sleep(first.total_seconds())
            last, repetitions = None, 0
            while max_repetitions is None or repetitions < max_repetitions:
                now = datetime.now(UTC)
                slot = _EPOCH + (now - _EPOCH) // interval * interval
                if slot != last:  # a timer may be early, by the wall clock
                    await attempt_slot(slot)
                    if not is_async and _is_being_cancelled():
                        raise asyncio.CancelledError  # it came while a thread was waited for
                    last, repetitions = slot, repetitions + 1
                await asyncio.sleep((slot + interval - datetime.now(UTC)).total_seconds())
            if on_complete is not None:
                await _call(on_complete)

        @wraps(function)
        async def begin() -> asyncio.Task[None]:
            if is_configured():  # otherwise the durations' defaults may follow
                lock_request(name, *durations)
            task = asyncio.create_task(repeat(), name=f"repeat {name}")
            _running.add(task)
            task.add_done_callback(_running.discard)
            return task

        return begin

    return decorate


async def _run_in_thread(function: Callable[[], Any]) -> Any:
    """Call ``function`` in a thread, as ``asyncio.to_thread`` does, and wait until it returns.

    A cancellation does not end the wait, because a thread cannot be stopped and the lock must be held until then. The
    caller checks ``Task.cancelling()`` afterwards.
    """
    is_cancelled = False

    def call() -> Any:
        if is_cancelled:
            raise asyncio.CancelledError  # while it waited for a free thread
        return function()

    work = asyncio.get_running_loop().run_in_executor(None, copy_context().run, call)
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            is_cancelled = True
    return work.result()


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _uncancelled(work: Awaitable[Any]) -> Any:
    """Await ``work``. It is an error if that awaits something cancelled: asyncio would end this task without a word."""
    try:
        return await work
    except asyncio.CancelledError as error:
        if _is_being_cancelled():
            raise
        raise RuntimeError("the function awaited something that was cancelled") from error


async def _call(callback: Callable[..., Any], *arguments: object) -> None:
    result = callback(*arguments)
    if inspect.isawaitable(result):
        await _uncancelled(result)
