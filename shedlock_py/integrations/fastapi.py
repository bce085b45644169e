"""For FastAPI, Starlette and other ASGI applications: a lifespan, and a job that repeats.

This module imports neither FastAPI nor Starlette. :func:`repeat_every` needs only asyncio.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from datetime import timedelta
from functools import wraps
from typing import Any, Unpack

from shedlock_py.errors import ConfigurationError
from shedlock_py.guard.repeating import Repetition
from shedlock_py.integrations import drain_schedulers_async, is_scheduler, stop_item, warn_of_running
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.request import LockRequest
from shedlock_py.model.text import quoted
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.settings.defaults import (
    check_kept_alive,
    configure,
    is_configured,
    keep_alive_in_use,
    lock_request,
)
from shedlock_py.settings.options import (
    GuardOptions,
    LockOptions,
    check_keep_alive_limit,
    is_async_provider,
)
from shedlock_py.settings.urls import async_provider_from_url

__all__ = ["lifespan", "repeat_every"]

Provider = AsyncLockProvider | LockProvider
Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]

_RELEASE_SECONDS = 5.0
"""How long the shutdown waits for cancelled jobs to release their locks."""
_repetitions: dict[asyncio.Task[None], Repetition] = {}
"""By task. This also keeps the tasks alive, because an event loop keeps only weak references to them."""


def lifespan(
    provider: Provider | str,
    *,
    start: Iterable[Any] = (),
    create_schema: bool = True,
    drain: Duration = "20s",
    then: Lifespan | None = None,
    **defaults: Any,
) -> Lifespan:
    """Return a lifespan: ``FastAPI(lifespan=lifespan("postgresql://…", start=[scheduler, elector, clean_up]))``.

    At the start, each worker calls ``configure()``, creates the tables, and starts the items of ``start``, in this
    order.

    At the end no new run begins, and running jobs may take the time ``drain``. Then all items stop in reverse order.
    Coroutine jobs that still run are cancelled and release their locks. Last, the connections close. A job in a thread
    cannot be stopped: a warning names it, and its lease is kept until the process ends.

    :param provider: a URL, as for :func:`async_provider_from_url`; or a user-supplied provider, which stays open. A
        scheduler with ``def`` jobs needs ``provider_from_url(url)``, which serves both kinds of jobs.
    :param start: items that run while the application runs: a scheduler of APScheduler, an elector, ``lead(…)``, or a
        function of :func:`repeat_every`.
    :param create_schema: call ``create_schema()``. All workers may do this at once.
    :param drain: how long the shutdown waits for running jobs. Choose some seconds less than the platform's time
        between SIGTERM and SIGKILL (Kubernetes: 30 s).
    :param then: the application's own lifespan. It begins after all items have started, and ends before they stop.
    :param defaults: options of :func:`configure`: ``default_lock_at_most_for``, ``listeners``, …
    :raises ConfigurationError: an item of ``start`` cannot be started.
    """
    if not isinstance(provider, str):
        is_async_provider(provider)  # raises now for an object that is not a provider
    items, seconds = list(start), parse_duration(drain, "drain", zero=True).total_seconds()
    for item in items:
        if not (inspect.iscoroutinefunction(item) or (hasattr(item, "start") and hasattr(item, _stop_of(item)))):
            raise ConfigurationError(
                f"start=[…]: {quoted(item)} is no scheduler, elector, lead(…), or function of repeat_every"
            )

    @asynccontextmanager
    async def context(app: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            opened: Any = async_provider_from_url(provider) if isinstance(provider, str) else provider
            stack.push_async_callback(_close, opened, is_own=opened is not provider)
            stack.enter_context(configure(opened, **defaults))
            if create_schema:
                await (opened.create_schema() if is_async_provider(opened) else asyncio.to_thread(opened.create_schema))
            started: list[Any] = []
            try:
                for item in items:
                    started.append(await _start(item, stack))
                async with nullcontext() if then is None else then(app):
                    yield
            finally:
                await _drain(started, seconds)

    return context


def _stop_of(item: object) -> str:
    return "shutdown" if hasattr(item, "shutdown") else "stop"  # schedulers have shutdown(), electors have stop()


async def _start(item: Any, stack: AsyncExitStack) -> Any:
    """Start ``item``, and stop it when ``stack`` is left. Return the object with the runs: a scheduler or a task."""
    if inspect.iscoroutinefunction(item):
        task = await item()
        if isinstance(task, asyncio.Task):
            stack.push_async_callback(_cancel, task)
        return task
    starting = item.start()
    if inspect.isawaitable(starting):
        await starting
        stack.push_async_callback(item.stop)
        return item
    if is_scheduler(item):
        stack.push_async_callback(_wait_for_cancelled_jobs)
    stack.push_async_callback(asyncio.to_thread, stop_item, item)
    return item


async def _drain(started: list[Any], seconds: float) -> None:
    """Let no new run begin, and wait for at most ``seconds`` until the running jobs have ended."""
    tasks = {item for item in started if isinstance(item, asyncio.Task)}
    for task in tasks:
        repetition = _repetitions.get(task)
        if repetition is not None and repetition.drain is None:
            repetition.drain = timedelta(seconds=seconds)
        task.cancel()  # a run of repeat_every that has begun goes on
    waiting = [asyncio.wait(tasks, timeout=seconds)] if tasks else []
    await asyncio.gather(drain_schedulers_async(started, seconds), *waiting)


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task that still runs after the drain, and wait until it releases its lock. A thread goes on."""
    task.cancel()
    await asyncio.wait({task}, timeout=_RELEASE_SECONDS)


