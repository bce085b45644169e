"""``shedlock watch``: a line for each change, and its end."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shedlock_py import InMemoryLockProvider, LockRecord, LockRequest
from shedlock_py.cli.watch import Watch
from shedlock_py.election.demotion import Demotion
from shedlock_py.providers.redis import RedisLockProvider
from shedlock_py.testing import FakeClock
from tests.cli.harness import file_store, in_a_process, provider_at, take
from tests.cli.terminal import environment
from tests.support.availability import private_server
from tests.support.forked import Program
from tests.support.polling import wait_until
from tests.support.redis import RedisServer

# Changes


class Reads:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.provider = InMemoryLockProvider(clock=self.clock)
        self.watch = Watch()

    def update(self) -> list[tuple[str, str, str]]:
        changes = self.watch.update(self.provider.records())
        return [(kind, record.name, record.holder) for kind, record in changes]

    def take(self, name: str = "job", at_most: str = "10s", **options: Any) -> Any:
        return take(self.provider, name, at_most, **{"holder": "me", **options})

    def part_left(self) -> float:
        (record,) = self.provider.records()
        return self.watch.part_left(record)


@pytest.fixture
def reads() -> Reads:
    return Reads()


def test_the_first_read_reports_what_is_held(reads: Reads) -> None:
    reads.provider.release(reads.take("free"))
    reads.take()
    assert reads.update() == [("held", "job", "me")]
    assert reads.update() == []


def test_acquired_and_released(reads: Reads) -> None:
    reads.update()
    lease = reads.take()
    assert reads.update() == [("acquired", "job", "me")]
    reads.clock.advance(5)
    assert reads.update() == []
    reads.provider.release(lease)
    assert reads.update() == [("released", "job", "me")]
    assert reads.update() == []


def test_extended_and_expired(reads: Reads) -> None:
    lease = reads.take()
    reads.update()
    reads.clock.advance(5)
    reads.provider.extend(lease, "10s")
    assert reads.update() == []
    reads.clock.advance(10)
    assert reads.update() == [("expired", "job", "me")]
    assert reads.update() == []


def test_released_and_held_for_its_minimum(reads: Reads) -> None:
    lease = reads.take(lock_at_least_for="5s")
    reads.update()
    reads.provider.release(lease)
    assert reads.update() == []
    reads.clock.advance(5)
    assert reads.update() == [("released", "job", "me")]


def test_another_holder_between_two_reads(reads: Reads) -> None:
    reads.provider.release(reads.take())
    reads.update()
    reads.provider.release(reads.take(holder="you"))
    assert reads.update() == [("ran", "job", "you")]
    reads.take(holder="she")
    reads.update()
    reads.provider.take_over(LockRequest("job", "1m", holder="he"))
    assert reads.update() == [("acquired", "job", "he")]


def test_a_new_lock_that_ran_and_one_that_was_deleted(reads: Reads) -> None:
    reads.update()
    reads.provider.release(reads.take())
    assert reads.update() == [("ran", "job", "me")]
    reads.provider.prune(0)
    assert reads.update() == [("deleted", "job", "me")]
    assert reads.update() == []


def test_a_lease_of_java_that_expires_after_one_that_was_released() -> None:
    """ShedLock for Java does not write claim ids, so two acquisitions of one host look like an extension."""
    watch, epoch = Watch(), datetime(2026, 1, 1, tzinfo=UTC)

    def read(locked_at: int, lock_until: int, now: int) -> list[str]:
        moments = (epoch + timedelta(seconds=second) for second in (locked_at, lock_until, now))
        begin, end, read_at = moments
        return [kind for kind, _ in watch.update([LockRecord("job", "host", begin, end, None, None, read_at)])]

    assert read(0, 600, 1) == ["held"]
    assert read(0, 60, 60) == ["released"]
    assert read(100, 700, 101) == []
    assert read(100, 700, 701) == ["expired"]


def test_a_demotion_is_reported_as_one(reads: Reads) -> None:
    reads.take()
    reads.update()
    reads.provider.take_over(Demotion("me", timedelta(0)).request("job", timedelta(seconds=5)))
    assert reads.update() == [("demoted", "job", "demoted 0ms me")]


def test_the_part_that_is_left(reads: Reads) -> None:
    lease = reads.take()
    assert reads.part_left() == 1
    reads.clock.advance(4)
    assert reads.part_left() == pytest.approx(0.6)
    for _ in range(100):
        reads.clock.advance(5)
        reads.provider.extend(lease, "10s")
    reads.update()
    assert reads.part_left() < 0.03, "the record has the time of the acquisition, not of the extension"
    reads.clock.advance(5)
    reads.provider.extend(lease, "10s")
    reads.update()
    assert reads.part_left() == pytest.approx(1)
    reads.clock.advance(7)
    reads.update()
    assert reads.part_left() == pytest.approx(0.3)
    reads.clock.advance(7)
    assert reads.part_left() == 0


# The command


Lines = Callable[[int], list[str]]
"""Waits for that many lines of output."""


@contextmanager
def watching(tmp_path: Path, store: str, *arguments: str, **variables: str) -> Iterator[Lines]:
    """Run ``shedlock watch`` in a new process that writes to a file, and end it by Ctrl-C."""
    output = tmp_path / "output"
    with output.open("wb") as file:
        words = ["-m", "shedlock_py", "watch", "--every", "100ms", *arguments]
        environ = environment(SHEDLOCK_STORE=store, **variables)
        process = Program(words, stdout=file, stderr=subprocess.STDOUT, env=environ)

    def wait_for(number: int) -> list[str]:
        wait_until(lambda: len(output.read_text().splitlines()) >= number, timeout=20, what=f"{number} lines")
        return output.read_text().splitlines()

    try:
        yield wait_for
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0, output.read_text()
    finally:
        process.kill()
        process.wait(10)
    assert "Traceback" not in output.read_text()


@in_a_process
@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1"}])
def test_a_line_for_each_change(variables: dict[str, str], tmp_path: Path) -> None:
    store = file_store(tmp_path)
    provider = provider_at(store)
    take(store, "held", holder="a")
    take(store, "another", holder="a")
    with watching(tmp_path, store, "held", **variables) as wait_for:
        wait_for(1)
        lease = take(store, "held-2", holder="[b]")
        (_, line) = wait_for(2)
        provider.release(lease)
        lines = [line.split("  ") for line in wait_for(3)]
    assert [words[1].strip() for words in lines] == ["held", "acquired", "released"]
    assert line.endswith(f"acquired     held-2  by [b], for 10m, token {lease.fencing_token}")
    assert "another" not in (tmp_path / "output").read_text()


@in_a_process
def test_with_json_each_change_is_one_object_on_one_line(tmp_path: Path) -> None:
    store = file_store(tmp_path)
    take(store, "held")
    with watching(tmp_path, store, "--json") as wait_for:
        wait_for(1)
        take(store, "job\u202e", "1s", holder="me")
        lines = wait_for(3)
    assert all(line.isascii() and line.isprintable() for line in lines)
    changes = [json.loads(line) for line in lines]
    assert [set(change) for change in changes] == [{"time", "change", "error", "lock"}] * 3
    assert [change["change"] for change in changes] == ["held", "acquired", "expired"]
    assert [change["lock"]["held"] for change in changes] == [True, True, False]
    assert [change["lock"]["name"] for change in changes] == ["held", "job\u202e", "job\u202e"]


@in_a_process
def test_it_survives_a_store_that_is_away(tmp_path: Path) -> None:
    with private_server("redis", RedisServer) as server:
        provider = RedisLockProvider(server.url())
        server.stop()
        with watching(tmp_path, server.url(), "--json") as wait_for:
            wait_for(1)
            server.start()
            wait_for(2)
            take(provider, "job", holder="me")
            wait_for(3)
            server.kill()
            changes = [json.loads(line) for line in wait_for(4)]
        assert [change["change"] for change in changes] == ["failed", "recovered", "acquired", "failed"]
        assert [bool(change["error"]) for change in changes] == [True, False, False, True]
        assert changes[0]["lock"] is None
        provider.close()


@in_a_process
def test_it_survives_an_error_that_comes_later(tmp_path: Path) -> None:
    store = file_store(tmp_path)
    take(store, "job")
    with watching(tmp_path, store, "--json") as wait_for:
        wait_for(1)
        with sqlite3.connect(tmp_path / "locks.db") as connection:
            connection.execute("DROP TABLE shedlock")
        connection.close()
        wait_for(2)
        provider_at(store).create_schema()
        changes = [json.loads(line) for line in wait_for(4)]
    assert [change["change"] for change in changes] == ["held", "failed", "recovered", "deleted"]
    assert "no such table" in changes[1]["error"]
