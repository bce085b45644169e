"""The outbox of listeners: a worker sends the messages, and its errors never reach a job."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from shedlock_py.runtime import outbox as module
from shedlock_py.runtime.outbox import DeliveryFailed, Outbox
from shedlock_py.testing.forks import in_child
from tests.support.logs import warnings_of
from tests.support.polling import wait_until
from tests.support.scripts import run_python


def outbox(send: Callable[[Any], None]) -> Outbox[Any]:
    return Outbox("tests", lambda: send)


class Gated:
    """A sender that holds each message until the gate opens."""

    def __init__(self, gate: threading.Event, first: int = 10**9) -> None:
        self.gate = gate
        self.sent: list[int] = []
        self._first = first

    def __call__(self, message: int) -> None:
        if message < self._first:
            assert self.gate.wait(60)
        self.sent.append(message)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)


def test_messages_are_sent_in_their_order_and_by_one_thread_at_a_time() -> None:
    sent: list[tuple[int, str]] = []
    box = outbox(lambda message: sent.append((message, threading.current_thread().name)))
    for number in range(200):
        box.put(number)
    assert box.flush("10s")
    assert [number for number, _ in sent] == list(range(200))
    assert {name for _, name in sent} == {"shedlock-tests"}
    assert box.dropped == 0


def test_put_does_not_wait_for_the_service(gate: threading.Event) -> None:
    send = Gated(gate)
    box = outbox(send)
    for number in range(100):
        box.put(number)
    assert send.sent == [], "the service has not taken the first yet"
    assert not box.flush("10ms")
    assert box.dropped == 0
    gate.set()
    assert box.flush("10s")


def test_a_full_outbox_drops_what_is_put_in_and_warns_once(
    gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    send = Gated(gate)
    sent, box = send.sent, outbox(send)
    for number in range(module.MOST_WAITING + 7):
        box.put(number)
    assert box.dropped == 7
    assert warnings_of(caplog) == [
        "tests: a message is dropped, jobs are not affected: 1000 others are waiting to be sent"
    ]
    gate.set()
    assert box.flush("20s")
    assert sent == list(range(module.MOST_WAITING))
    box.put(-1)
    assert box.flush("10s")
    assert (sent[-1], box.dropped) == (-1, 7)


def test_late_news_is_not_sent(
    gate: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_WAIT", 0.05)
    send = Gated(gate)
    sent, box = send.sent, outbox(send)
    box.put(1)
    box.put(2)
    wait_until(lambda: box.flush("60ms") is False)
    gate.set()
    assert box.flush("10s")
    assert (sent, box.dropped) == ([1], 1)
    assert warnings_of(caplog) == ["tests: a message is dropped, jobs are not affected: not sent within 0.05 s"]


@pytest.mark.parametrize(("is_final", "attempts"), [(False, 2), (True, 1)])
def test_a_delivery_that_fails_is_tried_once_more(
    is_final: bool, attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[str] = []

    def send(message: str) -> None:
        tried.append(message)
        raise DeliveryFailed("example.com replied 500", is_final=is_final)

    box = outbox(send)
    for message in "abc":
        box.put(message)
    assert box.flush("10s")
    assert tried == [message for message in "abc" for _ in range(attempts)]
    assert box.dropped == 3
    assert warnings_of(caplog) == ["tests: a message is dropped, jobs are not affected: example.com replied 500"]


def test_a_message_that_the_second_attempt_delivers(caplog: pytest.LogCaptureFixture) -> None:
    tried: list[int] = []

    def send(message: int) -> None:
        tried.append(message)
        if len(tried) == 1:
            raise DeliveryFailed("a short outage")

    box = outbox(send)
    box.put(1)
    assert box.flush("10s")
    assert (tried, box.dropped, warnings_of(caplog)) == ([1, 1], 0, [])


def test_each_outage_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:

    def send(is_there: bool) -> None:
        if not is_there:
            raise DeliveryFailed("down", is_final=True)

    box = outbox(send)
    for is_there, warned in ((False, 1), (False, 1), (True, 1), (False, 2), (False, 2)):
        box.put(is_there)
        assert box.flush("10s")
        assert len(warnings_of(caplog)) == warned


@pytest.mark.parametrize("error", [ValueError("s3cret"), SystemExit("s3cret"), MemoryError()])
def test_what_a_sender_raises_ends_nothing_and_its_text_is_not_logged(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def send(message: int) -> None:
        if message == 1:
            raise error
        sent.append(message)

    sent: list[int] = []
    box = outbox(send)
    for message in (1, 2):
        box.put(message)
    assert box.flush("10s")
    assert (sent, box.dropped) == ([2], 1)
    assert warnings_of(caplog, f"unexpected {type(error).__name__}")
    assert "s3cret" not in caplog.text


def test_a_sender_that_cannot_be_opened_is_opened_again_for_the_next_message() -> None:
    opened: list[int] = []

    def open_sender() -> Callable[[int], None]:
        opened.append(0)
        if len(opened) == 1:
            raise DeliveryFailed("no certificates", is_final=True)
        return lambda message: None

    box = Outbox("tests", open_sender)
    for number in range(3):
        box.put(number)
    assert box.flush("10s")
    assert (len(opened), box.dropped) == (2, 1)


def test_a_message_for_which_no_thread_starts_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    box = outbox(lambda _: None)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        box.put(1)
    assert box.dropped == 1
    assert warnings_of(caplog) == ["tests: a message is dropped, jobs are not affected: can't start new thread"]
    box.put(2)
    assert box.flush("10s")
    assert box.dropped == 1


def test_what_many_threads_put_in_is_sent_once() -> None:
    sent: list[int] = []
    box = outbox(sent.append)

    def work() -> None:
        for number in range(50):
            box.put(number)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert box.flush("10s")
    assert sorted(sent) == sorted(list(range(50)) * 16)


def test_a_forked_child_has_an_outbox_of_its_own(gate: threading.Event) -> None:
    """This holds while the parent's worker is busy and the parent's messages wait."""
    send = Gated(gate, first=2)
    sent, box = send.sent, outbox(send)
    box.put(0)
    box.put(1)

    def child() -> None:
        assert box.flush("10ms")  # the child has no message to send
        box.put(2)
        assert box.flush("10s")
        assert sent == [2]
        assert box.dropped == 0

    in_child(child)
    gate.set()
    assert box.flush("10s")
    assert sent == [0, 1]


EXIT = """
import sys, time
from shedlock_py.runtime.outbox import Outbox

def send(message):
    time.sleep(float(sys.argv[1]))
    print(message, flush=True)

box = Outbox("tests", lambda: send)
for number in range(3):
    box.put(number)
print("end", flush=True)
"""


@pytest.mark.not_quick("starts a Python")
@pytest.mark.parametrize(("seconds", "sent"), [(0.05, ["0", "1", "2"]), (3600, [])])
def test_the_exit_waits_for_messages_but_not_for_long(seconds: float, sent: list[str]) -> None:
    done = run_python("-c", EXIT, str(seconds))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["end", *sent]
