"""The watchdog of silent connections sleeps while all is well."""

import gc
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from shedlock_py import LockRequest, ProviderUnreachable
from shedlock_py._clock import monotonic
from shedlock_py.providers.kit import NotSent
from shedlock_py.providers.sqlalchemy.watchdog import Duplicate, Watchdog, watchdog
from tests.stores.sql.stores import SYNC_DRIVERS, Store, acquired
from tests.support.polling import wait_until


class Bell(threading.Condition):
    rung = 0

    def notify(self, n: int = 1) -> None:
        self.rung += 1
        super().notify(n)


@contextmanager
def limit(dog: Watchdog, one: socket.socket, seconds: float) -> Iterator[None]:
    own = dog.begin(one.fileno(), monotonic() + seconds)
    yield
    dog.end(own)


def test_ordinary_calls_do_not_wake_it() -> None:
    """It was woken for each of them, once it had looked at a moment when there was none."""
    dog = Watchdog()
    dog._changed = bell = Bell(dog._mutex)
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        with limit(dog, ours, 5.0):
            wait_until(lambda: dog._wakes_at < float("inf"), what="asleep")
        with limit(dog, ours, 1.0):  # it is woken
            pass
        assert bell.rung == 1
        wait_until(lambda: not dog._is_used, what="asleep again, and it has seen nobody")
        for _ in range(100):
            with limit(dog, ours, 5.0):
                pass
        assert bell.rung == 1


def test_a_thread_that_cannot_start_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of threads is reached, say. The next one may start again."""
    dog = Watchdog()
    ours, theirs = socket.socketpair()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with closing(ours), closing(theirs):
        before = len(os.listdir("/dev/fd"))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(NotSent):
                dog.begin(ours.fileno(), monotonic() + 5)
        assert len(os.listdir("/dev/fd")) == before
        own = dog.begin(ours.fileno(), monotonic() + 0.05)
        theirs.settimeout(30)
        assert theirs.recv(1) == b"", "it watches now"
        dog.end(own)
        assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize("driver", SYNC_DRIVERS)
def test_without_its_thread_nothing_is_sent(
    driver: str, store: Store, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas skip the run as they do while the store is unreachable: the next one may start the thread."""
    provider, pooled = store.provider(), store.provider()
    acquired(pooled, f"{name}-other")
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "shedlock-watchdog":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(watchdog, "_thread", None)
        patch.setattr(threading.Thread, "start", refuse)
        for each in (provider, pooled):
            with pytest.raises(ProviderUnreachable, match=f"acquire of lock '{name}'.*silent: can't start new thread"):
                each.acquire(LockRequest(name, "1m"))
    for each in (provider, pooled):
        assert each.record(name) is None
    assert provider.release(acquired(provider, name))


def test_without_a_file_descriptor_it_is_an_error_and_nothing_else() -> None:
    """Not also a traceback on stderr, from closing the one that could not be had."""
    one, another = socket.socketpair()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with closing(one), closing(another):
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                Duplicate(one)
            gc.collect()  # what cannot be closed then is a warning, which is an error here
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
