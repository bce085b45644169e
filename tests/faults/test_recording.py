"""What people and tools ask of a provider is in the history, too; and a worker asks for all of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shedlock_py import InMemoryLockProvider, LockRequest
from shedlock_py.providers.memory import AsyncInMemoryLockProvider
from tests.faults.history import History, Logbook, Operation, Reader
from tests.faults.recording import AsyncRecordedProvider, RecordedProvider
from tests.faults.worker import Behaviour, Config, Worker

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
AT_NOON = LockRequest("job", "1m", fire_time=NOON)


def test_what_a_provider_is_asked(tmp_path: Path) -> None:
    provider = RecordedProvider(InMemoryLockProvider(), Logbook(tmp_path / "history", "w"))
    assert not provider.force_release("job")
    provider.acquire(AT_NOON)
    taken = provider.take_over(LockRequest("job", "2m", "1s"))
    assert provider.prune(0) == 0
    assert provider.force_release("job")
    assert provider.acquire(AT_NOON) is None
    assert provider.prune(0) == 1
    history = Reader(tmp_path / "history").update().history()
    _assert_asked(history)
    (take_over,) = history.of("take_over")
    assert (take_over.claim, take_over.token) == (taken.claim_id, taken.fencing_token)
    assert (take_over.at_most, take_over.at_least, take_over.trusted_until) == (120, 1, taken.trusted_until)


async def test_what_an_async_provider_is_asked(tmp_path: Path) -> None:
    provider = AsyncRecordedProvider(AsyncInMemoryLockProvider(), Logbook(tmp_path / "history", "w"))
    assert not await provider.force_release("job")
    await provider.acquire(AT_NOON)
    await provider.take_over(LockRequest("job", "2m", "1s"))
    assert await provider.prune(0) == 0
    assert await provider.force_release("job")
    assert await provider.acquire(AT_NOON) is None
    assert await provider.prune(0) == 1
    _assert_asked(Reader(tmp_path / "history").update().history())


def _assert_asked(history: History) -> None:
    assert [(o.kind, o.name, o.outcome) for o in history.operations] == [
        ("force_release", "job", "free"),
        ("acquire", "job", "granted"),
        ("take_over", "job", "granted"),
        ("prune", "", "nothing"),
        ("force_release", "job", "done"),
        ("acquire", "job", "skipped"),
        ("prune", "", "done"),
    ]
    assert [o.fire_time for o in history.of("acquire")] == [NOON.timestamp()] * 2
    assert [o.fire_time for o in history.of("take_over", "prune")] == [None] * 3


def test_who_takes_over_is_a_holder(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "history")
    provider = RecordedProvider(InMemoryLockProvider(), Logbook(tmp_path / "history", "w"))
    lease = provider.take_over(LockRequest("job", "1m"))
    held: Operation = reader.update().holding["w"]
    assert held.claim == lease.claim_id
    provider.release(lease)
    assert reader.update().holding == {}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config("w", str(tmp_path / "history"), str(tmp_path / "log"), ["job"], 1, False, "")


def test_extensions_are_of_many_lengths(config: Config) -> None:
    worker = Worker(replace(config, behaviour=Behaviour(at_most=2.0, varies=0.5, lengths=(0.3, 1.5))))
    lengths = [worker.extension() for _ in range(400)]
    assert 100 < lengths.count(2.0) < 300
    assert 0.6 <= min(lengths) < 1.0 < 2.5 < max(lengths) <= 3.0
    assert Worker(replace(config, behaviour=Behaviour(at_most=2.0, varies=0.0))).extension() == 2.0


def test_fire_times_are_those_of_its_wall_clock(config: Config) -> None:
    def next_fire_time(skew: float) -> float:
        worker = Worker(replace(config, behaviour=Behaviour(fires_every=1000.0, skew=skew)))
        assert 0 <= worker.until_next() <= 1000
        fire_time = worker.request().fire_time
        assert fire_time is not None
        worker.until_next()
        following = worker.request().fire_time
        assert following is not None
        assert (following - fire_time).total_seconds() == 1000, "each of them once"
        return fire_time.timestamp()

    first = next_fire_time(0.0)
    assert first % 1000 == 0
    assert next_fire_time(5000.0) - first in (5000, 6000), "a fire time may have gone by between the two"
