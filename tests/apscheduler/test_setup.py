"""Ways to put a ShedLockExecutor into a scheduler, and the errors at its start."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_SUBMITTED
from apscheduler.executors.base import BaseExecutor
from apscheduler.executors.debug import DebugExecutor
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import ConfigurationError, InMemoryLockProvider, configure, hold, scheduler_lock
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, ShedLockExecutor, install
from tests.apscheduler import jobs
from tests.apscheduler.app import App, ProcessPool, now, running
from tests.support.logs import warnings_of
from tests.support.loop_threads import EventLoopThread
from tests.support.polling import wait_until

shared_provider = InMemoryLockProvider()
"""Other processes import it as "tests.apscheduler.test_setup:shared_provider"."""

SHARED = "tests.apscheduler.test_setup:shared_provider"


@contextmanager
def started(scheduler: Any, provider: Any, directory: Path) -> Iterator[App]:
    app = App(scheduler, provider, directory, "thread")
    if not scheduler.running:
        scheduler.start()
    try:
        yield app
    finally:
        scheduler.shutdown()


def assert_locks(app: App, **options: Any) -> None:
    """Assert that a job is skipped while its lock is held, and runs when it is free."""
    task = app.task()
    with hold(task.lock, lock_at_most_for="1m", provider=app.provider):
        app.add(task, **options)
        app.wait(task, EVENT_JOB_SKIPPED)
    app.add(task, **options)
    app.wait(task, EVENT_JOB_EXECUTED)
    assert task.runs == 1


def assert_size(app: App, size: int) -> None:
    """Assert that the executor runs ``size`` jobs at once."""
    tasks = [app.task() for _ in range(size + 1)]
    for task in tasks:
        app.add(task, kwargs={"until": task.gate})
    for task in tasks:
        app.wait(task, EVENT_JOB_SUBMITTED)
    wait_until(lambda: sum(task.runs for task in tasks) >= size, what="jobs fill the executor")
    assert sum(task.runs for task in tasks) == size
    for task in tasks:
        task.open_gate()
    for task in tasks:
        app.wait(task, EVENT_JOB_EXECUTED)


@pytest.mark.parametrize(
    ("executor", "inner"),
    [
        (None, ThreadPoolExecutor),
        ("debug", DebugExecutor),
        ("threadpool", ThreadPoolExecutor),
        ({"type": "threadpool", "max_workers": "3"}, ThreadPoolExecutor),
        ({"class": "apscheduler.executors.pool:ThreadPoolExecutor", "max_workers": 3}, ThreadPoolExecutor),
        (DebugExecutor(), DebugExecutor),
    ],
)
def test_the_inner_executor(executor: Any, inner: type[BaseExecutor], tmp_path: Path) -> None:
    wrapper = ShedLockExecutor(executor, shared_provider)
    with started(BackgroundScheduler(executors={"default": wrapper}, timezone="UTC"), shared_provider, tmp_path) as app:
        assert type(wrapper.inner) is inner
        if isinstance(executor, dict):
            assert_size(app, 3)
        assert_locks(app)


def test_the_plugin_in_dotted_properties(tmp_path: Path) -> None:
    properties = {
        "apscheduler.timezone": "UTC",
        "apscheduler.executors.default.type": "shedlock",
        "apscheduler.executors.default.provider": SHARED,
        "apscheduler.executors.default.executor.type": "threadpool",
        "apscheduler.executors.default.executor.max_workers": "5",
        "apscheduler.executors.default.default_lock_at_most_for": "5m",
        "apscheduler.executors.default.default_lock_at_least_for": "0s",
        "apscheduler.executors.default.lock_extractor": "tests.apscheduler.jobs:name_by_first_argument",
        "apscheduler.executors.default.once_per_fire_time": "y",
        "apscheduler.executors.default.lock_all": "Off",
        "apscheduler.executors.default.locks.by-id": "properties-by-id",
    }
    with started(BackgroundScheduler(properties), shared_provider, tmp_path) as app:
        assert_locks(app)
        assert_size(app, 5)
        task = app.task()
        task.id = "by-id"
        app.add(task, jobs.unlocked, args=(task.log,))
        app.wait(task, EVENT_JOB_EXECUTED)
        record = shared_provider.record("properties-by-id")
        assert record is not None
        assert record.last_fire_time is not None


def test_the_plugin_as_an_added_executor(tmp_path: Path) -> None:
    with started(BackgroundScheduler(timezone="UTC"), shared_provider, tmp_path) as app:
        app.scheduler.add_executor("shedlock", "locking", provider=SHARED)
        assert_locks(app, executor="locking")


def test_a_scheduler_can_be_started_again(tmp_path: Path) -> None:
    scheduler = BackgroundScheduler(executors={"default": ShedLockExecutor("threadpool", SHARED)}, timezone="UTC")
    for _ in range(2):
        with started(scheduler, shared_provider, tmp_path) as app:
            assert_locks(app)


def test_install_before_the_start(tmp_path: Path) -> None:
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.add_executor(DebugExecutor(), "other")
    install(scheduler, SHARED)
    with started(scheduler, shared_provider, tmp_path) as app:
        assert_locks(app)
        assert_locks(app, executor="other")


class Recording(ThreadPoolExecutor):
    """Record the ids of its jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.submitted: list[str] = []

    def submit_job(self, job: Any, run_times: Any) -> None:
        self.submitted.append(job.id)
        super().submit_job(job, run_times)


