"""Asked again because the connection broke; the first of the two is carried out when nobody waits for it."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from shedlock_py import LeaseLostError, LockProvider, LockRequest
from shedlock_py._program import run
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.sql.stores import ONE_EACH, Store, acquired, record_of
from tests.support.late_copies import ENDS, asked_twice


@pytest.fixture
def holding(store: Store) -> Iterator[TcpProxy]:
    with TcpProxy(store.server.address) as proxy:
        yield proxy


@pytest.fixture
def provider(store: Store, holding: TcpProxy) -> LockProvider:
    provider = store.provider(holding.address)
    provider.record("warm")
    return provider


@pytest.fixture
def witness(store: Store) -> LockProvider:
    return store.provider()


def test_i2_a_claim_that_is_granted_again_is_not_its_lease(
    provider: LockProvider, witness: LockProvider, holding: TcpProxy, name: str
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
    provider: LockProvider, witness: LockProvider, holding: TcpProxy, name: str
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
    provider: LockProvider, witness: LockProvider, holding: TcpProxy, name: str, operation: str, end: str
) -> None:
    lease = asked_twice(provider, holding, name, operation)
    ENDS[end](provider, lease)
    before = record_of(witness, name)
    holding.deliver()
    after = record_of(witness, name)
    assert not after.is_held
    assert after == before


FIRE_TIME = datetime(2024, 5, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(("extra_columns", "fire_time"), [(True, None), (True, FIRE_TIME), (False, None)])
@pytest.mark.parametrize("was_there", [True, False])
def test_i1_a_late_copy_of_a_take_over_takes_nothing_from_a_later_holder(
    store: Store, holding: TcpProxy, name: str, was_there: bool, extra_columns: bool, fire_time: datetime | None
) -> None:
    """The lock has passed on when the first copy arrives: the later holder keeps it, with its token."""
    provider, other = store.provider(holding.address, extra_columns=extra_columns), store.provider()
    provider.record("warm")
    if was_there:
        acquired(other, name)
    holding.hold(name, skip=1)  # the record is read first
    lease = provider.take_over(LockRequest(name, "1h", fire_time=fire_time))
    assert holding.holds
    other.force_release(name)
    later = acquired(other, name)
    before = record_of(other, name)
    holding.deliver()
    assert record_of(other, name) == before
    assert other.extend(later, "1m") is later
    assert provider.release(lease) is False


@pytest.mark.parametrize("driver", ONE_EACH)
def test_i1_nor_from_a_holder_that_writes_no_token(
    driver: str, provider: LockProvider, holding: TcpProxy, store: Store, name: str
) -> None:
    """ShedLock for Java leaves the token as it is."""
    other = store.provider()
    token = acquired(other, name).fencing_token
    holding.hold(name, skip=1)
    provider.take_over(LockRequest(name, "1h"))
    times = "timezone('utc', clock_timestamp())" if store.is_postgres else "UTC_TIMESTAMP(6)"
    store.execute(
        f"UPDATE shedlock SET locked_by = 'java', locked_at = {times}, fencing_token = :token WHERE name = :name",
        name=name,
        token=token,
    )
    before = record_of(other, name)
    assert before.is_held
    holding.deliver()
    assert record_of(other, name) == before


def test_i11_a_late_copy_of_a_claim_that_was_undone_uses_no_fire_time_up(
    provider: LockProvider, witness: LockProvider, holding: TcpProxy, name: str
) -> None:
    holding.hold(name)
    request = LockRequest(name, "1h", fire_time=FIRE_TIME)
    lease = provider.acquire(request)
    assert lease is not None
    assert holding.holds
    assert provider.undo(lease) is True  # type: ignore[attr-defined]  # of the kit's providers, not of the protocol
    before = record_of(witness, name)
    holding.deliver()
    assert record_of(witness, name) == before
    assert not before.is_held
    acquired(witness, name, fire_time=FIRE_TIME)


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
    for _ in range(2):  # a record that is absent, and one that is free
        sent: list[Any] = []
        lease = run(provider.programs.acquire(LockRequest(name, "1m")), noting(provider, sent))
        assert lease is not None
        granted = record_of(provider, name)
        assert granted.remaining > timedelta(seconds=50)
        assert provider.extend(lease, "10m") is lease
        extended = record_of(provider, name)
        provider._client.execute(sent[-1], None)
        late = record_of(provider, name)
        assert late.locked_by == lease.locked_by
        assert late.fencing_token == lease.fencing_token
        assert late.lock_until == extended.lock_until
        assert provider.release(lease)
        provider._client.execute(sent[-1], None)
        assert record_of(provider, name).is_held is not extra_columns, "without tokens it cannot be told: bounded by I3"
        provider.force_release(name)


def noting(provider: SqlAlchemyLockProvider, sent: list[Any]) -> Callable[[Any], Any]:
    """Carries commands out, and keeps them."""

    def execute(command: Any) -> Any:
        sent.append(command)
        return provider._client.execute(command, None)

    return execute


def set_mode(engine: Engine, mode: str) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: object, _record: object) -> None:
        cursor = connection.cursor()  # type: ignore[attr-defined]
        cursor.execute(f"SET sql_mode = '{mode}'")
        cursor.close()
