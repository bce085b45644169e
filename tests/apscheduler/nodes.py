"""Nodes of an election; the scheduler runs jobs on the leader only."""

from __future__ import annotations

from typing import Any

from apscheduler.events import EVENT_ALL, EVENT_JOB_EXECUTED
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import NullPool

from shedlock_py import LeaderElector
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, lead
from tests.support.doubles import FaultyProvider

DURATIONS: dict[str, Any] = {"lease_duration": "1800ms", "renew_deadline": "1500ms", "retry_period": "100ms"}
LONG: dict[str, Any] = {"lease_duration": "1h", "renew_deadline": "50m", "retry_period": "50ms"}
"""Long durations: a leadership ends only if the test ends it."""


class Node:
    """A scheduler and an elector. Several nodes share the lock store, and optionally the job store."""

    def __init__(
        self,
        holder: str,
        store: FaultyProvider,
        jobs: Any,
        scheduler: type[Any] = BackgroundScheduler,
        executor: Any = None,
        durations: dict[str, Any] = DURATIONS,
    ) -> None:
        self.provider = FaultyProvider(store.inner)
        self.elector = LeaderElector(self.provider, "scheduler", holder=holder, **durations)
        executors = {} if executor is None else {"default": executor(elector=self.elector)}
        self.scheduler = scheduler(
            jobstores={"default": jobs},
            executors=executors,
            job_defaults={"misfire_grace_time": None, "coalesce": False, "max_instances": 50},
            timezone="UTC",
        )
        self.events: list[Any] = []
        self.scheduler.add_listener(self.events.append, EVENT_ALL | EVENT_JOB_SKIPPED)
        self.lead = lead(self.scheduler, self.elector)

    def executed(self) -> list[Any]:
        return [event for event in list(self.events) if event.code == EVENT_JOB_EXECUTED]

    def times(self, job: str = "job") -> list[Any]:
        """Return the run times of a job."""
        return [event.scheduled_run_time for event in self.executed() if event.job_id == job]


def sql_job_store(url: str, **connect_args: Any) -> SQLAlchemyJobStore:
    """Open a job store without a connection pool: a scheduler that shuts down may leave a connection there."""
    return SQLAlchemyJobStore(url, engine_options={"poolclass": NullPool, "connect_args": connect_args})
