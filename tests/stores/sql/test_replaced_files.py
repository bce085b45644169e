"""I1: a cleaner, a redeploy or a restored copy deletes or replaces an open SQLite file."""

import asyncio
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event

from shedlock_py import LockProvider, LockRequest, ProviderError
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from tests.stores.sql.stores import Store
from tests.support.locks import acquired, record_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A file with an empty lock table, as a redeploy brings it."""
    path = tmp_path / "fresh.db"
    with closing(SqlAlchemyLockProvider(f"sqlite:///{path}")) as provider:
        provider.create_schema()
    return path


def with_used_engine(store: Store) -> LockProvider:
    """Open a provider on an engine that already has a connection."""
    engine = create_engine(store.url())
    store.stack.callback(engine.dispose)
    engine.connect().close()
    return SqlAlchemyLockProvider(engine)


KINDS: dict[str, tuple[str, Callable[[Store], LockProvider]]] = {
    "url": ("sqlite", lambda store: store.provider()),
    "file uri": ("sqlite", lambda store: store.provider(url=f"sqlite:///file:{store.server.path}?uri=true")),
    "engine": ("sqlite", lambda store: store.provider_of_engine()),
    "engine before": ("sqlite", with_used_engine),
    "url async": ("sqlite+aiosqlite", lambda store: store.provider()),
    "engine async": ("sqlite+aiosqlite", lambda store: store.provider_of_engine()),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def driver(kind: str) -> str:
    return KINDS[kind][0]


@pytest.fixture
def provider(kind: str, store: Store) -> LockProvider:
    return KINDS[kind][1](store)


def replace(file: Path, by: Path) -> None:
    """Replace the file and the files beside it, as a restored copy does."""
    for suffix in ("-wal", "-shm"):
        Path(f"{file}{suffix}").unlink(missing_ok=True)
    os.replace(by, file)


def test_i1_a_replaced_file_has_no_second_holder(provider: LockProvider, file: Path, fresh: Path, name: str) -> None:
    lease = acquired(provider, name)
    replace(file, fresh)
    with closing(SqlAlchemyLockProvider(f"sqlite:///{file}")) as other:
        successor = acquired(other, name)
        assert provider.acquire(LockRequest(name, "1m")) is None, "no second holder"
        assert provider.extend(lease, "1h") is None
        assert not lease.is_trusted()
        assert provider.release(lease) is False
        assert record_of(provider, name).locked_by == successor.locked_by
        assert other.release(successor)
        assert provider.release(acquired(provider, name))


def test_i1_a_deleted_file_is_an_error_not_a_grant(provider: LockProvider, file: Path, name: str) -> None:
    lease = acquired(provider, name)
    shutil.rmtree(file.parent)
    file.parent.mkdir()
    for _ in range(2):
        with pytest.raises(ProviderError, match="no such table"):
            provider.acquire(LockRequest(f"{name}-2", "1m"))
    with pytest.raises(ProviderError):
        provider.extend(lease, "1h")
    provider.create_schema()
    assert provider.extend(lease, "1h") is None
    with closing(SqlAlchemyLockProvider(f"sqlite:///{file}")) as other:
        lease = acquired(other, name)
        assert provider.acquire(LockRequest(name, "1m")) is None
        assert other.release(lease)


def test_i1_a_file_that_is_replaced_during_the_statement(file: Path, fresh: Path, name: str) -> None:
    """The grant is in the old file, which no other process sees: the claim goes to the new file."""

    def replace_once() -> int:
        if fresh.exists():
            replace(file, fresh)
        return 1

    # A trigger of the application calls a function: the file changes during the statement.
    engine = create_engine(f"sqlite:///{file}")
    event.listen(engine, "connect", lambda connection, _: connection.create_function("replaced", 0, replace_once))
    provider = SqlAlchemyLockProvider(engine)
    provider.create_schema()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TRIGGER hook AFTER INSERT ON shedlock BEGIN SELECT replaced(); END")
    lease = acquired(provider, name)
    with closing(SqlAlchemyLockProvider(f"sqlite:///{file}")) as other:
        assert record_of(other, name).locked_by == lease.locked_by
        assert other.acquire(LockRequest(name, "1m")) is None
    assert provider.release(lease)
    engine.dispose()


def test_i12_a_claim_whose_file_was_away_for_a_moment_is_granted(file: Path, name: str) -> None:
    """The claim is repeated. The second copy finds the grant of the first copy, and not another holder."""
    away = file.with_name("away.db")

    def move() -> int:
        os.replace(file, away)
        return 1

    def move_back(*_: object) -> None:
        if away.exists():
            os.replace(away, file)

    engine = create_engine(f"sqlite:///{file}")
    event.listen(engine, "do_connect", move_back)
    event.listen(engine, "connect", lambda connection, _: connection.create_function("moved", 0, move))
    provider = SqlAlchemyLockProvider(engine)
    provider.create_schema()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TRIGGER hook AFTER INSERT ON shedlock BEGIN SELECT moved(); END")
    lease = acquired(provider, name)
    assert record_of(provider, name).locked_by == lease.locked_by
    assert provider.acquire(LockRequest(name, "1m")) is None
    assert provider.release(lease)
    engine.dispose()


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite", "file", "file async"])
def test_i1_a_relative_path_is_resolved_once(
    scheme: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider finds the path once, when it is made; later loops and connections may follow a ``chdir``."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    path = "file:locks.db?uri=true" if "file" in scheme else "locks.db"
    if "sync" in scheme or "aiosqlite" in scheme:
        provider = AsyncSqlAlchemyLockProvider(f"sqlite+aiosqlite:///{path}")

        async def acquire() -> bool:
            await provider.create_schema()
            lease = await provider.acquire(LockRequest(name, "1m"))
            await provider.close()
            return lease is not None

        results = [asyncio.run(acquire())]
        monkeypatch.chdir(elsewhere)
        results.append(asyncio.run(acquire()))
    else:
        sync = SqlAlchemyLockProvider(f"sqlite:///{path}")
        sync.create_schema()
        results = [sync.acquire(LockRequest(name, "1m")) is not None]
        sync.close()
        monkeypatch.chdir(elsewhere)
        results.append(sync.acquire(LockRequest(name, "1m")) is not None)
        sync.close()
    assert results == [True, False]
    assert list(elsewhere.iterdir()) == []


def test_a_users_engine_keeps_its_listeners(file: Path) -> None:
    """The pool replaces its connection, so the application's set-up runs on the new connection."""
    engine = create_engine(f"sqlite:///{file}")
    connected: list[object] = []
    event.listen(engine, "connect", lambda connection, _: connected.append(connection))
    provider = SqlAlchemyLockProvider(engine)
    provider.create_schema()
    file.unlink()
    provider.create_schema()
    assert len(connected) == 2
    engine.dispose()
