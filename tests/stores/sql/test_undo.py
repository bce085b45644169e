"""Undo and forget_fire_time where the contract does not look: tables without the extra columns, lost replies."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shedlock_py import ConfigurationError, LockRequest
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.stores.sql.stores import Store, acquired, record_of

FIRE_TIME = datetime(2024, 5, 1, 2, tzinfo=UTC)


def check_javas_table(provider: Any, name: str) -> None:
    lease = acquired(provider, name, "1h", lock_at_least_for="1h")
    assert provider.undo(lease) is True
    assert not record_of(provider, name).is_held
    assert provider.undo(lease) is False
    first = acquired(provider, name)
    provider.take_over(LockRequest(name, "1m"))
    assert provider.undo(first) is False
    assert record_of(provider, name).is_held
    operations: list[Callable[[], object]] = [
        lambda: provider.forget_fire_time(name),
        lambda: provider.acquire(LockRequest(name, "1m", fire_time=FIRE_TIME)),
        lambda: provider.take_over(LockRequest(name, "1m", fire_time=FIRE_TIME)),
    ]
    for operate in operations:
        with pytest.raises(ConfigurationError, match="extra_columns=False"):
            operate()


def test_on_javas_table(store: Store, name: str) -> None:
    check_javas_table(store.provider(extra_columns=False), name)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqlAlchemyLockProvider]:
    provider = SqlAlchemyLockProvider(f"sqlite:///{tmp_path}/locks.db", extra_columns=False)
    provider.create_schema()
    yield provider
    provider.close()


def test_on_javas_table_of_sqlite(sqlite: SqlAlchemyLockProvider, name: str) -> None:
    check_javas_table(sqlite, name)


def test_an_undo_whose_reply_was_lost_says_the_same_again(store: Store, name: str) -> None:
    """It changes nothing then, and is told from one that found another holder."""
    provider: Any = store.provider()
    lease = acquired(provider, name, fire_time=FIRE_TIME)
    undo = provider.async_provider if store.is_async else provider
    again = undo.programs.undo_claim(name, lease.locked_by, FIRE_TIME)
    command = next(again)
    for _ in range(2):
        reply = (
            provider.run(undo._client.execute(command, None)) if store.is_async else undo._client.execute(command, None)
        )
        assert reply.changed == 1
    assert record_of(provider, name).last_fire_time == FIRE_TIME
    assert not record_of(provider, name).is_held
