"""The fencing token's parity says whether a run was ended: even while it runs, odd after its end."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import ConfigurationError, LockRequest
from shedlock_py.testing.contract.fencing import token_of
from tests.stores.sql.stores import USUAL_DRIVERS, Store, programs_on
from tests.support.locks import acquired, record_of

FIRE_TIME = datetime(2024, 5, 1, 2, tzinfo=UTC)
AHEAD = int((datetime.now(UTC) + timedelta(days=999)).timestamp()) * 1_000_000


def expire(store: Store, name: str) -> None:
    """Expire the lease as if the holder had died long ago."""
    store.execute("UPDATE shedlock SET lock_until = '2024-05-01 03:00:00.000000' WHERE name = :name", name=name)


@programs_on(USUAL_DRIVERS)
@pytest.mark.parametrize("first", [AHEAD, AHEAD + 1], ids=["even", "odd"])
def test_i7_tokens_are_even_until_the_run_ends_also_ahead_of_the_clock(store: Store, first: int, name: str) -> None:
    provider: Any = store.provider()
    provider.release(acquired(provider, name))
    store.execute(f"UPDATE shedlock SET fencing_token = {first} WHERE name = :name", name=name)
    tokens = [first]

    def granted(lease: Any) -> Any:
        assert token_of(lease) % 2 == 0
        tokens.append(token_of(lease))
        assert record_of(provider, name).fencing_token == tokens[-1]
        return lease

    provider.release(granted(acquired(provider, name, lock_at_least_for="1m")))
    for _ in range(2):
        provider.force_release(name)
        assert record_of(provider, name).fencing_token == tokens[-1] + 1
    granted(acquired(provider, name, fire_time=FIRE_TIME))
    provider.undo(granted(provider.take_over(LockRequest(name, "1m"))))
    granted(acquired(provider, name, fire_time=FIRE_TIME + timedelta(days=1)))
    expire(store, name)
    dead = record_of(provider, name)
    assert dead.is_released is False
    granted(provider.recover(LockRequest(name, "1m", fire_time=dead.last_fire_time), dead))
    assert tokens == sorted(set(tokens))
    assert tokens[-1] < first + 12


@programs_on(USUAL_DRIVERS)
def test_a_record_that_java_wrote_does_not_say_whether_its_run_was_ended(store: Store, name: str) -> None:
    """ShedLock for Java changes no token. Its holder is its host."""
    provider: Any = store.provider()
    provider.release(acquired(provider, name))
    assert record_of(provider, name).is_released is True
    for holder in ("java-host", "java#host"):
        store.execute("UPDATE shedlock SET locked_by = :holder WHERE name = :name", name=name, holder=holder)
        record = record_of(provider, name)
        assert record.is_released is None
        with pytest.raises(ConfigurationError, match="never ended"):
            provider.recover(LockRequest(name, "1m"), record)


@programs_on(USUAL_DRIVERS)
def test_a_table_without_tokens_does_not_say_whether_a_run_was_ended(store: Store, name: str) -> None:
    provider: Any = store.provider(extra_columns=False)
    provider.release(acquired(provider, name))
    assert record_of(provider, name).is_released is None


@programs_on(USUAL_DRIVERS)
def test_i1_a_recovery_compares_holder_time_and_token(store: Store, name: str) -> None:
    provider: Any = store.provider()
    acquired(provider, name, fire_time=FIRE_TIME)
    expire(store, name)
    dead = record_of(provider, name)
    request = LockRequest(name, "1m", fire_time=FIRE_TIME)
    changed = {
        "locked_by": dead.locked_by[:-1] + ("0" if dead.locked_by[-1] != "0" else "1"),
        "locked_at": "2024-05-01 01:00:00.000000",
        "fencing_token": (dead.fencing_token or 0) + 2,
    }
    for column, value in changed.items():
        row = store.query(f"SELECT {column} FROM shedlock WHERE name = :name", name=name)
        change = f"UPDATE shedlock SET {column} = :value, lock_until = lock_until WHERE name = :name"
        store.execute(change, name=name, value=value)
        before = record_of(provider, name)
        assert before != dead
        assert provider.recover(request, dead) is None, column
        assert record_of(provider, name) == before
        store.execute(change, name=name, value=row)
    assert record_of(provider, name) == dead
    assert provider.recover(request, dead)