def test_install_in_a_running_scheduler(tmp_path: Path) -> None:
    inner = Recording()
    scheduler = BackgroundScheduler(executors={"default": inner}, timezone="UTC")
    with started(scheduler, shared_provider, tmp_path) as app:
        before = app.task()
        app.add(before, jobs.unlocked, args=(before.log, before.gate))
        wait_until(lambda: before.runs, what="a job that runs meanwhile")
        install(scheduler, shared_provider, lock_all=True, default_lock_at_most_for="1m")
        assert_locks(app)
        before.open_gate()
        app.wait(before, EVENT_JOB_EXECUTED)
        task = app.task()
        app.add(task, jobs.unlocked, args=(task.log,))
        app.wait(task, EVENT_JOB_EXECUTED)
        assert shared_provider.record(task.id) is not None
        assert task.id in inner.submitted


def test_install_in_a_running_asyncio_scheduler(tmp_path: Path) -> None:
    loop = EventLoopThread()
    app = App(AsyncIOScheduler(timezone="UTC"), shared_provider, tmp_path, "coroutine")
    try:
        loop.call(app.scheduler.start)
        loop.call(lambda: install(app.scheduler, shared_provider))
        assert_locks(app)
        loop.call(app.scheduler.shutdown)
        wait_until(lambda: not app.scheduler.running, what="the scheduler shut down")
    finally:
        loop.close()


def test_a_refused_install_changes_nothing(tmp_path: Path) -> None:
    scheduler = BackgroundScheduler(timezone="UTC")
    with pytest.raises(ConfigurationError, match="on_provider_error"):
        install(scheduler, shared_provider, on_provider_error="nonsense")
    install(scheduler, shared_provider)
    with pytest.raises(ConfigurationError, match=r'"default".*already'):
        install(scheduler, shared_provider)
    with started(scheduler, shared_provider, tmp_path) as app:
        with pytest.raises(ConfigurationError, match=r'"default".*already'):
            install(scheduler, shared_provider)
        assert_locks(app)


def test_install_in_an_object_that_has_a_scheduler_is_refused() -> None:
    """flask_apscheduler.APScheduler has such an attribute."""
    extension = SimpleNamespace(scheduler=BackgroundScheduler(timezone="UTC"), running=False)
    with pytest.raises(ConfigurationError, match=r"SimpleNamespace is not a scheduler, but has one: .*\.scheduler"):
        install(extension, shared_provider)
    install(extension.scheduler, shared_provider)
    with pytest.raises(ConfigurationError, match=r"NoneType is not a scheduler of APScheduler 3"):
        install(None, shared_provider)


