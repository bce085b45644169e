"""I12: on SQLite, a signal handler's exception reaches the caller unchanged, and leaves nothing locked."""

import gc
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType

import pytest

from shedlock_py import LockRequest, ProviderError
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.support.locks import acquired
from tests.support.polling import wait_until
from tests.support.signals import Interrupted, raised_by


@pytest.fixture
def _raising_handler() -> Iterator[None]:
    with raised_by(signal.SIGUSR1, Interrupted):
        yield


@pytest.mark.parametrize("operation", ["acquire", "take_over"])
@pytest.mark.usefixtures("_raising_handler")
def test_i12_a_signal_while_the_statement_waits_for_the_writer(operation: str, tmp_path: Path, name: str) -> None:
    """The handler once ran inside the statement's callback, and SQLite replaced its exception with an error."""
    file = tmp_path / "locks.db"
    main = threading.get_ident()

    def is_waiting() -> bool:
        frame = sys._current_frames()[main]  # no public function shows another thread's position
        return "providers/sqlalchemy/connections" in frame.f_code.co_filename

    def interrupt() -> None:
        wait_until(is_waiting, what="the statement")
        os.kill(os.getpid(), signal.SIGUSR1)
        writer.execute("ROLLBACK")

    with (
        closing(SqlAlchemyLockProvider(f"sqlite:///{file}")) as provider,
        closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as writer,
    ):
        provider.create_schema()
        for _ in range(20):
            writer.execute("BEGIN IMMEDIATE")
            interrupting = threading.Thread(target=interrupt)
            interrupting.start()
            with pytest.raises(Interrupted):
                getattr(provider, operation)(LockRequest(name, "1h"))
            interrupting.join()
            if operation == "take_over":  # not undone: a former holder may still trust its lease
                provider.force_release(name)
            assert provider.release(acquired(provider, name)), "nothing stays locked"


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"  # if it comes in a finalizer, Python reports and drops it
)
def test_a_provider_survives_exceptions_while_it_takes_connections(tmp_path: Path, name: str) -> None:
    """At some of these moments, SQLAlchemy's own pool would count a connection as taken forever."""
    interrupted = 0
    with (
        without_collector(),
        closing(SqlAlchemyLockProvider(f"sqlite:///{tmp_path}/locks.db", timeout="2s")) as provider,
    ):
        provider.create_schema()
        for moment in range(1, 90):
            with raising_at(moment), suppress(Interrupted, ProviderError):
                interrupted += 1
                provider.record(name)
                interrupted -= 1
        assert interrupted > 20
        assert provider.release(acquired(provider, name))


@contextmanager
def without_collector() -> Iterator[None]:
    """A lost connection must not wait for the garbage collector, which may run late in an idle process."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


POOLS = ("sqlalchemy/pool/base.py", "sqlalchemy/pool/impl.py", "providers/kit/pool.py")


@contextmanager
def raising_at(moment: int) -> Iterator[None]:
    """Raise like a signal handler, at the given call inside the two pools."""
    calls = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        if event in ("call", "return") and frame.f_code.co_filename.endswith(POOLS):
            calls += 1
            if calls == moment:
                raise Interrupted

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
