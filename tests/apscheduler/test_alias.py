"""The lock that the executor takes counts as the decorator's: a job must never be skipped because of itself."""

from contextlib import closing
from pathlib import Path

import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED

from shedlock_py import InMemoryLockProvider, LockRequest, configure
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.apscheduler.rig import Rig, Task, running, sqlite_locks

ENDS = (EVENT_JOB_EXECUTED, EVENT_JOB_ERROR, EVENT_JOB_SKIPPED)
KINDS = ("thread", "coroutine", "debug", "default")


def run_once(rig: Rig, task: Task) -> int:
    rig.add(task)
    [event] = rig.wait(task, *ENDS)
    return int(event.code)


@pytest.mark.parametrize("kind", KINDS)
def test_two_provider_objects_of_one_store(tmp_path: Path, kind: str) -> None:
    with (
        sqlite_locks(tmp_path) as (url, executors),
        closing(SqlAlchemyLockProvider(url)) as configured,
        configure(provider=configured),
        running(tmp_path, kind, provider=executors) as rig,
    ):
        task = rig.task()
        assert run_once(rig, task) == EVENT_JOB_EXECUTED
        assert task.runs == 1
        assert not rig.is_held(task)


@pytest.mark.parametrize("kind", KINDS)
def test_another_lock_than_the_decorators(tmp_path: Path, kind: str) -> None:
    provider, task = InMemoryLockProvider(), Task(tmp_path)
    locks = {task.id: {"name": "other", "lock_at_most_for": "1m"}}
    provider.acquire(LockRequest(task.lock, "1m"))  # the decorator's own, which is not asked for
    with configure(provider=provider), running(tmp_path, kind, provider=provider, locks=locks) as rig:
        assert run_once(rig, task) == EVENT_JOB_EXECUTED
        assert task.runs == 1
        provider.acquire(LockRequest("other", "1m"))
        rig.events.clear()
        assert run_once(rig, task) == EVENT_JOB_SKIPPED
        assert task.runs == 1
