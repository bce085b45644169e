"""A signal handler's exception in a job on the event loop ends the process; the executor makes no event of it."""

from __future__ import annotations

import pytest

from tests.support import forked

PROGRAM = """
import asyncio, os, signal, sys

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from shedlock_py import InMemoryLockProvider, configure, release_on_sigterm, scheduler_lock
from shedlock_py.integrations.apscheduler import ShedLockExecutor


async def job():
    os.kill(os.getpid(), signal.SIGTERM)
    print("the job goes on")


async def run(function):
    scheduler = AsyncIOScheduler(executors={"default": ShedLockExecutor()}, timezone="UTC")
    scheduler.add_job(function, id="job")
    scheduler.start()
    await asyncio.sleep(5)


configure(provider=InMemoryLockProvider())
release_on_sigterm()
guard = scheduler_lock("job", lock_at_most_for="1h") if sys.argv[1] == "locked" else lambda function: function
try:
    asyncio.run(run(guard(job)))
finally:
    print("finally")
"""


@pytest.mark.not_quick("a signal ends the process")
@pytest.mark.parametrize("lock", ["locked", "unlocked"])
def test_sigterm_in_a_job_on_the_event_loop_ends_the_process(lock: str) -> None:
    """Otherwise it would pass health checks forever, and skip each later run."""
    done = forked.run(["-c", PROGRAM, lock])
    assert (done.returncode, done.stdout) == (143, "finally\n"), done.stderr
