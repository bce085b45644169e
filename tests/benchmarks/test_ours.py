"""Our own contenders use the library as a job does: with one request for each name, for all runs."""

import asyncio

import pytest

from benchmarks.contenders.ours import AsyncProviderSession, ProviderSession
from benchmarks.servers import Site
from shedlock_py import AsyncInMemoryLockProvider, InMemoryLockProvider, Lease, LockRequest

SITE = Site("memory")


class Recording(InMemoryLockProvider):
    def __init__(self) -> None:
        super().__init__()
        self.requests: list[LockRequest] = []

    def acquire(self, request: LockRequest) -> Lease | None:
        self.requests.append(request)
        return super().acquire(request)

    def close(self) -> None:
        """It has nothing to close."""


class AsyncRecording(AsyncInMemoryLockProvider):
    def __init__(self) -> None:
        super().__init__()
        self.requests: list[LockRequest] = []

    async def acquire(self, request: LockRequest) -> Lease | None:
        self.requests.append(request)
        return await super().acquire(request)

    async def close(self) -> None:
        """It has nothing to close."""


def check(requests: list[LockRequest]) -> None:
    assert [request.name for request in requests] == ["a", "b", "a", "b"]
    assert len({id(request) for request in requests}) == 2


def test_synchronous() -> None:
    provider = Recording()
    session = ProviderSession(SITE, lambda site: (provider, provider.close))
    for name in "abab":
        session.cycle(name)
    check(provider.requests)


def test_asynchronous() -> None:
    async def run() -> None:
        session = AsyncProviderSession(SITE, lambda site: (provider, provider.close))
        await session.start()
        for name in "abab":
            await session.cycle(name)

    provider = AsyncRecording()
    asyncio.run(run())
    check(provider.requests)


def test_what_is_expected_is_made_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Recording()
    session = ProviderSession(SITE, lambda site: (provider, provider.close))
    session.expect(["a"])
    monkeypatch.setattr("benchmarks.contenders.ours.LockRequest", None)  # no more can be made
    session.cycle("a")
    assert len(provider.requests) == 1