async def _wait_for_cancelled_jobs() -> None:
    """Wait until the cancelled coroutine jobs have released their locks."""
    from shedlock_py.integrations.apscheduler.worker import JOB_TASK  # late: needs APScheduler

    await asyncio.sleep(0)  # an AsyncIOScheduler shuts down in the next iteration of the event loop
    jobs = {task for task in asyncio.all_tasks() if task.get_name().startswith(JOB_TASK)}
    if jobs:
        await asyncio.wait(jobs, timeout=_RELEASE_SECONDS)


async def _close(provider: Any, *, is_own: bool) -> None:
    """Close the connections of a provider that the lifespan opened, unless a thread still needs them."""
    is_used = warn_of_running(provider)
    if is_own and not is_used and hasattr(provider, "close"):
        await provider.close()


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
    drain: Duration | None = None,
    **options: Unpack[GuardOptions[Provider]],
) -> Callable[[Callable[[], Any]], Callable[[], Awaitable[asyncio.Task[None]]]]:
    """Like ``repeat_every`` of fastapi-utils, but each repetition runs in only one worker of ``uvicorn --workers 4``.

    Call the decorated function once in each worker, at its start: ``await clean_up()``, or in ``start`` of
    :func:`lifespan`. It returns the task that repeats the function.

    Time is divided into slots of ``seconds``, counted from 1970 UTC. In each slot the function runs once, in the worker
    that gets the lock. A worker that starts in the middle of a finished slot waits for the next slot. While the store
    is unreachable, the worker tries again until the slot ends, for at most one minute. Any other failure of the store
    is an error of that repetition.

    If the task is cancelled, no new run begins, and a running function may take the time ``drain``. After that, or at a
    second cancellation, it is cancelled. A ``def`` function runs in a thread and cannot be stopped, also not by
    ``on_lost="cancel"``: the task ends and the lock is released when the function returns.

    :param wait_first: how long to wait before the first repetition ("5s", seconds, ``timedelta``). True means
        ``seconds``.
    :param logger: the logger for exceptions of the function. Default: ``shedlock_py``.
    :param raise_exceptions: end the task with the exception of the function.
    :param max_repetitions: end after so many slots, in whichever worker they ran.
    :param on_complete: called after the last repetition.
    :param on_exception: called with the exception of the function, after that was logged. An exception of this callback
        is logged, too. ``on_complete`` and ``on_exception`` may be coroutine functions.
    :param lock: the lock name. Default: the module and name of the function.
    :param drain: how long a run may go on when the task is cancelled. Default: ``drain`` of :func:`lifespan`, or 20 s.
    :param options: as for :func:`hold_async`: ``lock_at_most_for``, ``provider``, ``keep_alive``, ``recover``, …
        ``recover=True`` needs a ``lock_at_most_for`` that is shorter than the slot: no other slot can run while the
        lease of a dead run lasts.
    :raises ConfigurationError: a value cannot work, or the function has a ``@scheduler_lock``. The call that starts the
        repetition refuses durations that conflict with the defaults of :func:`configure`. If ``configure()`` is called
        later, each repetition fails.
    """
    interval = parse_duration(seconds, "seconds")
    parsed = LockOptions.parse("repeat_every", options)
    if parsed.wait is not None:
        raise ConfigurationError("repeat_every takes no wait: it tries again until its slot ends, for at most a minute")
    durations = options.pop("lock_at_most_for", None), options.pop("lock_at_least_for", None)
    first = interval if wait_first is True else parse_duration(wait_first or 0, "wait_first", zero=True)
    wait_for_run = None if drain is None else parse_duration(drain, "drain", zero=True)
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
        LockRequest(name, "10m")  # checks the name only: defaults for durations may be configured later

        @wraps(function)
        async def begin() -> asyncio.Task[None]:
            if is_configured():  # otherwise the defaults may follow
                request = lock_request(name, *durations)
                if parsed.recover and request.lock_at_most_for >= interval:
                    raise ConfigurationError(
                        f"{name}: recover=True needs a lock_at_most_for that is shorter than the slot of {interval}: "
                        f"a run is recovered when its lease has expired, and until then no slot has its run"
                    )
                check_keep_alive_limit(keep_alive_in_use(parsed.keep_alive), request.lock_at_most_for)
                if parsed.recover:
                    check_kept_alive(f"lock {name!r}", parsed.keep_alive)
            repetition = Repetition(
                name=name,
                function=function,
                interval=interval,
                first=first,
                durations=durations,
                options=options,
                drain=wait_for_run,
                logger=logger,
                raise_exceptions=raise_exceptions,
                max_repetitions=max_repetitions,
                on_complete=on_complete,
                on_exception=on_exception,
            )
            task = asyncio.create_task(repetition.repeat(), name=f"repeat {name}")
            _repetitions[task] = repetition
            task.add_done_callback(_repetitions.pop)
            return task

        return begin

    return decorate
