"""docs/troubleshooting.md quotes real messages: the tests provoke each message of its first column."""

import logging
import os
import re
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import create_engine

import shedlock_py as sl
from shedlock_py.events import log_listener
from shedlock_py.integrations.apscheduler import ShedLockExecutor
from shedlock_py.integrations.monitors import HealthchecksListener
from tests.guides.documents import DOCS
from tests.guides.pages.test_bad_input import (
    Task,
    a_missing_column,
    dead_server,
    guard,
    no_duration,
    only_async,
    unread_variable,
    with_tenant,
    without_its_package,
    without_table,
)
from tests.support.locks import acquired
from tests.support.ports import free_port


def provoke_overrun() -> None:
    provider = sl.InMemoryLockProvider()
    with sl.configure(provider=provider), sl.hold("nightly", lock_at_most_for="1m") as lease:
        assert lease is not None
        provider.extend(lease, "5ms")
        while lease.is_trusted():
            pass


def provoke_a_long_run() -> None:
    """Emit its event: heartbeats of a lease of milliseconds would be late on a busy machine."""
    lease = acquired(sl.InMemoryLockProvider(), "nightly", "1m")
    log_listener(sl.LeaseLost("nightly", lease, "kept_too_long"))


def provoke_process_pool() -> None:
    provider = sl.InMemoryLockProvider()  # has a mutex, so it cannot be pickled
    scheduler = BackgroundScheduler(executors={"default": ShedLockExecutor("processpool", provider)}, timezone="UTC")
    scheduler.start()


def provoke_inactive() -> None:
    sl.set_active(False)
    sl.attempt("nightly", lambda: None, lock_at_most_for="1m")


def without_a_module() -> None:
    """As in a program from PyInstaller, which follows only visible imports."""
    with patch.dict(sys.modules, {"shedlock_py.providers.memory": None}):
        sl.provider_from_url("memory://")


def provoke_a_dropped_message() -> None:
    listener = HealthchecksListener({"nightly": f"http://127.0.0.1:{free_port()}/"})
    with sl.configure(provider=sl.InMemoryLockProvider(), listeners=[listener]), sl.hold("nightly"):
        pass
    assert listener.flush("20s")


PROVOKED: dict[str, Callable[[], Any]] = {
    "no provider for lock 'nightly'": lambda: sl.attempt("nightly", lambda: None, lock_at_most_for="1m"),
    "SHEDLOCK_STORE is set, but nothing has read it": unread_variable,
    "lock 'nightly' has no lock_at_most_for": no_duration,
    "create the table shedlock once, with configure(url, create_schema=True)": without_table,
    "add the missing columns: ALTER TABLE": a_missing_column,
    "acquire of lock 'nightly': connection failed": lambda: dead_server("postgresql+psycopg"),
    "an in-memory SQLite database is private to one connection": lambda: sl.provider_from_url("sqlite://"),
    "the store URL must be a string, not None": lambda: sl.provider_from_url(os.environ.get("NO_SUCH_URL")),  # type: ignore[arg-type]  # on purpose
    "provider is None": lambda: sl.configure(os.environ.get("NO_SUCH_URL")),  # type: ignore[arg-type]  # on purpose
    "is not a lock provider, but of the package": lambda: sl.configure(provider=create_engine("sqlite:///x.db")),  # type: ignore[arg-type]  # on purpose
    "differs in each process": lambda: guard(with_tenant, "job-{tenant}")(object()),
    "whose work may end after the lock was released": guard(lambda: Future()),
    "needs the package": without_its_package,
    "this program was built without the module": without_a_module,
    "guards an ordinary function, but there is only an async provider": only_async,
    "is longer than lock_at_most_for": lambda: sl.LockRequest("nightly", "1m", "2m"),
    "put @scheduler_lock directly above 'def'": lambda: guard(Task()),
    "@scheduler_lock needs a lock name": lambda: sl.scheduler_lock(lambda: None),  # type: ignore[call-overload]  # on purpose
    "the task outlived its lease": provoke_overrun,
    "the task ran longer than keep_alive allows": provoke_a_long_run,
    "not inside a live lease": lambda: sl.extend_lock("1m"),
    "the workers of a process pool": provoke_process_pool,
    "LOCKING IS SWITCHED OFF": provoke_inactive,
    "a message is dropped, jobs are not affected": provoke_a_dropped_message,
}


def messages(document: Path) -> list[str]:
    """Return the code in the first column of its tables."""
    return re.findall(r"^\| `([^`]+)` \|", document.read_text(), re.MULTILINE)


def test_each_message_of_the_page_is_provoked() -> None:
    assert sorted(messages(DOCS / "troubleshooting.md")) == sorted(PROVOKED)


@pytest.mark.parametrize("message", PROVOKED)
def test_troubleshooting_quotes_the_real_message(
    message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.WARNING)
    words = ""
    try:
        with sl.reset():
            PROVOKED[message]()
    except (sl.ShedLockError, TypeError) as error:
        words = str(error)
    finally:
        sl.set_active(None)
    assert message in words + caplog.text
