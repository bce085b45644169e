"""Asked again because the connection broke; the first of the two is carried out when nobody waits for it."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from shedlock_py import LeaseLostError, LockProvider, LockRequest
from shedlock_py._program import run
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.providers.sqlalchemy.algorithm import Answer, Ask
from tests.services.holding import HoldingProxy
from tests.services.late_copies import ENDS, asked_twice
from tests.sql.stores import ONE_EACH, Store, acquired, record_of


@pytest.fixture
def holding(store: Store) -> Iterator[HoldingProxy]:
    with HoldingProxy(store.server.address) as proxy:
        yield proxy


@pytest.fixture
def provider(store: Store, holding: HoldingProxy) -> LockProvider:
    provider = store.provider(holding.address)
    provider.record("warm")
    return provider


@pytest.fixture
def witness(store: Store) -> LockProvider:
    return store.provider()


def test_i2_a_claim_that_is_granted_again_is_not_its_lease(
    provider: LockProvider, witness: LockProvider, holding: HoldingProxy, name: str
) -> None:
    lease = asked_twice(provider, holding, name)
    witness.force_release(name)
    successor = acquired(witness, name)
    assert witness.release(successor)
    holding.deliver()
    again = record_of(witness, name)
    assert again.locked_by == lease.locked_by
    assert (again.fencing_token or 0) > (successor.fencing_token or 0)
    assert provider.extend(lease, "10h") is None
    assert not lease.is_trusted()
    assert record_of(witness, name).lock_until == again.lock_until
    assert provider.release(lease) is True, "held for nobody, it is better free"
    assert not record_of(witness, name).is_held


@pytest.mark.parametrize("driver", ONE_EACH)
def test_i2_nor_does_a_stale_holder_commit_under_it(
    provider: LockProvider, witness: LockProvider, holding: HoldingProxy, name: str
) -> None:
    assert isinstance(provider, SqlAlchemyLockProvider)
    lease = asked_twice(provider, holding, name)
    with provider._engine.connect() as connection:
        provider.verify(lease, connection)
    witness.force_release(name)
    assert witness.release(acquired(witness, name))
    holding.deliver()
    assert record_of(witness, name).is_held
    with provider._engine.connect() as connection, pytest.raises(LeaseLostError):
        provider.verify(lease, connection)


@pytest.mark.parametrize("operation", ["acquire", "take_over"])
@pytest.mark.parametrize("end", ENDS)
def test_i12_a_lock_that_was_freed_stays_free(
    provider: LockProvider, witness: LockProvider, holding: HoldingProxy, name: str, operation: str, end: str
) -> None:
    lease = asked_twice(provider, holding, name, operation)
    ENDS[end](provider, lease)
    before = record_of(witness, name)
    holding.deliver()
    after = record_of(witness, name)
    assert not after.is_held
    assert after == before


@pytest.mark.parametrize("extra_columns", [True, False])
@pytest.mark.parametrize("driver", ["mysql+pymysql"])
@pytest.mark.parametrize("mode", ["", "SIMULTANEOUS_ASSIGNMENT"])
def test_i6_what_was_extended_meanwhile_is_not_cut_short(
    store: Store, mode: str, extra_columns: bool, name: str
) -> None:
    """MariaDB, which assigns columns one after the other, or all at once."""
    provider = store.provider(extra_columns=extra_columns)
    assert isinstance(provider, SqlAlchemyLockProvider)
    set_mode(provider._engine, mode)
    client = provider._client
    for _ in range(2):  # a record that is absent, and one that is free
        asked: list[Ask] = []

        def noted(ask: Ask, asked: list[Ask] = asked) -> Answer:
            asked.append(ask)
            answer: Answer = client.execute(ask, 5.0)
            return answer

        lease = run(provider.programs.acquire(LockRequest(name, "1m")), noted)
        assert lease is not None
        granted = record_of(provider, name)
        assert granted.remaining > timedelta(seconds=50)
        assert provider.extend(lease, "10m") is lease
        extended = record_of(provider, name)
        client.execute(asked[-1], 5.0)
        late = record_of(provider, name)
        assert late.locked_by == lease.locked_by
        assert late.fencing_token == lease.fencing_token
        assert late.lock_until == extended.lock_until
        assert provider.release(lease)
        client.execute(asked[-1], 5.0)
        assert record_of(provider, name).is_held is not extra_columns, "without tokens it cannot be told: bounded by I3"
        provider.force_release(name)


def set_mode(engine: Engine, mode: str) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: object, _record: object) -> None:
        cursor = connection.cursor()  # type: ignore[attr-defined]
        cursor.execute(f"SET sql_mode = '{mode}'")
        cursor.close()