def test_an_executor_inside_itself_is_refused() -> None:
    nested = ShedLockExecutor(ShedLockExecutor(None, shared_provider), shared_provider)
    with pytest.raises(ConfigurationError, match="twice"):
        BackgroundScheduler(executors={"default": nested}, timezone="UTC").start()


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        ("nothing", ["nothing", "pkg.module:name"]),
        ("no.such.module:provider", ["no.such.module:provider", "pkg.module:name"]),
        ("nosql://user:s3cret@host/db", ["nosql", "sqlite"]),
        ("tests.apscheduler.jobs:LONGEST_WAIT", ["provider"]),
        ("tests.apscheduler.jobs:name_by_first_argument", ["provider"]),
    ],
)
def test_a_provider_that_cannot_be_made_is_refused_at_the_start(provider: str, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        BackgroundScheduler(executors={"default": ShedLockExecutor(None, provider)}, timezone="UTC").start()
    for word in words:
        assert word in str(refusal.value)
    assert "s3cret" not in str(refusal.value)


def test_a_job_that_would_fail_is_warned_of_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """The warning must not wait for the first run, at two in the night."""

    @scheduler_lock("without-a-store")
    def job() -> None: ...

    scheduler = BackgroundScheduler(executors={"default": ShedLockExecutor()}, timezone="UTC")
    scheduler.add_job(job, "cron", hour=2, id="nightly")
    scheduler.start()
    try:
        assert warnings_of(caplog, "nightly", logger="apscheduler") == [
            "job \"nightly\" would fail: no provider for lock 'without-a-store': configure() was not called in this "
            "process: call configure('postgresql://user@host/db') at start-up, or pass provider=…"
        ]
    finally:
        scheduler.shutdown()


def test_a_factory_is_called_once_per_process(tmp_path: Path) -> None:
    wrapper = ShedLockExecutor(None, "tests.apscheduler.jobs:make_down_provider", on_provider_error="skip")
    with started(BackgroundScheduler(executors={"default": wrapper}, timezone="UTC"), None, tmp_path) as app:
        made = jobs.down_providers_made
        for _ in range(2):
            task = app.task()
            event = app.run_once(task)
            assert event.reason == "provider_error"
        assert jobs.down_providers_made == made == 1


@pytest.mark.parametrize(
    ("provider", "words"), [(None, "configure()"), (InMemoryLockProvider(), "InMemoryLockProvider")]
)
def test_a_process_pool_needs_a_provider_that_its_workers_can_make(provider: Any, words: str) -> None:
    wrapper = ShedLockExecutor(ProcessPool(), provider)
    with configure(shared_provider), pytest.raises(ConfigurationError) as refusal:
        BackgroundScheduler(executors={"default": wrapper}, timezone="UTC").start()
    for word in (words, "URL", "pkg.module:provider_or_factory"):
        assert word in str(refusal.value)
    scheduler = BackgroundScheduler(executors={"default": ProcessPool()}, timezone="UTC")
    scheduler.start()
    try:
        with pytest.raises(ConfigurationError):
            install(scheduler, provider)
        install(scheduler, SHARED)  # an error if an executor is already wrapped
    finally:
        scheduler.shutdown()


@pytest.mark.parametrize("options", [{"method": "fork"}, {"initializer": print}])
def test_a_process_pool_whose_workers_may_be_configured_is_not_refused(options: dict[str, Any]) -> None:
    scheduler = BackgroundScheduler(executors={"default": ShedLockExecutor(ProcessPool(**options))}, timezone="UTC")
    scheduler.start()
    scheduler.shutdown()


@pytest.mark.not_quick("starts a worker process")
def test_a_worker_process_finds_the_decorators_own_provider(tmp_path: Path) -> None:
    """The worker makes it when it imports the job's module. It is never pickled."""
    with running(tmp_path, "process") as app:
        task = app.task()
        event = app.run_once(task, jobs.locked_by_nobody, "date", run_date=now())
        assert event.code == EVENT_JOB_ERROR
        assert app.provider.record(task.lock) is None


class TaggingExecutor(DebugExecutor):
    """Set an attribute on each job, and pickle the job, like an executor with worker processes."""

    def submit_job(self, job: Any, run_times: Any) -> None:
        job.tag = "batch"
        assert pickle.loads(pickle.dumps(job)).id == job.id
        super().submit_job(job, run_times)


def test_an_inner_executor_may_set_attributes_on_a_job(tmp_path: Path) -> None:
    executor = ShedLockExecutor(TaggingExecutor(), SHARED)
    scheduler = BackgroundScheduler(executors={"default": executor}, timezone="UTC")
    with started(scheduler, shared_provider, tmp_path) as app:
        assert app.run_once(app.task()).code == EVENT_JOB_EXECUTED
