"""Other packages, used as in their own manuals. ``lacks`` lists missing features."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from benchmarks.contenders.base import LEASE, SECONDS, AsyncSession, Contender, Session, load
from benchmarks.servers import Site


class LockSession(Session):
    """Packages with a lock object that has ``acquire`` and ``release``."""

    def __init__(self, new_lock: Callable[[str], Any], close: Callable[[], Any] | None = None) -> None:
        self.new_lock = new_lock
        self.close_it = close
        self.lock: Any = None

    def take(self, name: str) -> bool:
        self.lock = self.new_lock(name)
        return bool(self.lock.acquire(blocking=False))

    def give(self, name: str) -> None:
        self.lock.release()

    def close(self) -> None:
        self.lock = None  # some locks release when they are collected, and need the server for it
        if self.close_it is not None:
            self.close_it()


class RaisingSession(LockSession):
    """Packages with a lock object that raises if the lock is held."""

    def __init__(
        self, new_lock: Callable[[str], Any], refusal: type[Exception], close: Callable[[], Any] | None = None
    ) -> None:
        super().__init__(new_lock, close)
        self.refusal = refusal

    def take(self, name: str) -> bool:
        try:
            return super().take(name)
        except self.refusal:
            return False


class AsyncLockSession(AsyncSession):
    def __init__(self, new_lock: Callable[[str], Any], close: Callable[[], Any]) -> None:
        self.new_lock = new_lock
        self.close_it = close
        self.lock: Any = None

    async def take(self, name: str) -> bool:
        self.lock = self.new_lock(name)
        return bool(await self.lock.acquire(blocking=False))

    async def give(self, name: str) -> None:
        await self.lock.release()

    async def close(self) -> None:
        await self.close_it()


class BlockSession(Session):
    """Packages that have only a ``with`` block: ``enter`` returns whether the lock was acquired."""

    def __init__(self, enter: Callable[[ExitStack, str], bool], close: Callable[[], Any] | None = None) -> None:
        self.enter = enter
        self.close_it = close
        self.stack = ExitStack()

    def take(self, name: str) -> bool:
        return self.enter(self.stack, name)

    def give(self, name: str) -> None:
        self.stack.close()

    def close(self) -> None:
        self.stack.close()
        if self.close_it is not None:
            self.close_it()


# Redis


def redis_client(site: Site, **options: Any) -> Any:
    return load("redis").Redis.from_url(site.url(), **options)


def redis_py(site: Site) -> Session:
    client = redis_client(site)
    return LockSession(lambda name: client.lock(name, timeout=SECONDS), client.close)


def redis_py_async(site: Site) -> AsyncSession:
    client = load("redis.asyncio").Redis.from_url(site.url())
    return AsyncLockSession(lambda name: client.lock(name, timeout=SECONDS, blocking=False), client.aclose)


def python_redis_lock(site: Site) -> Session:
    client, module = redis_client(site), load("redis_lock")
    return LockSession(lambda name: module.Lock(client, name, expire=SECONDS), client.close)


def pottery(site: Site) -> Session:
    client, module = redis_client(site), load("pottery")
    return LockSession(lambda name: module.Redlock(key=name, masters={client}, auto_release_time=SECONDS), client.close)


def pottery_async(site: Site) -> AsyncSession:
    client, module = load("redis.asyncio").Redis.from_url(site.url()), load("pottery")
    return AsyncLockSession(
        lambda name: module.AIORedlock(key=name, masters={client}, auto_release_time=SECONDS), client.aclose
    )


class RedlockNg(Session):
    def __init__(self, site: Site) -> None:
        self.redlock = load("redlock").Redlock([site.url()], retry_count=0)
        self.lock: Any = None

    def take(self, name: str) -> bool:
        self.lock = self.redlock.acquire(name, SECONDS * 1000)
        return self.lock is not None

    def give(self, name: str) -> None:
        self.redlock.release(self.lock)

    def close(self) -> None:
        for client in self.redlock.client.instances:
            client.close()


class RedlockNgAsync(AsyncSession):
    def __init__(self, site: Site) -> None:
        self.redlock = load("redlock").AsyncRedlock([site.url()], retry_count=0)
        self.lock: Any = None

    async def take(self, name: str) -> bool:
        self.lock = await self.redlock.acquire(name, SECONDS * 1000)
        return self.lock is not None

    async def give(self, name: str) -> None:
        await self.redlock.release(self.lock)

    async def close(self) -> None:
        for client in self.redlock.client.instances:
            await client.aclose()


class FenceKit(Session):
    def __init__(self, site: Site) -> None:
        module = load("fencekit")
        self.client = redis_client(site, decode_responses=True)
        self.lock = module.DistributedLock(self.client)
        self.refusal: type[Exception] = module.LockNotAcquired
        self.handle: Any = None

    def take(self, name: str) -> bool:
        try:
            self.handle = self.lock.acquire(name, ttl=LEASE)
        except self.refusal:
            return False
        return True

    def give(self, name: str) -> None:
        self.lock.release(self.handle)

    def close(self) -> None:
        self.client.close()


def sherlock(site: Site) -> Session:
    client, module = redis_client(site), load("sherlock")
    return LockSession(lambda name: module.RedisLock(name, client=client, expire=SECONDS), client.close)


class StormLock(Session):
    """Redis, PostgreSQL and MySQL."""

    def __init__(self, backend: Any) -> None:
        module = load("stormlock")
        self.backend = backend
        self.refusal: type[Exception] = load("stormlock.backend").LockHeldException
        self.new_lock: Any = lambda name: module.StormLock(backend, name, "bench", LEASE)
        self.lock: Any = None
        self.lease = ""

    def take(self, name: str) -> bool:
        self.lock = self.new_lock(name)
        try:
            self.lease = self.lock.acquire()
        except self.refusal:
            return False
        return True

    def give(self, name: str) -> None:
        self.lock.release(self.lease)

    def close(self) -> None:
        self.backend.close()


def stormlock_redis(site: Site) -> Session:
    backend = load("stormlock.backends.redis").Redis(url=site.url())
    backend.close = backend._client.close
    return StormLock(backend)


def py_cachify(site: Site) -> Session:
    module, client = load("py_cachify"), redis_client(site)
    cachify = module.init_cachify(sync_client=client, default_lock_expiration=SECONDS, is_global=False)
    refusal: type[Exception] = module.CachifyLockError

    def enter(stack: ExitStack, name: str) -> bool:
        try:
            stack.enter_context(cachify.lock(key=name))
        except refusal:
            return False
        return True

    return BlockSession(enter, client.close)


def _huey_block(huey: Any) -> Session:
    refusal: type[Exception] = load("huey.exceptions").TaskLockedException

    def enter(stack: ExitStack, name: str) -> bool:
        try:
            stack.enter_context(huey.lock_task(name))
        except refusal:
            return False
        return True

    return BlockSession(enter, huey.storage.close)


def huey_redis(site: Site) -> Session:
    return _huey_block(load("huey").RedisHuey("bench", url=site.url()))


def huey_sqlite(site: Site) -> Session:
    return _huey_block(load("huey").SqliteHuey("bench", filename=f"{site.directory}/huey.db"))


# mithril-locks


def _mithril() -> Any:
    """Its log lines go to the standard output unless the application changes that."""
    import logging

    structlog = load("structlog")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    return load("mithril")


def _mithril_session(backend: Any, close: Callable[[], Any]) -> Session:
    module = _mithril()
    return RaisingSession(
        lambda name: module.Lock(name, backend=backend, ttl=SECONDS, timeout=0), module.LockTimeoutError, close
    )


def mithril_redis(site: Site) -> Session:
    _mithril()
    client = redis_client(site)
    return _mithril_session(load("mithril.backends").RedisBackend(client), client.close)


def _sqlalchemy_engine(site: Site) -> Any:
    drivers = {
        "postgres": "postgresql+psycopg", "mariadb": "mysql+pymysql", "mysql": "mysql+pymysql", "sqlite": "sqlite",
    }  # fmt: skip
    return load("sqlalchemy").create_engine(site.url(drivers[site.store]))


def mithril_sqlite(site: Site) -> Session:
    _mithril()
    engine = _sqlalchemy_engine(site)
    return _mithril_session(load("mithril.backends").SQLiteBackend(engine), engine.dispose)


def mithril_postgres(site: Site) -> Session:
    _mithril()
    engine = _sqlalchemy_engine(site)
    return _mithril_session(load("mithril.backends").PostgresBackend(engine), engine.dispose)


class MithrilAsync(AsyncSession):
    def __init__(self, backend: Any, close: Callable[[], Any]) -> None:
        _mithril()
        self.backend, self.close_it = backend, close
        self.lock: Any = None
        self.refusal: type[Exception] = load("mithril").LockTimeoutError

    async def start(self) -> None:
        if hasattr(self.backend, "initialize"):
            await self.backend.initialize()

    async def take(self, name: str) -> bool:
        self.lock = load("mithril.aio").AsyncLock(name, backend=self.backend, ttl=SECONDS, timeout=0)
        try:
            await self.lock.acquire(blocking=False)
        except self.refusal:
            return False
        return True

    async def give(self, name: str) -> None:
        await self.lock.release()

    async def close(self) -> None:
        await self.close_it()


def mithril_redis_async(site: Site) -> AsyncSession:
    _mithril()
    client = load("redis.asyncio").Redis.from_url(site.url())
    return MithrilAsync(load("mithril.backends.aio").AsyncRedisBackend(client), client.aclose)


def mithril_postgres_async(site: Site) -> AsyncSession:
    _mithril()
    engine = load("sqlalchemy.ext.asyncio").create_async_engine(site.url("postgresql+asyncpg"))
    return MithrilAsync(load("mithril.backends.aio").AsyncPostgresBackend(engine), engine.dispose)


def mithril_sqlite_async(site: Site) -> AsyncSession:
    _mithril()
    engine = load("sqlalchemy.ext.asyncio").create_async_engine(site.url("sqlite+aiosqlite"))
    return MithrilAsync(load("mithril.backends.aio").AsyncSQLiteBackend(engine), engine.dispose)


# PostgreSQL, MariaDB, MySQL


class SqlAlchemyDlock(Session):
    """Keep a connection of the engine with the lock: the session holds an advisory lock."""

    def __init__(self, site: Site) -> None:
        self.create = load("sqlalchemy_dlock").create_sadlock
        self.engine = _sqlalchemy_engine(site)
        self.connection: Any = None
        self.lock: Any = None

    def take(self, name: str) -> bool:
        self.connection = self.engine.connect()
        self.lock = self.create(self.connection, name)
        if self.lock.acquire(block=False):
            return True
        self.connection.close()
        return False

    def give(self, name: str) -> None:
        self.lock.release()
        self.connection.close()

    def close(self) -> None:
        self.connection.close()
        self.engine.dispose()


class SqlAlchemyDlockAsync(AsyncSession):
    def __init__(self, url: str) -> None:
        self.create = load("sqlalchemy_dlock").create_async_sadlock
        self.engine = load("sqlalchemy.ext.asyncio").create_async_engine(url)
        self.connection: Any = None
        self.lock: Any = None

    async def take(self, name: str) -> bool:
        self.connection = await self.engine.connect()
        self.lock = self.create(self.connection, name)
        if await self.lock.acquire(block=False):
            return True
        await self.connection.close()
        return False

    async def give(self, name: str) -> None:
        await self.lock.release()
        await self.connection.close()

    async def close(self) -> None:
        await self.connection.close()
        await self.engine.dispose()


STORMLOCK_POSTGRES = (
    "CREATE TABLE IF NOT EXISTS stormlock (resource text PRIMARY KEY, lease uuid, principal text,"
    " created timestamptz DEFAULT current_timestamp, expires timestamptz)"
)
STORMLOCK_MYSQL = (
    "CREATE TABLE IF NOT EXISTS stormlock (resource varchar(64) PRIMARY KEY, lease binary(16), principal varchar(64),"
    " created datetime, expires datetime)"
)


def _psycopg_url(site: Site) -> str:
    return site.url("postgresql")


def stormlock_postgres(site: Site) -> Session:
    with load("psycopg").connect(_psycopg_url(site), autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(STORMLOCK_POSTGRES)
    return StormLock(load("stormlock.backends.postgresql").Postgresql(_psycopg_url(site)))


def stormlock_mysql(site: Site) -> Session:
    connection = load("pymysql").connect(autocommit=True, **site.arguments)
    connection.cursor().execute(STORMLOCK_MYSQL)
    connection.close()
    arguments = {**site.arguments, "charset": "utf8mb4", "collation": "utf8mb4_general_ci"}
    backend = load("stormlock.backends.mysql").MySql(**arguments)
    backend.close = backend._conn.close
    return StormLock(backend)


def postgres_mutex(site: Site) -> Session:
    module, url = load("postgres_mutex"), _psycopg_url(site)
    mutexes: dict[str, Any] = {}

    def enter(stack: ExitStack, name: str) -> bool:
        if name not in mutexes:
            mutexes[name] = module.Mutex(url, lock_name=name)
            mutexes[name].create_schema()
        return bool(stack.enter_context(mutexes[name].acquire()))

    def close() -> None:
        for mutex in mutexes.values():
            mutex.close()

    return BlockSession(enter, close)


DISLOCK_TABLE = (
    "CREATE TABLE IF NOT EXISTS key_value (key text PRIMARY KEY, value text NOT NULL, expire_at timestamptz NOT NULL)"
)


def dislock(site: Site) -> Session:
    """Its default: connect for each acquire, for its heartbeat and for each release."""
    module, core, url = load("dislock"), load("dislock.core"), _psycopg_url(site)
    with load("psycopg").connect(url, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(DISLOCK_TABLE)

    def enter(stack: ExitStack, name: str) -> bool:
        context = core.LockContext(
            url=url,
            table_parts=["key_value"],
            lock_key=name,
            owner="bench",
            run_ttl_seconds=SECONDS,
            lease_interval_seconds=10.0,
        )
        try:
            stack.enter_context(module.LeaseLock(context))
        except module.LockNotAcquiredError:
            return False
        return True

    return BlockSession(enter)


# Files


def filelock(site: Site) -> Session:
    module = load("filelock")
    return RaisingSession(lambda name: module.FileLock(f"{site.directory}/{name}.lock"), module.Timeout)


def filelock_lease(site: Site) -> Session:
    module = load("filelock")
    return RaisingSession(
        lambda name: module.SoftFileLease(f"{site.directory}/{name}.lease", lease_duration=SECONDS), module.Timeout
    )


_NO_TOKEN = "fencing token, minimum hold"
_ADVISORY = "lease (held as long as the connection), fencing token, minimum hold, record of who ran"


def _peer(
    store: str,
    name: str,
    lacks: str,
    opened: Callable[[Site], Session],
    opened_async: Callable[[Site], AsyncSession] | None = None,
    *,
    package: str = "",
    has_lease: bool = True,
) -> list[Contender]:
    """Return one package, in its sync and async ways."""
    ways: list[tuple[Callable[[Site], Session | AsyncSession], bool]] = [(opened, False)]
    if opened_async is not None:
        ways.append((opened_async, True))
    return [
        Contender(store, name, "peer", way, package or name, lacks, is_async=is_async, has_lease=has_lease)
        for way, is_async in ways
    ]


def _dlock(store: str, url: str) -> list[Contender]:
    def open_async(site: Site) -> AsyncSession:
        return SqlAlchemyDlockAsync(site.url(url))

    return _peer(store, "sqlalchemy-dlock", _ADVISORY, SqlAlchemyDlock, open_async, has_lease=False)


PEERS = [
    *_peer("redis", "redis-py Lock", _NO_TOKEN, redis_py, redis_py_async, package="redis"),
    *_peer("redis", "python-redis-lock", _NO_TOKEN, python_redis_lock),
    *_peer("redis", "pottery", _NO_TOKEN, pottery, pottery_async),
    *_peer("redis", "redlock-ng", f"{_NO_TOKEN}; an error looks like a skip", RedlockNg, RedlockNgAsync),
    *_peer("redis", "fencekit", "minimum hold, asyncio", FenceKit),
    *_peer("redis", "sherlock", f"{_NO_TOKEN}, asyncio", sherlock),
    *_peer("redis", "stormlock", f"{_NO_TOKEN}, asyncio", stormlock_redis),
    *_peer("redis", "mithril-locks", "minimum hold", mithril_redis, mithril_redis_async),
    *_peer("redis", "py-cachify", f"owner check (anyone's release frees it), {_NO_TOKEN}", py_cachify),
    *_peer("redis", "huey", f"lease on Redis < 7.4, owner check, {_NO_TOKEN}", huey_redis, has_lease=False),
    *_dlock("postgres", "postgresql+asyncpg"),
    *_peer("postgres", "stormlock", f"{_NO_TOKEN}, pool, asyncio", stormlock_postgres),
    *_peer("postgres", "mithril-locks", "minimum hold", mithril_postgres, mithril_postgres_async),
    *_peer("postgres", "postgres-mutex", f"{_NO_TOKEN}; starts a thread each", postgres_mutex),
    *_peer("postgres", "dislock", f"{_NO_TOKEN}; connects three times each", dislock),
    *_dlock("mariadb", "mysql+asyncmy"),
    *_peer("mariadb", "stormlock", f"{_NO_TOKEN}, pool, asyncio", stormlock_mysql),
    *_dlock("mysql", "mysql+asyncmy"),
    *_peer("mysql", "stormlock", f"{_NO_TOKEN}, pool, asyncio", stormlock_mysql),
    *_peer("sqlite", "mithril-locks", "minimum hold", mithril_sqlite, mithril_sqlite_async),
    *_peer("sqlite", "huey", f"lease, owner check, {_NO_TOKEN}", huey_sqlite, has_lease=False),
    *_peer(
        "sqlite",
        "filelock (flock)",
        f"record, lease (the kernel frees it), {_NO_TOKEN}",
        filelock,
        package="filelock",
        has_lease=False,
    ),
    *_peer("sqlite", "filelock SoftFileLease", _NO_TOKEN, filelock_lease, package="filelock"),
]
