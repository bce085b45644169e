"""Async providers in sync code: an event loop in a thread executes each call."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any

import pytest

from shedlock_py import AsyncInMemoryLockProvider, ConfigurationError, LockRequest
from shedlock_py.runtime.blocking import OnOwnLoop
from shedlock_py.settings.options import is_async_provider
from tests.support.doubles import AsyncFaultyProvider
from tests.support.polling import wait_until

variable: ContextVar[str] = ContextVar("variable")


@pytest.fixture(autouse=True)
def loops_end() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    wait_until(lambda: not any(thread.is_alive() for thread in left if thread.name == "shedlock-loop"), what="no loop")


@pytest.fixture
def opened() -> Iterator[Callable[[Any], Any]]:
    facades: list[OnOwnLoop] = []

    def opened(provider: Any) -> Any:
        facades.append(OnOwnLoop(lambda: provider))
        return facades[-1]

    yield opened
    for facade in facades:
        facade.close()


def test_it_has_what_the_provider_has(opened: Callable[[Any], Any]) -> None:
    provider = AsyncInMemoryLockProvider(history=5)
    facade = opened(provider)
    assert not is_async_provider(facade)
    assert repr(facade) == repr(provider)
    assert facade.is_shared is False
    lease = facade.acquire(LockRequest("job", "1m"))
    assert facade.pause("job", for_="1h").is_paused is False
    assert [run.fencing_token for run in facade.runs("job", limit=1)] == [lease.fencing_token]
    assert facade.undo(lease) is True
    assert not hasattr(facade, "create_table_sql")
    assert not hasattr(opened(AsyncFaultyProvider()), "__copy__")


def test_threads_call_it_at_once(opened: Callable[[Any], Any]) -> None:
    provider = AsyncFaultyProvider(hang=["extend"])
    facade = opened(provider)
    lease = facade.acquire(LockRequest("job", "1m"))
    heartbeat = threading.Thread(target=facade.extend, args=(lease, "1m"))
    heartbeat.start()
    assert facade.record("job").is_held  # while the heartbeat gets no reply
    facade.run(called(provider.recover))
    heartbeat.join(30)
    assert provider.calls["extend"] == 1


def test_the_provider_sees_the_context_of_its_caller(opened: Callable[[Any], Any]) -> None:
    variable.set("of the caller")
    assert opened(AsyncInMemoryLockProvider()).run(called(variable.get)) == "of the caller"


def test_ctrl_c_cancels_the_call_and_the_end_of_the_loop_waits_for_what_it_must_undo() -> None:
    facade, cancelled, undone = OnOwnLoop(AsyncInMemoryLockProvider), threading.Event(), threading.Event()

    async def work() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()
            await asyncio.sleep(0.1)
            undone.set()

    with pytest.raises(KeyboardInterrupt):
        facade.run(work())
    assert cancelled.wait(30)
    facade.close()
    assert undone.is_set()


def test_ctrl_c_at_any_line_leaves_no_call(opened: Callable[[Any], Any]) -> None:
    """Warnings fail a test: a coroutine without an owner "was never awaited"."""
    begun: list[str] = []
    ended: list[str] = []

    async def pause() -> None:
        begun.append("pause")
        try:
            await asyncio.Event().wait()  # never set
        finally:
            ended.append("pause")

    provider: Any = AsyncInMemoryLockProvider()
    provider.pause = pause
    facade = opened(provider)
    lines = 0
    while interrupted_at(lines, facade.pause):
        lines += 1
        facade.record("job")  # runs on the loop after anything the interrupted call has left there
        wait_until(lambda: len(begun) == len(ended), what="the end of the call")
    assert lines > 20


def interrupted_at(line: int, call: Callable[[], Any]) -> bool:
    """Raise KeyboardInterrupt after so many lines of ``call``. Return whether the call had not yet waited for its
    result."""
    is_waiting = False
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal is_waiting, lines
        if frame.f_code is threading.Condition.wait.__code__:
            is_waiting = True
            sys.settrace(None)
            raise KeyboardInterrupt
        if event == "line":
            lines += 1
            if lines > line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:  # noqa: SIM105 (the lines of suppress() would count)
        call()
    except KeyboardInterrupt:
        pass
    return not is_waiting


def test_a_call_that_never_ends_does_not_keep_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shedlock_py.runtime.blocking.EXIT_SECONDS", 0.1)
    facade: Any = OnOwnLoop(lambda: AsyncFaultyProvider(hang=["record"]))
    errors: list[BaseException] = []

    def read() -> None:
        try:
            facade.record("job")
        except BaseException as error:
            errors.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    wait_until(lambda: facade.calls["record"], what="a call")
    facade.close()
    reading.join(30)
    assert len(errors) == 1


def test_a_name_lookup_that_hangs_keeps_neither_the_loop_nor_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    facade, found = OnOwnLoop(AsyncInMemoryLockProvider), threading.Event()
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: found.wait())  # as a name server that does not reply

    async def look_up() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, signal.pthread_kill, threading.main_thread().ident or 0, signal.SIGINT)
        await loop.getaddrinfo("example.invalid", 80)

    with pytest.raises(KeyboardInterrupt):
        facade.run(look_up())
    facade.close()
    left = {thread for thread in set(threading.enumerate()) - before if thread.name != "shedlock-loop"}
    assert [(thread.name, thread.daemon) for thread in left] == [("shedlock-loop-worker", True)]
    found.set()


def test_after_its_end() -> None:
    facade: Any = OnOwnLoop(AsyncInMemoryLockProvider)
    facade.close()
    facade.close()
    with pytest.raises(ConfigurationError, match="is closed"):
        facade.record("job")


def test_a_provider_that_cannot_be_made_leaves_no_thread() -> None:
    with pytest.raises(ZeroDivisionError):
        OnOwnLoop(lambda: 1 / 0)  # type: ignore[arg-type, return-value]  # it makes none


async def fail() -> None:
    raise OSError("no connection to close")


@pytest.mark.parametrize("close", [fail, lambda: fail(), lambda: 1 / 0])  # a function may return a coroutine
def test_the_loop_ends_whatever_close_does(close: Callable[[], Any]) -> None:
    provider: Any = AsyncInMemoryLockProvider()
    provider.close = close
    facade = OnOwnLoop(lambda: provider)
    with pytest.raises((OSError, ZeroDivisionError)):
        facade.close()


async def called(function: Callable[[], Any]) -> Any:
    return function()
