"""The time limit for drivers without a limit of their own, where threads cannot be started."""

import errno
import gc
import os
import resource
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from shedlock_py import LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.kit import NotSent
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.providers.sqlalchemy.watchdog import Watchdog
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.threads import Timer
from tests.stores.sql.stores import SYNC_DRIVERS, Store, on, on_mysql_and_mariadb
from tests.support.locks import acquired


@pytest.fixture
def no_timer(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Simulate the limit of threads before the timer has its thread. ``undo()`` ends the simulation."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "shedlock-timer":
            raise RuntimeError("can't start new thread")
        start(thread)

    timer = Timer()
    monkeypatch.setattr("shedlock_py.providers.sqlalchemy.watchdog.timer", lambda: timer)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    return monkeypatch


def open_descriptors() -> set[str]:
    with os.scandir("/dev/fd") as entries:
        own = {entry.name for entry in entries}
    return {number for number in own if os.path.exists(f"/dev/fd/{number}")}


def test_a_limit_without_a_thread_leaves_nothing_open(no_timer: pytest.MonkeyPatch) -> None:
    """The next limit may start the thread."""
    near, far = socket.socketpair()
    with closing(near), closing(far):
        before = open_descriptors()
        watchdog = Watchdog(near.fileno())
        with pytest.raises(NotSent):
            watchdog.set(monotonic() + 5)
        assert not watchdog.call_off()
        no_timer.undo()
        watchdog.set(monotonic() + 0.05)
        far.settimeout(30)
        assert far.recv(1) == b"", "shut down"
        assert watchdog.call_off()
        watchdog.close()
        assert open_descriptors() <= before  # connections of earlier tests may be closed meanwhile


def test_a_limit_that_is_late_leaves_the_next_statement_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer had begun the call when the reply came."""
    calls: list[Callable[[], object]] = []

    class LateTimer:
        def schedule(self, callback: Callable[[], object], _when: float) -> None:
            calls.append(callback)

        def cancel(self, _callback: object) -> None:
            """Do nothing, as a call that comes too late."""

    timer = LateTimer()
    monkeypatch.setattr("shedlock_py.providers.sqlalchemy.watchdog.timer", lambda: timer)
    near, far = socket.socketpair()
    with closing(near), closing(far), closing(Watchdog(near.fileno())) as watchdog:
        far.setblocking(False)
        watchdog.set(monotonic())
        assert not watchdog.call_off()
        calls[0]()
        with pytest.raises(BlockingIOError):
            far.recv(1)
        watchdog.set(monotonic() + 60)
        calls[0]()
        assert not watchdog.call_off()
        watchdog.set(monotonic())
        calls[0]()
        assert watchdog.call_off()
        assert far.recv(1) == b"", "shut down"


@on(SYNC_DRIVERS)
def test_without_its_thread_nothing_is_sent(
    driver: str, store: Store, name: str, request: pytest.FixtureRequest
) -> None:
    """Replicas skip the run as in an outage; the next run may start the thread."""
    provider, pooled = store.provider(), store.provider()
    acquired(pooled, f"{name}-other")
    no_timer: pytest.MonkeyPatch = request.getfixturevalue("no_timer")
    for each in (provider, pooled):
        with pytest.raises(ProviderUnreachable, match=f"acquire of lock '{name}'.*silent: can't start new thread"):
            each.acquire(LockRequest(name, "1m"))
    no_timer.undo()
    for each in (provider, pooled):
        assert each.record(name) is None
    assert provider.release(acquired(provider, name))


@on(SYNC_DRIVERS)
def test_a_lock_is_acquired_where_sockets_are_no_files(
    driver: str, store: Store, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows every connection failed, because os.dup() rejects sockets there."""
    dup, close = os.dup, os.close

    def unless_socket(call: Callable[[int], int | None]) -> Callable[[int], int | None]:
        def refuse(number: int) -> int | None:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            return call(number)

        return refuse

    monkeypatch.setattr(os, "dup", unless_socket(dup))
    monkeypatch.setattr(os, "close", unless_socket(close))
    provider = store.provider()
    assert provider.release(acquired(provider, name))


def test_without_a_file_descriptor_it_is_an_error_and_nothing_else() -> None:
    """Closing the missing descriptor must not print a traceback on stderr."""
    near, far = socket.socketpair()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with closing(near), closing(far):
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                Watchdog(near.fileno())
            gc.collect()  # a failed close is a warning, and an error here
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_i13_a_silent_server_is_left_by_a_process_without_a_free_file_descriptor() -> None:
    near, far = socket.socketpair()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with closing(near), closing(far), closing(Watchdog(near.fileno())) as watchdog:
        far.settimeout(10)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))
        try:
            watchdog.set(monotonic() + 0.05)
            assert far.recv(1) == b"", "shut down"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert watchdog.call_off()
        os.fstat(near.fileno())  # the driver's own is open


@on(on_mysql_and_mariadb("pymysql"))  # the provider opens this driver's socket
def test_a_server_that_refuses_the_connection_sees_its_end(driver: str, name: str) -> None:
    """The connection ends although the error lives on, in a log record or in a cycle for the garbage collector."""
    refusal = b"\xff\x15\x04#28000Access denied for user"
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        provider = SqlAlchemyLockProvider(f"{driver}://user@127.0.0.1:{listener.getsockname()[1]}/d", timeout="30s")
        errors: list[ProviderError] = []

        def request() -> None:
            with pytest.raises(ProviderError, match="Access denied") as caught:
                provider.record(name)
            errors.append(caught.value)

        thread = threading.Thread(target=request)
        thread.start()
        session, _ = listener.accept()
        with closing(session):
            session.settimeout(30)
            session.sendall(len(refusal).to_bytes(3, "little") + b"\0" + refusal)
            thread.join(30)
            assert errors
            session.settimeout(2)
            assert session.recv(1) == b"", "closed"
