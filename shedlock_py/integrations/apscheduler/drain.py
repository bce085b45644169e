"""``drain``: a scheduler begins no more runs, and waits for running jobs before its shutdown."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

from apscheduler.schedulers import SchedulerNotRunningError
from apscheduler.schedulers.base import STATE_STOPPED

from shedlock_py.errors import ConfigurationError
from shedlock_py.guard.shutdown import time_left
from shedlock_py.integrations.apscheduler.options import check_scheduler
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.runtime.process import monotonic

_POLL_SECONDS = 0.02


def drain(scheduler: Any, within: Duration = "20s") -> list[str]:
    """Let a scheduler begin no more runs, and wait for at most ``within`` until its running jobs have ended.

    This is the first step of a graceful shutdown::

        drain(scheduler, "20s")
        scheduler.shutdown(wait=False)

    The scheduler is paused. A run that waits for a free worker thread is skipped (``"shutting_down"``). After SIGTERM,
    :func:`release_on_sigterm` limits the time of both steps together. If the scheduler was shut down before, ``drain``
    only waits. ``scheduler.resume()`` lets runs begin again.

    :param within: choose less than the platform's time between SIGTERM and SIGKILL (Kubernetes: 30 s).
    :return: the ids of the jobs that still run.
    :raises ConfigurationError: the scheduler works only on the leader, or runs its jobs on the current event loop.
    """
    seconds = _seconds(within)
    if getattr(scheduler, "_eventloop", None) is not None and _is_on_event_loop():
        raise ConfigurationError("drain() would stop the event loop of the jobs: await drain_async(scheduler)")
    return wait_for_runs(stop_beginning(scheduler), seconds)


async def drain_async(scheduler: Any, within: Duration = "20s") -> list[str]:
    """Like :func:`drain`, for asyncio: ``await drain_async(scheduler, "20s")``.

    After it, ``scheduler.shutdown()`` of an ``AsyncIOScheduler`` cancels the coroutine jobs that still run. Then call
    ``drain_async`` again, to wait until these jobs have released their locks.
    """
    seconds = _seconds(within)
    return await wait_for_runs_async(stop_beginning(scheduler), seconds)


def stop_beginning(*schedulers: Any) -> list[Any]:
    """Pause schedulers, and return their executors. Submitted runs that have not begun do not begin either.

    :raises ConfigurationError: a scheduler works only on the leader.
    """
    for scheduler in schedulers:
        check_scheduler(scheduler, "drain(scheduler)")
        if getattr(scheduler, "runs_on_leader_only", False):
            raise ConfigurationError(
                "drain(scheduler) is not for lead(scheduler, elector): its stop() waits for the jobs"
            )
        for executor in executors_of(scheduler):
            if hasattr(executor, "stop_beginning"):
                executor.stop_beginning()
        if scheduler.state != STATE_STOPPED:
            with suppress(SchedulerNotRunningError):  # another thread has shut it down
                scheduler.pause()
    return executors_of(*schedulers)


def executors_of(*schedulers: Any) -> list[Any]:
    return [executor for scheduler in schedulers for executor in list(scheduler._executors.values())]


def wait_for_runs(executors: list[Any], seconds: float) -> list[str]:
    """Wait for at most ``seconds`` until no job runs in these executors. Return the ids of the jobs that still run."""
    until = monotonic() + seconds
    while (jobs := running_jobs(executors)) and (left := until - monotonic()) > 0:
        time.sleep(min(_POLL_SECONDS, left))
    return jobs


async def wait_for_runs_async(executors: list[Any], seconds: float) -> list[str]:
    """Like :func:`wait_for_runs`, for asyncio."""
    until = monotonic() + seconds
    while (jobs := running_jobs(executors)) and (left := until - monotonic()) > 0:  # noqa: ASYNC110 (APScheduler has no event)
        await asyncio.sleep(min(_POLL_SECONDS, left))
    return jobs


def running_jobs(executors: list[Any]) -> list[str]:
    """Return the ids of the jobs that run or wait for a worker thread."""
    jobs: set[str] = set()
    for executor in executors:
        counting = getattr(executor, "inner", executor)  # a ShedLockExecutor leaves the count to the executor inside
        if getattr(counting, "_lock", None) is not None:  # the executor was started
            with counting._lock:
                jobs |= {job_id for job_id, count in counting._instances.items() if count}
    return sorted(jobs)


def _seconds(within: Duration) -> float:
    seconds, left = parse_duration(within, "within", zero=True).total_seconds(), time_left()
    return seconds if left is None else min(seconds, left)


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
