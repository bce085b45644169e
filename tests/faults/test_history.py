"""What is written survives its process, and reads as it was."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from shedlock_py import InMemoryLockProvider, LockRequest, ProviderUnreachable
from shedlock_py._clock import monotonic
from shedlock_py.providers.memory import AsyncInMemoryLockProvider
from tests.faults.fenced_log import FencedLog
from tests.faults.history import NEVER, History, Logbook, Reader
from tests.faults.recording import AsyncRecordedProvider, RecordedProvider
from tests.support.doubles import FaultyProvider


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history"


def read(path: Path) -> History:
    return Reader(path).update().history()


def test_what_a_provider_is_asked(path: Path) -> None:
    before = monotonic()
    provider = RecordedProvider(InMemoryLockProvider(), Logbook(path, "w"), keep_alive=True)
    lease = provider.acquire(LockRequest("job", "1m", "1s"))
    assert lease is not None
    assert provider.acquire(LockRequest("job", "2m")) is None
    trusted_until = lease.trusted_until
    assert provider.extend(lease, "2m") is lease
    longer = lease.trusted_until
    assert provider.release(lease)
    assert not provider.release(lease)
    acquire, skip, extend, release, again = read(path).operations
    assert (acquire.worker, acquire.kind, acquire.name, acquire.outcome) == ("w", "acquire", "job", "granted")
    assert (acquire.at_most, acquire.at_least, acquire.keep_alive) == (60, 1, True)
    assert (acquire.claim, acquire.token, acquire.trusted_until) == (lease.claim_id, lease.fencing_token, trusted_until)
    assert (skip.outcome, skip.claim, skip.token) == ("skipped", "", None)
    assert (extend.outcome, extend.at_most) == ("done", 120)
    assert (extend.believed, extend.trusted_until) == (trusted_until, longer)
    assert (release.outcome, release.believed, release.trusted_until) == ("done", longer, NEVER)
    assert again.outcome == "lost"
    moments = [moment for o in (acquire, skip, extend, release) for moment in (o.started, o.end)]
    moments = [before, *moments, monotonic()]
    assert moments == sorted(moments)


async def test_what_an_async_provider_is_asked(path: Path) -> None:
    provider = AsyncRecordedProvider(AsyncInMemoryLockProvider(), Logbook(path, "w"))
    lease = await provider.acquire(LockRequest("job", "1m"))
    assert lease is not None
    await provider.extend(lease, "1m")
    await provider.release(lease)
    assert [(o.kind, o.outcome) for o in read(path).operations] == [
        ("acquire", "granted"), ("extend", "done"), ("release", "done"),
    ]  # fmt: skip


def test_an_error(path: Path) -> None:
    store = FaultyProvider()
    provider = RecordedProvider(store, Logbook(path, "w"))
    lease = provider.acquire(LockRequest("job", "1m"))
    assert lease is not None
    store.fail("extend")
    with pytest.raises(ProviderUnreachable):
        provider.extend(lease, "30s")
    extend = read(path).operations[-1]
    assert (extend.outcome, extend.error) == ("error", "ProviderUnreachable: down")
    assert extend.believed == extend.trusted_until == lease.trusted_until


async def test_a_cancellation(path: Path) -> None:
    logbook = Logbook(path, "w")

    async def wait() -> None:
        with logbook.operation("acquire", "job"):
            await asyncio.sleep(60)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert [o.outcome for o in read(path).operations] == ["cancelled"]


def test_an_operation_that_never_ended(path: Path) -> None:
    with Logbook(path, "w").operation("acquire", "job", at_most=1.0):
        reader = Reader(path)
        (started,) = reader.update().history().operations
        assert (started.ended, started.outcome, started.end) == (None, None, float("inf"))
        assert reader.is_busy("w")
    assert not reader.update().is_busy("w")


def test_half_a_line_is_read_when_it_is_whole(path: Path) -> None:
    Logbook(path, "w").mark("killed", "v", 1.0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    reader = Reader(path)
    assert reader.update().history().marks == ()
    path.write_bytes(whole)
    (mark,) = reader.update().history().marks
    assert (mark.kind, mark.worker, mark.before) == ("killed", "v", 1.0)


def test_who_holds_what(path: Path) -> None:
    provider = RecordedProvider(InMemoryLockProvider(), Logbook(path, "w"))
    reader = Reader(path)
    lease = provider.acquire(LockRequest("job", "1m"))
    assert lease is not None
    reader.update()
    assert reader.holding["w"].claim == lease.claim_id
    assert reader.last_grants == {"job": reader.holding["w"].end}
    provider.release(lease)
    assert reader.update().holding == {}
    assert reader.counts == {("w", "acquire", "granted"): 1, ("w", "release", "done"): 1}


def test_lines_of_many_threads_do_not_mix(path: Path) -> None:
    provider = RecordedProvider(InMemoryLockProvider(), Logbook(path, "w"))

    def work(name: str) -> None:
        for _ in range(200):
            lease = provider.acquire(LockRequest(name, "1m"))
            assert lease is not None
            provider.release(lease)

    threads = [threading.Thread(target=work, args=(f"job-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read(path).of("acquire", outcome="granted")) == len(read(path).of("release", outcome="done")) == 800


def test_the_fenced_log_refuses_older_tokens(tmp_path: Path) -> None:
    log = FencedLog(tmp_path / "log")
    token = 1_700_000_000_000_000
    assert [log.write("job", token + more) for more in (1, 1, 0, 5, 4, 6)] == [True, True, False, True, False, True]
    assert log.write("another", 3)
    assert not FencedLog(tmp_path / "log").write("job", token)
