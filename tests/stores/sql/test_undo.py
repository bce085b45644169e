"""Undo and forget_fire_time beyond the contract: tables without the extra columns, lost replies."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from shedlock_py import ConfigurationError, LockRequest
from tests.stores.sql.stores import DRIVERS, SQLITE_DRIVERS, Store, carry_out, programs_on
from tests.support.locks import acquired, record_of

FIRE_TIME = datetime(2024, 5, 1, 2, tzinfo=UTC)


@programs_on([*DRIVERS, *SQLITE_DRIVERS])
def test_an_undo_frees_the_lock_on_javas_table(driver: str, store: Store, name: str) -> None:
    provider: Any = store.provider(extra_columns=False)
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


@programs_on(DRIVERS)
def test_an_undo_whose_reply_was_lost_says_the_same_again(store: Store, name: str) -> None:
    """The second copy changes nothing; its reply differs from a reply about another holder."""
    provider: Any = store.provider()
    lease = acquired(provider, name, fire_time=FIRE_TIME)
    programs = (provider.async_provider if store.is_async else provider).programs
    command = next(programs.undo_claim(name, lease.locked_by, FIRE_TIME))
    for _ in range(2):
        assert carry_out(provider, command).changed == 1
    assert record_of(provider, name).last_fire_time == FIRE_TIME
    assert not record_of(provider, name).is_held
