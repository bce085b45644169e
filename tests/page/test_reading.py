"""Reads that several requests share, and their time limit."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from shedlock_py import InMemoryLockProvider
from shedlock_py.page import app, page_app, reading
from shedlock_py.page.reading import Shared, Store
from tests.page.client import Client
from tests.page.sample import Sample


class Counting(InMemoryLockProvider):
    reads = 0

    def records(self, prefix: str = "") -> Any:
        self.reads += 1
        return super().records(prefix)


def test_a_read_of_the_list_serves_all_requests_of_two_seconds(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FRESH", 1000.0)
    provider = Counting(shared_with=sample.provider, history=50)
    client = Client(page_app(provider, allow_changes=True))
    for path in ("/", "/?show=overdue", "/?q=import", "/leaders"):
        client.html(path)
    assert provider.reads == 1
    assert client.change("pause", "clean-up").status_code == 303
    assert "2 paused" in client.html("/"), "a change is seen at once"
    assert provider.reads == 2


def test_how_long_a_read_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    now, reads = [0.0], iter(range(10))
    shared = Shared(lambda: now[0])

    def read() -> int:
        now[0] += 5.0  # a slow store
        return next(reads)

    assert shared.get("a", read) == (0, 0.0)
    now[0] += 2.0
    assert shared.get("a", read) == (0, 0.0), "two seconds after its end, and it began seven seconds ago"
    now[0] += 0.1
    assert shared.get("a", read) == (1, 7.1)
    assert shared.get("b", read) == (2, 12.1)


def test_a_reply_that_began_before_a_change_gives_its_old_rows_to_nobody(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "FRESH", 1000.0)
    shared = Shared()
    slow, later = Store(sample.provider, shared), Store(sample.provider, shared)
    old = slow.records()
    sample.provider.pause("clean-up", "1h")
    shared.forget()
    assert "paused" not in {job.state for job in slow.jobs([each for each in old if each.name == "clean-up"])[0]}
    new = [each for each in later.records() if each.name == "clean-up"]
    assert [job.state for job in later.jobs(new)[0]] == ["paused"]


def test_an_error_is_for_all_who_wait_for_the_same_read() -> None:
    shared, may_end, errors = Shared(), threading.Event(), list[BaseException]()

    def read() -> None:
        assert may_end.wait(20)
        raise OSError("cable")

    def visit() -> None:
        try:
            shared.get("a", read)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=visit) for _ in range(3)]
    for thread in threads:
        thread.start()
    may_end.set()
    for thread in threads:
        thread.join()
    assert len(errors) == 3


def test_a_store_that_hangs_is_given_up_after_ten_seconds(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "LONGEST_READ", 0.05)
    may_end = threading.Event()

    class Hanging(InMemoryLockProvider):
        def records(self, prefix: str = "") -> Any:
            assert may_end.wait(20)
            return super().records(prefix)

    client = Client(page_app(Hanging(shared_with=sample.provider)))
    html = client.html("/", 503)
    assert "<h1>The store does not reply</h1>" in html
    assert "No reply came within 0.05 seconds." in html
    may_end.set()
