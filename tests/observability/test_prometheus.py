"""The metrics of real runs, as a scrape over HTTP has them."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from prometheus_client import CollectorRegistry, generate_latest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    ConfigurationError,
    InMemoryLockProvider,
    LeaderElector,
    Lease,
    LockAcquired,
    LockProvider,
    LockRequest,
    LockSkipped,
    OperatorActed,
    ProviderError,
    ProviderFailed,
    ProviderUnreachable,
    RunMissed,
    RunRecovered,
    TaskFinished,
    attempt,
    configure,
    extend_lock,
    hold,
    scheduler_lock,
)
from shedlock_py.integrations.apscheduler import ShedLockExecutor
from shedlock_py.integrations.prometheus import OverdueCollector, PausedCollector, PrometheusListener
from shedlock_py.testing import FakeClock
from shedlock_py.testing.contract.base import failing
from tests.observability.scraping import Scrape, Server, serving
from tests.observability.ways import ELECTION
from tests.support.doubles import FaultyProvider
from tests.support.locks import acquired
from tests.support.logs import warnings_of
from tests.support.polling import wait_until
from tests.support.scripts import run_python


def plain_report(tenant: str) -> None: ...


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def server(registry: CollectorRegistry) -> Iterator[Server]:
    with serving(registry) as server:
        yield server


@pytest.fixture
def provider() -> LockProvider:
    return InMemoryLockProvider()


def test_a_scrape_after_real_runs(provider: LockProvider, registry: CollectorRegistry, server: Server) -> None:
    before = time.time()
    with configure(provider=provider, listeners=[PrometheusListener(registry)]):
        attempt("report", lambda: extend_lock("5m"))
        attempt("report", lambda: None)
        with pytest.raises(ZeroDivisionError):
            attempt("report", lambda: 1 / 0)
        with hold("report"):
            assert provider.acquire(LockRequest("report", "1m")) is None
            running = server.scrape()
            in_another = attempt_elsewhere(provider, "report")
        assert in_another == "Skipped"
        attempt("lost", lambda: provider.take_over(LockRequest("lost", "10m")))
        scrape = server.scrape()
    assert running("shedlock_running", lock="report") == 1
    assert scrape("shedlock_running", lock="report") == 0
    assert scrape("shedlock_acquisitions_total", lock="report", outcome="acquired") == 4
    assert scrape("shedlock_acquisitions_total", lock="report", outcome="held") == 1
    assert scrape("shedlock_acquisitions_total", lock="report", outcome="failed") == 0
    assert scrape("shedlock_tasks_total", lock="report", outcome="succeeded") == 3
    assert scrape("shedlock_tasks_total", lock="report", outcome="failed") == 1
    assert scrape("shedlock_extensions_total", lock="report") == 1
    assert scrape("shedlock_leases_lost_total", lock="lost", reason="revoked") == 1
    assert scrape("shedlock_leases_lost_total", lock="report", reason="revoked") == 0
    assert scrape("shedlock_held_seconds_count", lock="report") == 4
    assert scrape("shedlock_acquire_seconds_count", lock="report") == 5
    assert 0 < (scrape("shedlock_acquire_seconds_sum", lock="report") or 0) < 5
    last = scrape("shedlock_last_success_timestamp_seconds", lock="report")
    assert last is not None
    assert before - 1 < last < time.time() + 1


def attempt_elsewhere(provider: LockProvider, name: str) -> str:
    """Attempt in another thread, which is not inside the lease."""
    kinds: list[str] = []
    thread = threading.Thread(target=lambda: kinds.append(type(attempt(name, lambda: None)).__name__))
    thread.start()
    thread.join(10)
    return kinds[0]


def scrape_of(registry: CollectorRegistry) -> Scrape:
    return Scrape(generate_latest(registry).decode())


def test_failures_of_the_store(registry: CollectorRegistry) -> None:
    provider = InMemoryLockProvider()
    with configure(listeners=[PrometheusListener(registry)]):
        for operation in ("acquire", "extend"):
            with pytest.raises(ProviderError, match="no reply"):
                attempt("job", lambda: extend_lock("5m"), provider=failing(provider, operation))
        attempt("job", lambda: None, provider=failing(provider, "release"))
    scrape = scrape_of(registry)
    for operation in ("acquire", "extend", "release"):
        assert scrape("shedlock_provider_failures_total", lock="job", operation=operation) == 1
    assert scrape("shedlock_acquisitions_total", lock="job", outcome="failed") == 1
    assert scrape("shedlock_acquisitions_total", lock="job", outcome="acquired") == 2
    assert scrape("shedlock_acquire_seconds_count", lock="job") == 2


def test_held_seconds_are_of_every_run_also_of_one_that_lost_its_lease(registry: CollectorRegistry) -> None:
    clock = FakeClock()
    listener = PrometheusListener(registry)
    lease = InMemoryLockProvider(clock=clock).acquire(LockRequest("job", "10m"))
    assert lease
    for duration in (timedelta(milliseconds=50), timedelta(minutes=20)):
        listener(TaskFinished("job", lease, duration, "succeeded", None))
    scrape = scrape_of(registry)
    assert scrape("shedlock_held_seconds_bucket", lock="job", le="0.1") == 1
    assert scrape("shedlock_held_seconds_bucket", lock="job", le="600.0") == 1
    assert scrape("shedlock_held_seconds_bucket", lock="job", le="1800.0") == 2
    assert scrape("shedlock_held_seconds_sum", lock="job") == 1200.05


def test_skips_without_the_store_have_no_duration(registry: CollectorRegistry) -> None:
    listener = PrometheusListener(registry)
    for reason in ("held", "already_ran", "shutting_down", "not_leader"):
        listener(LockSkipped("job", reason, timedelta(0)))
    scrape = scrape_of(registry)
    assert scrape("shedlock_acquisitions_total", lock="job", outcome="not_leader") == 1
    assert scrape("shedlock_acquire_seconds_count", lock="job") == 2


def test_the_leader_metric_is_1_only_while_this_node_leads(registry: CollectorRegistry) -> None:
    store = InMemoryLockProvider()
    with configure(listeners=[PrometheusListener(registry)]):
        with LeaderElector(store, "feed", holder="me", **ELECTION) as elector:
            assert elector.wait_until_leader("10s")
            wait_until(lambda: scrape_of(registry)("shedlock_leader", election="feed") == 1)
        assert scrape_of(registry)("shedlock_leader", election="feed") == 0
        store.take_over(LockRequest("other", "1m", holder="somebody"))
        with LeaderElector(store, "other", holder="me", **ELECTION):
            wait_until(lambda: scrape_of(registry)("shedlock_leader", election="other") == 0)


def test_nothing_but_a_job_has_the_series_of_a_job(registry: CollectorRegistry) -> None:
    """Otherwise the alert for a job without success would fire for ever."""
    listener = PrometheusListener(registry)
    listener(LockSkipped("election", "not_leader", timedelta(0)))
    for operation in ("record", "extend", "release"):
        listener(ProviderFailed("election", operation, ProviderUnreachable("away", operation=operation)))
    listener(OperatorActed("sync-acme", "pause", "alice", ""))
    listener(OperatorActed("", "prune", "alice", ""))
    scrape = scrape_of(registry)
    for lock in ("election", "sync-acme", ""):
        assert scrape("shedlock_tasks_total", lock=lock, outcome="succeeded") is None
    assert scrape("shedlock_acquisitions_total", lock="election", outcome="not_leader") == 1
    assert scrape("shedlock_provider_failures_total", lock="election", operation="record") == 1


class TestKnownNames:
    ZEROS: ClassVar[list[tuple[str, dict[str, str]]]] = [
        ("shedlock_acquisitions_total", {"outcome": "acquired"}),
        ("shedlock_acquisitions_total", {"outcome": "held"}),
        ("shedlock_acquisitions_total", {"outcome": "failed"}),
        ("shedlock_tasks_total", {"outcome": "succeeded"}),
        ("shedlock_leases_lost_total", {"reason": "unreachable"}),
        ("shedlock_provider_failures_total", {"operation": "acquire"}),
        ("shedlock_extensions_total", {}),
        ("shedlock_held_seconds_count", {}),
        ("shedlock_acquire_seconds_count", {}),
        ("shedlock_running", {}),
    ]

    def is_at_zero(self, scrape: Scrape, lock: str) -> bool:
        values = [scrape(name, lock=lock, **labels) for name, labels in self.ZEROS]
        assert values in ([0.0] * len(values), [None] * len(values))
        return values[0] == 0

    def test_names_that_are_given(self, registry: CollectorRegistry) -> None:
        PrometheusListener(registry, lock_names=["given", "given too"])
        scrape = scrape_of(registry)
        assert self.is_at_zero(scrape, "given")
        assert self.is_at_zero(scrape, "given too")
        assert scrape("shedlock_last_success_timestamp_seconds", lock="given") is None

    def test_names_of_decorated_functions_decorated_before_and_after(self, registry: CollectorRegistry) -> None:
        @scheduler_lock("declared before", "1m")
        def before() -> None: ...

        PrometheusListener(registry)

        @scheduler_lock("declared after", "1m")
        def after() -> None: ...

        @scheduler_lock("declared-{tenant}", "1m")
        def templated(tenant: str) -> None: ...

        scrape = scrape_of(registry)
        assert self.is_at_zero(scrape, "declared before")
        assert self.is_at_zero(scrape, "declared after")
        assert not [value for value in scrape.values("shedlock_running", "lock") if "declared-" in value]
        assert before
        assert after
        assert templated

    def test_functions_that_are_gone_are_forgotten(self, registry: CollectorRegistry) -> None:
        def declare(name: str) -> None:
            @scheduler_lock(name, "1m")
            def closure() -> None: ...

        declare("short-lived")
        gc.collect()
        PrometheusListener(registry)
        assert not self.is_at_zero(scrape_of(registry), "short-lived")

    def test_all_metrics_of_a_name_begin_with_its_first_event(self, registry: CollectorRegistry) -> None:
        listener = PrometheusListener(registry)
        store = failing(InMemoryLockProvider(), "acquire")
        with configure(provider=store, listeners=[listener]), pytest.raises(ProviderError):
            attempt("new", lambda: None)
        scrape = scrape_of(registry)
        assert scrape("shedlock_acquisitions_total", lock="new", outcome="failed") == 1
        assert scrape("shedlock_acquisitions_total", lock="new", outcome="acquired") == 0
        assert scrape("shedlock_leases_lost_total", lock="new", reason="overrun") == 0

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, {"sync-{tenant}", "sync-d", "import-{number:02}"}),
            ({"label": str}, {"sync-a", "sync-b", "sync-c", "sync-d", "import-07"}),
            ({"label": lambda name: name.partition("-")[0], "lock_names": ["sync-a"]}, {"sync", "import"}),
        ],
    )
    def test_names_from_a_template_count_under_it_unless_asked_otherwise(
        self, options: dict[str, Any], expected: set[str], provider: LockProvider, registry: CollectorRegistry
    ) -> None:
        @scheduler_lock("sync-{tenant}", "1m")
        def sync(tenant: str) -> None:
            extend_lock("2m")

        @scheduler_lock("import-{number:02}", "1m")
        async def load(number: int) -> None: ...

        with configure(provider=provider, listeners=[PrometheusListener(registry, **options)]):
            for tenant in "abc":
                sync(tenant)
            assert provider.acquire(LockRequest("sync-a", "1m")) is not None
            sync("a")
            asyncio.run(load(7))
            attempt("sync-d", lambda: None, lock_at_most_for="1m")  # the name is used unchanged, not filled in
        scrape = scrape_of(registry)
        counted = scrape.values("shedlock_acquisitions_total", "lock")
        assert {name for name in counted if name.startswith(("sync", "import"))} == expected
        if not options:
            assert scrape("shedlock_acquisitions_total", lock="sync-{tenant}", outcome="acquired") == 3
            assert scrape("shedlock_acquisitions_total", lock="sync-{tenant}", outcome="held") == 1
            assert scrape("shedlock_extensions_total", lock="sync-{tenant}") == 3
            assert scrape("shedlock_tasks_total", lock="sync-{tenant}", outcome="succeeded") == 3
            assert scrape("shedlock_running", lock="sync-{tenant}") == 0

    def test_500_tenants_under_a_scheduler_are_one_label(self, registry: CollectorRegistry) -> None:
        done: list[str] = []

        @scheduler_lock("sync-{tenant}", "1m")
        def sync(tenant: str) -> None:
            done.append(tenant)

        locks = {"report": {"name": "report-{tenant}", "lock_at_most_for": "1m"}}
        listener = PrometheusListener(registry)
        executor = ShedLockExecutor(ThreadPoolExecutor(4), locks=locks)
        with configure(provider=InMemoryLockProvider(), listeners=[listener]):
            scheduler = BackgroundScheduler(executors={"default": executor}, timezone="UTC")
            for number in range(500):
                scheduler.add_job(sync, args=[f"t{number}"], misfire_grace_time=None)
            scheduler.add_job(plain_report, id="report", args=["acme"], misfire_grace_time=None)
            scheduler.start()
            wait_until(lambda: len(done) == 500, timeout=30)
            scheduler.shutdown()
        scrape = scrape_of(registry)
        labels = scrape.values("shedlock_acquisitions_total", "lock")
        assert {name for name in labels if name.startswith(("sync-", "report-"))} == {
            "sync-{tenant}", "report-{tenant}",
        }  # fmt: skip
        assert scrape("shedlock_tasks_total", lock="sync-{tenant}", outcome="succeeded") == 500

    def test_a_label_that_fails_harms_neither_the_scrape_nor_the_run(
        self, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
    ) -> None:
        def label(name: str) -> str:
            if name == "unlabelled":
                raise KeyError(name)
            return name

        listener = PrometheusListener(registry, label=label)

        @scheduler_lock("unlabelled", "1m")
        def task() -> str:
            return "value"

        with configure(provider=InMemoryLockProvider(), listeners=[listener]):
            assert task() == "value"
            attempt("labelled", lambda: None)
            assert scrape_of(registry)("shedlock_tasks_total", lock="labelled", outcome="succeeded") == 1
        assert "no label for the lock name 'unlabelled'" in caplog.text


class TestEdges:
    def test_a_second_listener_on_one_registry(self, registry: CollectorRegistry) -> None:
        first = PrometheusListener(registry)
        with pytest.raises(ConfigurationError, match="has the metrics of a PrometheusListener already"):
            PrometheusListener(registry)
        with configure(provider=InMemoryLockProvider(), listeners=[first]):
            attempt("job", lambda: None)
        assert scrape_of(registry)("shedlock_running", lock="job") == 0
        PrometheusListener(CollectorRegistry())

    def test_lock_names_is_a_list(self, registry: CollectorRegistry) -> None:
        with pytest.raises(ConfigurationError, match="lock_names must be a list"):
            PrometheusListener(registry, lock_names="job")
        PrometheusListener(registry)  # the failed attempt registered nothing

    def test_a_listener_that_came_while_the_task_ran(self, registry: CollectorRegistry) -> None:
        store = InMemoryLockProvider()
        listener = PrometheusListener(registry)
        with configure(provider=store), hold("job"):
            configure(provider=store, listeners=[listener])
        scrape = scrape_of(registry)
        assert scrape("shedlock_tasks_total", lock="job", outcome="succeeded") == 1
        assert scrape("shedlock_running", lock="job") == 0

    def test_runs_that_never_end_are_not_kept(self, registry: CollectorRegistry) -> None:
        listener = PrometheusListener(registry)
        store = InMemoryLockProvider()
        leases: list[weakref.ref[Lease]] = []
        for _ in range(100):
            lease = store.take_over(LockRequest("job", "1m"))
            leases.append(weakref.ref(lease))
            listener(LockAcquired("job", lease, timedelta(0)))
            del lease
        gc.collect()
        assert [lease for lease in leases if lease() is not None] == []

    def test_only_some_metrics_are_scraped(self, registry: CollectorRegistry) -> None:
        PrometheusListener(registry, lock_names=["job"])
        text = generate_latest(registry.restricted_registry(["shedlock_running"])).decode()
        scrape = Scrape(text)
        assert scrape("shedlock_running", lock="job") == 0
        assert {name for name, _ in scrape.samples} == {"shedlock_running"}

    def test_the_default_registry(self) -> None:
        script = (
            "from prometheus_client import REGISTRY, generate_latest\n"
            "from shedlock_py.integrations.prometheus import PrometheusListener\n"
            "PrometheusListener(lock_names=['job'])(None)\n"
            "print('shedlock_running{lock=\"job\"} 0.0' in generate_latest(REGISTRY).decode())\n"
        )
        done = run_python("-c", script)
        assert (done.stdout, done.stderr) == ("True\n", "")

    @pytest.mark.parametrize(
        ("module", "package", "extra"),
        [
            ("prometheus", "prometheus_client", "prometheus"),
            ("opentelemetry", "opentelemetry", "opentelemetry"),
            ("monitors", "httpx", "monitors"),
            ("sentry", "sentry_sdk", "sentry"),
            ("apscheduler", "apscheduler", "apscheduler"),
        ],
    )
    def test_a_missing_package(self, module: str, package: str, extra: str) -> None:
        script = f"import sys; sys.modules[{package!r}] = None; import shedlock_py.integrations.{module}"
        done = run_python("-c", script)
        assert done.returncode == 1
        assert f"pip install 'shedlock_py[{extra}]'" in done.stderr.splitlines()[-1]


def test_i14_runs_that_were_missed_or_recovered(registry: CollectorRegistry) -> None:
    lease = acquired(InMemoryLockProvider(), "job", "1m")
    listener = PrometheusListener(registry)
    listener(RunMissed("job", None, "too_many_recoveries"))
    listener(RunMissed("sync-acme", None, "cancelled").filled_from("sync-{tenant}"))
    listener(RunRecovered("job", lease, None, "web-1:7", 1))
    scrape = scrape_of(registry)
    assert scrape("shedlock_runs_missed_total", lock="job", reason="too_many_recoveries") == 1
    assert scrape("shedlock_runs_missed_total", lock="job", reason="cancelled") == 0
    assert scrape("shedlock_runs_missed_total", lock="sync-{tenant}", reason="cancelled") == 1
    assert scrape("shedlock_runs_recovered_total", lock="job") == 1


class TestOverdue:
    def test_i14_a_job_that_is_overdue_or_stuck(self, registry: CollectorRegistry) -> None:
        clock = FakeClock()
        store = InMemoryLockProvider(clock=clock, history=10)
        OverdueCollector(store, registry, grace="5m")
        now = store.programs.store.epoch + timedelta(seconds=clock())
        for name in ("stuck", "overdue", "on time"):
            due = now + timedelta(hours=9 if name == "on time" else 1)
            lease = store.acquire(LockRequest(name, "10h", next_fire_time=due))
            assert lease
            if name != "stuck":
                store.release(lease)
        clock.advance("65m")
        assert "shedlock_overdue" not in scrape_of(registry).labels()
        clock.advance("1s")
        scrape = scrape_of(registry)
        assert scrape.values("shedlock_overdue", "lock") == {"stuck", "overdue"}
        assert scrape("shedlock_overdue", lock="stuck", state="stuck") == 1
        assert scrape("shedlock_overdue", lock="overdue", state="overdue") == 1

    def test_a_store_without_history(self, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
        OverdueCollector(InMemoryLockProvider(), registry)
        assert "shedlock_overdue" not in scrape_of(registry).labels()
        [warning] = warnings_of(caplog)
        assert warning.startswith("no shedlock_overdue: this provider keeps no run history: open it with history=50")


class TestPaused:
    def test_a_pause_from_its_start_to_its_end(self, registry: CollectorRegistry, server: Server) -> None:
        clock = FakeClock()
        store = InMemoryLockProvider(clock=clock)
        PausedCollector(store, registry)
        assert store.acquire(LockRequest("held", "10h"))
        assert "shedlock_paused" not in server.scrape().labels()
        assert store.pause("resumed", "1h").is_paused
        assert store.pause("ends", "1h", "migration").is_paused
        scrape = server.scrape()
        assert scrape.values("shedlock_paused", "lock") == {"resumed", "ends"}
        assert scrape("shedlock_paused", lock="ends") == 1
        assert store.resume("resumed")
        assert server.scrape().values("shedlock_paused", "lock") == {"ends"}
        clock.advance("1h")
        assert "shedlock_paused" not in server.scrape().labels()

    def test_which_locks_and_under_which_label(self, registry: CollectorRegistry) -> None:
        store = InMemoryLockProvider()
        PausedCollector(store, registry, prefix="sync-", label=lambda name: name.partition("-")[0])
        for name in ("sync-a", "sync-b", "other"):
            store.pause(name, "1h")
        assert scrape_of(registry).values("shedlock_paused", "lock") == {"sync"}

    def test_a_store_that_fails_takes_nothing_else_from_a_scrape(
        self, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = InMemoryLockProvider()
        store.pause("job", "1h")
        PrometheusListener(registry, lock_names=["job"])
        provider: Any = FaultyProvider(store)
        PausedCollector(provider, registry)
        for is_down in (True, True, False, True):
            if is_down:
                provider.fail("records")
            else:
                provider.recover()
            scrape = scrape_of(registry)
            assert scrape("shedlock_running", lock="job") == 0
            assert scrape("shedlock_paused", lock="job") == (None if is_down else 1)
        assert warnings_of(caplog) == ["no shedlock_paused: down"] * 2  # one line for each outage

    def test_registering_sends_no_request(self, registry: CollectorRegistry) -> None:
        provider = FaultyProvider()
        PausedCollector(provider, registry)
        assert provider.calls["records"] == 0

    def test_what_cannot_work_is_refused(self, registry: CollectorRegistry) -> None:
        store = InMemoryLockProvider()
        PausedCollector(store, registry)
        for options, words in (
            ({"provider": store, "registry": registry}, "already"),
            ({"provider": AsyncInMemoryLockProvider()}, "needs a sync provider"),
            ({"provider": "x.db"}, "neither a URL"),
            ({"provider": store, "prefix": 7}, "prefix"),
        ):
            with pytest.raises(ConfigurationError, match=words):
                PausedCollector(**options)


MULTIPROCESS = """
import multiprocessing, os, sys, time
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
from shedlock_py import InMemoryLockProvider, LeadershipStarted, attempt, configure, hold
from shedlock_py.integrations.prometheus import PrometheusListener

