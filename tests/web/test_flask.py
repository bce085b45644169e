"""The extension for Flask."""

from __future__ import annotations

import multiprocessing
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from flask import Flask

from shedlock_py import (
    ConfigurationError,
    InMemoryLockProvider,
    LeaderElector,
    provider_from_url,
    reset,
    scheduler_lock,
)
from shedlock_py.integrations.apscheduler import ShedLockExecutor
from shedlock_py.integrations.flask import ShedLock
from tests.support.logs import warnings_of
from tests.support.polling import wait_until
from tests.support.scripts import run_python


@pytest.fixture(autouse=True)
def _nothing_is_configured() -> Any:
    with reset():
        yield


@scheduler_lock("job")
def job() -> str:
    return "ran"


def test_it_configures_starts_and_stops(tmp_path: Path) -> None:
    app = Flask("app")
    app.config["SHEDLOCK_STORE"] = f"sqlite:///{tmp_path}/locks.db"
    scheduler = BackgroundScheduler(timezone="UTC")
    shedlock = ShedLock(start=[scheduler])
    shedlock.init_app(app)
    assert app.extensions["shedlock"] is shedlock
    shedlock.start()
    try:
        assert (scheduler.running, job()) == (True, "ran")
        with pytest.raises(RuntimeError, match="called in this process already"):
            shedlock.start()
    finally:
        shedlock.stop()
    assert not scheduler.running
    shedlock.stop()  # does nothing
    assert provider_from_url(app.config["SHEDLOCK_STORE"]).record("job")


class Item:
    """A component that can be started. When it stops, ``log`` gets its name and its error is raised."""

    def __init__(self, name: str, log: list[str], error: Exception | None = None) -> None:
        self._name, self._log, self._error = name, log, error

    def start(self) -> None: ...

    def stop(self) -> None:
        self._log.append(self._name)
        if self._error is not None:
            raise self._error


class ClosingProvider(InMemoryLockProvider):
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_all_is_stopped_in_reverse_order_also_if_something_does_not_stop(caplog: pytest.LogCaptureFixture) -> None:
    stopped: list[str] = []
    items = [Item("first", stopped), Item("second", stopped, OSError("stuck")), Item("third", stopped)]
    provider = ClosingProvider()
    shedlock = ShedLock(provider, start=items)
    shedlock.init_app(Flask("app"))
    shedlock.start()
    shedlock.stop()
    assert stopped == ["third", "second", "first"]
    assert "did not stop" in caplog.text
    assert not provider.is_closed, "it is the application's"


def test_i14_the_stop_waits_for_a_run_for_the_drain_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def long() -> None:
        has_begun.set()
        assert may_end.wait(20)

    app = Flask("app")
    app.config["SHEDLOCK_STORE"] = url = f"sqlite:///{tmp_path}/locks.db"
    for drain in ("20s", "50ms"):
        has_begun.clear()
        may_end.clear()
        scheduler = BackgroundScheduler(executors={"default": ShedLockExecutor(lock_all=True)}, timezone="UTC")
        scheduler.add_job(long, "date", id="long", run_date=datetime.now(UTC))
        shedlock = ShedLock(start=[scheduler], drain=drain)
        shedlock.init_app(app)
        shedlock.start()
        assert has_begun.wait(10)
        if drain == "20s":
            threading.Timer(0.1, may_end.set).start()
        shedlock.stop()
        assert [may_end.is_set(), scheduler.running] == [drain == "20s", False]
    (warning,) = warnings_of(caplog)
    assert "their leases are kept until the process ends: long" in warning
    store = provider_from_url(url)
    may_end.set()
    wait_until(lambda: not store.records("long")[0].is_held, what="the release, for which the store is open")


AT_EXIT = """
from flask import Flask
from shedlock_py.integrations.flask import ShedLock

class Item:
    def start(self): ...
    def stop(self): print("stopped")

shedlock = ShedLock("memory://", start=[Item()])
shedlock.init_app(Flask("app"))
shedlock.start()
"""


def test_a_worker_that_ends_stops_all() -> None:
    assert run_python("-c", AT_EXIT).stdout == "stopped\n"


def test_a_failure_at_the_start_stops_what_was_started() -> None:
    provider = InMemoryLockProvider()
    elector = LeaderElector(provider, "one")

    class Broken:
        def start(self) -> None:
            raise OSError("no port")

        def stop(self) -> None: ...

    shedlock = ShedLock(provider, start=[elector, Broken()])
    shedlock.init_app(Flask("app"))
    with pytest.raises(OSError, match="no port"):
        shedlock.start()
    assert elector.stop(0)
    assert not elector.is_leader()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # the elector's thread
def test_a_forked_child_starts_its_own_and_stops_nothing_of_the_parent() -> None:
    provider = InMemoryLockProvider()
    elector = LeaderElector(provider, "one")
    shedlock = ShedLock(provider, start=[elector])
    shedlock.init_app(Flask("app"))
    shedlock.start()
    try:
        assert elector.wait_until_leader("5s")

        def in_child() -> None:
            shedlock.stop()  # as at the end of a worker; the extension has started nothing here
            shedlock.start()
            shedlock.stop()

        child = multiprocessing.get_context("fork").Process(target=in_child)
        child.start()
        child.join(20)
        assert child.exitcode == 0
        assert elector.is_leader()
    finally:
        shedlock.stop()


def test_a_wrong_setup_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="SHEDLOCK_STORE"):
        ShedLock().init_app(Flask("app"))
    with pytest.raises(ConfigurationError, match="is no scheduler"):
        ShedLock("memory://", start=[1])
    with pytest.raises(RuntimeError, match="call init_app"):
        ShedLock("memory://").start()
