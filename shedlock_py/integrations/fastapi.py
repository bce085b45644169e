"""For FastAPI, Starlette and other ASGI applications: a lifespan, and a job that repeats.

Needs neither of them: :func:`lifespan` returns what they take, and :func:`repeat_every` needs asyncio only.
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
    configure_store,
    is_configured,
    keep_alive_limit,
    lock_request,
)
from shedlock_py.settings.options import (
    GuardOptions,
    LockOptions,
    check_keep_alive_limit,
    is_async_provider,
    parse_keep_alive,
)
from shedlock_py.settings.urls import async_provider_from_url

__all__ = ["lifespan", "repeat_every"]

Provider = AsyncLockProvider | LockProvider
Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]

_RELEASE_SECONDS = 5.0
"""For how long the end waits for cancelled jobs to release their locks."""
_repetitions: dict[asyncio.Task[None], Repetition] = {}
"""Also because an event loop keeps weak references to its tasks only."""


def lifespan(
    provider: Provider | str,
    *,
    start: Iterable[Any] = (),
    create_schema: bool = True,
    drain: Duration = "20s",
    then: Lifespan | None = None,
    **defaults: Any,
) -> Lifespan:
    """A lifespan: ``FastAPI(lifespan=lifespan("postgresql://…", start=[scheduler, elector, clean_up]))``.

    At the start of each worker: ``configure()``, the tables, then what is in ``start``, in this order.

    At the end no new run begins, and the jobs that run have the time ``drain``. Then all is stopped, in reverse order.
    Coroutine jobs that still run are cancelled and release their locks. Last, the connections are closed. A job in a
    thread cannot be stopped: a warning names it, and its lease is kept until the process ends.

    :param provider: a URL, as for :func:`async_provider_from_url`, or a provider of yours, which is not closed. A
        scheduler with jobs that are ordinary functions needs ``provider_from_url(url)``, which serves both kinds.
    :param start: what runs while the application does: a scheduler of APScheduler, an elector, ``lead(…)``, or a
        function of :func:`repeat_every`.
    :param create_schema: call ``create_schema()``, which is safe in all workers at once.
    :param drain: how long the end waits for jobs that run. Shorter than the platform's time between SIGTERM and SIGKILL
        (Kubernetes: 30 s), with some seconds for the rest of the shutdown.
    :param then: the application's own lifespan, which begins after all this and ends before it.
    :param defaults: as for :func:`configure`: ``default_lock_at_most_for``, ``listeners``, …
    :raises ConfigurationError: something in ``start`` cannot be started.
    """
    if not isinstance(provider, str):
        is_async_provider(provider)  # a mistake shows now
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
            stack.enter_context(configure_store(opened, **defaults))
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
    return "shutdown" if hasattr(item, "shutdown") else "stop"  # of a scheduler; of an elector


async def _start(item: Any, stack: AsyncExitStack) -> Any:
    """Start ``item``, and stop it when ``stack`` is left. Returns what has runs to wait for: a scheduler or a task."""
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
    """Let no new run begin, and wait until those that run have ended, for ``seconds`` at most."""
    tasks = {item for item in started if isinstance(item, asyncio.Task)}
    for task in tasks:
        repetition = _repetitions.get(task)
        if repetition is not None and repetition.drain is None:
            repetition.drain = timedelta(seconds=seconds)
        task.cancel()  # a function of repeat_every that runs goes on
    waiting = [asyncio.wait(tasks, timeout=seconds)] if tasks else []
    await asyncio.gather(drain_schedulers_async(started, seconds), *waiting)


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel what still runs after the drain, and wait for its release; a thread goes on."""
    task.cancel()
    await asyncio.wait({task}, timeout=_RELEASE_SECONDS)


async def _wait_for_cancelled_jobs() -> None:
    """Wait until the cancelled coroutine jobs have released their locks."""
    from shedlock_py.integrations.apscheduler.worker import JOB_TASK  # late: there is a scheduler

    await asyncio.sleep(0)  # an AsyncIOScheduler shuts down in the next iteration of the event loop
    jobs = {task for task in asyncio.all_tasks() if task.get_name().startswith(JOB_TASK)}
    if jobs:
        await asyncio.wait(jobs, timeout=_RELEASE_SECONDS)


async def _close(provider: Any, *, is_own: bool) -> None:
    """Close the connections of a provider that was opened here, unless a thread still needs them."""
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
    """``repeat_every`` of fastapi-utils, where each repetition runs in one worker of all: ``uvicorn --workers 4``.

    Call the decorated function once in each worker, at its start: ``await clean_up()``, or in ``start`` of
    :func:`lifespan`. It returns the task in which the function is repeated.

    Time is divided into slots of ``seconds``, counted from 1970 UTC. In each slot the function runs once, in the worker
    that gets the lock; a worker that starts in the middle of a slot that was run waits for the next one. While the
    store is unreachable, the run is attempted again until the slot ends, for a minute at most. Another failure of the
    store is an error of that repetition.

    If the task is cancelled, no new run begins, and a run that goes on has the time ``drain``. Then, or at a second
    cancellation, it is cancelled. A ``def`` runs in a thread, which cannot be stopped: the task ends when the function
    returns, and the lock is held until then. ``on_lost="cancel"`` does not stop it either.

    :param wait_first: how long to wait before the first repetition ("5s", seconds, ``timedelta``); True: ``seconds``.
    :param logger: for what the function raises; by default ``shedlock_py``.
    :param raise_exceptions: end with what the function raises, which the task then has.
    :param max_repetitions: end after so many slots, wherever they were run.
    :param on_complete: called after the last of them.
    :param on_exception: called with what the function raises, after that was logged. What it raises is logged as well.
        Both may be coroutine functions.
    :param lock: the lock name; by default the module and name of the function.
    :param drain: how long a run may go on when the task is cancelled; by default that of :func:`lifespan`, else 20 s.
    :param options: as for :func:`hold_async`: ``lock_at_most_for``, ``provider``, ``keep_alive``, ``recover``, … While
        the lease of a run that died lasts, no other slot has its run: so ``recover=True`` needs a ``lock_at_most_for``
        that is shorter than the slot.
    :raises ConfigurationError: a value that cannot work, or the function has a ``@scheduler_lock``. Durations that do
        not go with the defaults of :func:`configure` are refused by the call that starts the repetition; if
        ``configure()`` is called later, they are an error of each repetition.
    """
    interval = parse_duration(seconds, "seconds")
    LockOptions.parse("repeat_every", options)  # a mistake shows now
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
        LockRequest(name, "10m")  # is it a lock name? The durations' defaults may be configured later

        @wraps(function)
        async def begin() -> asyncio.Task[None]:
            if is_configured():  # otherwise the defaults may follow
                request = lock_request(name, *durations)
                if options.get("recover") and request.lock_at_most_for >= interval:
                    raise ConfigurationError(
                        f"{name}: recover=True needs a lock_at_most_for that is shorter than the slot of {interval}: "
                        f"a run is recovered when its lease has expired, and until then no slot has its run"
                    )
                keep_alive = parse_keep_alive(options.get("keep_alive"))
                check_keep_alive_limit(keep_alive_limit(keep_alive), request.lock_at_most_for)
                if options.get("recover"):
                    check_kept_alive(f"lock {name!r}", keep_alive)
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