def worker(listener, ready, end):
    with configure(provider=InMemoryLockProvider(), listeners=[listener]):
        attempt("job", lambda: None)
        with hold("job"):
            listener(LeadershipStarted("feed", "me", 1))
            ready.release()
            end.wait(20)

fork = multiprocessing.get_context("fork")
listener = PrometheusListener()  # before the fork, as with gunicorn --preload
ready, end = fork.Semaphore(0), fork.Event()
workers = [fork.Process(target=worker, args=(listener, ready, end)) for _ in range(2)]
for each in workers:
    each.start()
for each in workers:
    assert ready.acquire(timeout=20)

def show():
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    for line in generate_latest(registry).decode().splitlines():
        if line.startswith(("shedlock_running", "shedlock_leader", "shedlock_tasks_total", "shedlock_last")):
            name, value = line.rsplit(" ", 1)
            print(name, "not later than now" if 1e9 < float(value) <= time.time() else value.partition(".")[0])

show()
end.set()
for each in workers:
    each.join(20)
    multiprocess.mark_process_dead(each.pid)
print("--")
show()
"""


def test_counts_of_workers_add_up_and_gauges_are_those_of_the_living(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    done = run_python("-c", MULTIPROCESS)
    assert done.stderr == ""
    running, over = done.stdout.split("--\n")
    assert 'shedlock_running{lock="job"} 2\n' in running
    assert 'shedlock_leader{election="feed"} 2\n' in running
    assert 'shedlock_tasks_total{lock="job",outcome="succeeded"} 2\n' in running
    assert 'shedlock_last_success_timestamp_seconds{lock="job"} not later than now\n' in running
    assert 'shedlock_tasks_total{lock="job",outcome="succeeded"} 4\n' in over
    assert 'shedlock_last_success_timestamp_seconds{lock="job"} not later than now\n' in over
    assert "shedlock_running" not in over
    assert "shedlock_leader" not in over
