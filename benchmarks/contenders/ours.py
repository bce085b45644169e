"""This library, in each way of use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from benchmarks.contenders.base import LEASE, AsyncSession, Contender, RefusedError, Session, load
from benchmarks.servers import STORES, Site
from shedlock_py import (
    AsyncLockProvider,
    Lease,
    LockProvider,
    LockRequest,
    async_provider_from_url,
    provider_from_url,
    scheduler_lock,
    try_hold,
    try_hold_async,
)

Close = Callable[[], Any]


def from_url(site: Site) -> tuple[Any, Close]:
    provider: Any = provider_from_url(site.url())
    return provider, provider.close


def from_own(site: Site) -> tuple[Any, Close]:
    """Open a provider on an application's engine or client, made as in the manuals of SQLAlchemy and the drivers."""
    if site.store == "redis":
        client = load("redis").Redis.from_url(site.url())
        return load("shedlock_py.providers.redis").RedisLockProvider(client), client.close
    if site.store == "mongodb":
        client = load("pymongo").MongoClient(site.url())
        return load("shedlock_py.providers.mongodb").MongoLockProvider(client[site.database]), client.close
    engine = load("sqlalchemy").create_engine(site.url(_DRIVERS[site.store]))
    return load("shedlock_py.providers.sqlalchemy").SqlAlchemyLockProvider(engine), engine.dispose


_DRIVERS = {"postgres": "postgresql+psycopg", "mariadb": "mysql+pymysql", "mysql": "mysql+pymysql", "sqlite": "sqlite"}
_ASYNC_DRIVERS = {
    "postgres": "postgresql+asyncpg",
    "mariadb": "mysql+asyncmy",
    "mysql": "mysql+asyncmy",
    "sqlite": "sqlite+aiosqlite",
}


def from_url_async(site: Site) -> tuple[Any, Close]:
    provider: Any = async_provider_from_url(site.url(_ASYNC_DRIVERS.get(site.store, "")))
    return provider, provider.close


def from_psycopg_async(site: Site) -> tuple[Any, Close]:
    provider: Any = async_provider_from_url(site.url("postgresql+psycopg"))
    return provider, provider.close


def from_own_async(site: Site) -> tuple[Any, Close]:
    if site.store == "redis":
        client = load("redis.asyncio").Redis.from_url(site.url())
        return load("shedlock_py.providers.redis").AsyncRedisLockProvider(client), client.aclose
    if site.store == "mongodb":
        client = load("pymongo").AsyncMongoClient(site.url())
        return load("shedlock_py.providers.mongodb").AsyncMongoLockProvider(client[site.database]), client.close
    engine = load("sqlalchemy.ext.asyncio").create_async_engine(site.url(_ASYNC_DRIVERS[site.store]))
    return load("shedlock_py.providers.sqlalchemy").AsyncSqlAlchemyLockProvider(engine), engine.dispose


class Requests(dict[str, LockRequest]):
    """One request for each lock name, made at its first use: a job and the decorator keep their request, too."""

    def __missing__(self, name: str) -> LockRequest:
        self[name] = LockRequest(name, LEASE)
        return self[name]


class ProviderSession(Session):
    """``acquire`` and ``release`` of a provider, with the same :class:`LockRequest` for each run of a job."""

    def __init__(self, site: Site, make: Callable[[Site], tuple[Any, Close]] = from_url) -> None:
        provider, self.close_provider = make(site)
        self.provider: LockProvider = provider
        self.provider.create_schema()
        self.requests = Requests()
        self.lease: Lease | None = None

    def expect(self, names: Iterable[str]) -> None:
        for name in names:
            self.requests[name]

    def take(self, name: str) -> bool:
        self.lease = self.provider.acquire(self.requests[name])
        return self.lease is not None

    def give(self, name: str) -> None:
        if self.lease is None or not self.provider.release(self.lease):
            raise RefusedError(name)

    def close(self) -> None:
        self.close_provider()


class HoldSession(ProviderSession):
    """``hold`` with the name and the time, as in an application: it makes a new request each time."""

    def cycle(self, name: str) -> None:
        with try_hold(name, lock_at_most_for=LEASE, provider=self.provider) as lease:
            if lease is None:
                raise RefusedError(name)

    def refused(self, name: str) -> bool:
        with try_hold(name, lock_at_most_for=LEASE, provider=self.provider) as lease:
            return lease is None


class DecoratorSession(ProviderSession):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.guarded: dict[str, Callable[[], bool | None]] = {}

    def call(self, name: str) -> bool | None:
        if name not in self.guarded:
            self.guarded[name] = scheduler_lock(name, LEASE, provider=self.provider)(lambda: True)
        return self.guarded[name]()

    def cycle(self, name: str) -> None:
        if not self.call(name):
            raise RefusedError(name)

    def refused(self, name: str) -> bool:
        return self.call(name) is None


class ExecutorSession(ProviderSession):
    """A job of APScheduler in this thread, from its submission to its event."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.scheduler = load("apscheduler.schedulers.background").BackgroundScheduler(timezone=UTC)
        self.scheduler.start(paused=True)
        inner = load("apscheduler.executors.debug").DebugExecutor()
        executor = load("shedlock_py.integrations.apscheduler").ShedLockExecutor
        self.executor = executor(inner, self.provider, lock_all=True, default_lock_at_most_for=LEASE)
        self.executor.start(self.scheduler, "bench")
        self.jobs: dict[str, Any] = {}
        self.runs = 0

    def _run(self) -> None:
        self.runs += 1

    def submit(self, name: str) -> bool:
        """Return whether the job ran."""
        before = self.runs
        if name not in self.jobs:
            far = datetime(2100, 1, 1, tzinfo=UTC)
            self.jobs[name] = self.scheduler.add_job(self._run, "date", run_date=far, id=name)
        self.executor.submit_job(self.jobs[name], [datetime.now(UTC)])
        return self.runs > before

    def cycle(self, name: str) -> None:
        if not self.submit(name):
            raise RefusedError(name)

    def refused(self, name: str) -> bool:
        return not self.submit(name)

    def close(self) -> None:
        self.scheduler.shutdown(wait=False)
        super().close()


class AsyncProviderSession(AsyncSession):
    """A :class:`ProviderSession` for asyncio."""

    def __init__(self, site: Site, make: Callable[[Site], tuple[Any, Close]] = from_url_async) -> None:
        self.site, self.make = site, make
        self.requests = Requests()
        self.provider: AsyncLockProvider
        self.lease: Lease | None = None

    async def start(self) -> None:
        self.provider, self.close_provider = self.make(self.site)
        await self.provider.create_schema()

    async def take(self, name: str) -> bool:
        self.lease = await self.provider.acquire(self.requests[name])
        return self.lease is not None

    async def give(self, name: str) -> None:
        if self.lease is None or not await self.provider.release(self.lease):
            raise RefusedError(name)

    async def close(self) -> None:
        await self.close_provider()


class AsyncHoldSession(AsyncProviderSession):
    """A :class:`HoldSession` for asyncio."""

    async def cycle(self, name: str) -> None:
        async with try_hold_async(name, lock_at_most_for=LEASE, provider=self.provider) as lease:
            if lease is None:
                raise RefusedError(name)

    async def refused(self, name: str) -> bool:
        async with try_hold_async(name, lock_at_most_for=LEASE, provider=self.provider) as lease:
            return lease is None


class AsyncDecoratorSession(AsyncProviderSession):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.guarded: dict[str, Any] = {}

    async def call(self, name: str) -> bool | None:
        if name not in self.guarded:
            self.guarded[name] = scheduler_lock(name, LEASE, provider=self.provider)(_true)
        result: bool | None = await self.guarded[name]()
        return result

    async def cycle(self, name: str) -> None:
        if not await self.call(name):
            raise RefusedError(name)

    async def refused(self, name: str) -> bool:
        return await self.call(name) is None


async def _true() -> bool:
    return True


US = "shedlock_py"


def takes_no_client(store: str, name: str) -> bool:
    """Return whether this way needs a user's client, but these stores' providers reject clients."""
    return store in ("etcd", "dynamodb", "s3", "kubernetes") and name.endswith("your own client")


def _sync(store: str) -> list[Contender]:
    ways: dict[str, Callable[[Site], Session]] = {
        US: ProviderSession,
        f"{US}, your own client": lambda site: ProviderSession(site, from_own),
        f"{US}: hold": HoldSession,
        f"{US}: decorator": DecoratorSession,
        f"{US}: APScheduler job": ExecutorSession,
    }
    return [Contender(store, name, "us", way) for name, way in ways.items() if not takes_no_client(store, name)]


def _async(store: str) -> list[Contender]:
    ways: dict[str, Callable[[Site], AsyncSession]] = {
        US: AsyncProviderSession,
        f"{US}, your own client": lambda site: AsyncProviderSession(site, from_own_async),
        f"{US}: hold_async": AsyncHoldSession,
        f"{US}: decorator": AsyncDecoratorSession,
    }
    return [
        Contender(store, name, "us", way, is_async=True)
        for name, way in ways.items()
        if not takes_no_client(store, name)
    ]


OURS = [
    *(contender for store in STORES for contender in _sync(store)),
    *(contender for store in STORES for contender in _async(store)),
    Contender(
        "postgres",
        f"{US} (psycopg)",
        "us",
        lambda site: AsyncProviderSession(site, from_psycopg_async),
        floor="floor (psycopg)",
        is_async=True,
    ),
]
