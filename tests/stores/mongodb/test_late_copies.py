"""Asked again because the connection broke; the first of the two is carried out when nobody waits for it."""

from datetime import timedelta

import pytest

from shedlock_py import LockProvider, LockRequest
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.mongodb.stores import PATIENT, Store
from tests.stores.sql.stores import acquired, record_of
from tests.support.late_copies import ENDS, asked_twice


@pytest.fixture
def holding(store: Store) -> TcpProxy:
    return store.stack.enter_context(TcpProxy(store.server.address))


@pytest.fixture
def provider(store: Store, holding: TcpProxy) -> LockProvider:
    provider = store.provider(holding.address, **PATIENT)
    provider.record("warm")
    return provider


@pytest.fixture
def witness(store: Store) -> LockProvider:
    return store.provider(**PATIENT)


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
    assert again.is_held
    assert (again.fencing_token or 0) > (successor.fencing_token or 0)
    assert provider.extend(lease, "10h") is None
    assert not lease.is_trusted()
    assert record_of(witness, name).lock_until == again.lock_until
    assert provider.release(lease) is True, "held for nobody, it is better free"
    assert not record_of(witness, name).is_held


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


def test_i1_a_late_copy_of_a_take_over_matches_nothing(
    provider: LockProvider, witness: LockProvider, holding: TcpProxy, name: str
) -> None:
    """The driver sent it twice; the first copy arrives after the lock has passed on."""
    acquired(witness, name)
    holding.hold(name, skip=1)  # not the record that is read first
    lease = provider.take_over(LockRequest(name, "1h"))
    assert holding.holds
    successor = witness.take_over(LockRequest(name, "1h"))
    holding.deliver()
    record = record_of(witness, name)
    assert (record.locked_by, record.fencing_token) == (successor.locked_by, successor.fencing_token)
    assert witness.extend(successor, "2h") is successor
    assert provider.extend(lease, "2h") is None


def test_i6_an_extension_that_was_asked_twice_may_yet_be_done_again(
    provider: LockProvider, witness: LockProvider, holding: TcpProxy, name: str
) -> None:
    lease = acquired(provider, name)
    holding.hold(name)
    assert provider.extend(lease, "2m") is lease
    assert holding.holds
    assert provider.extend(lease, "1h") is lease
    holding.deliver()
    assert lease.trusted_for() < record_of(witness, name).remaining <= timedelta(minutes=2)
    assert provider.extend(lease, "2m") is lease, "of the same length: believed"
    assert lease.trusted_for() > timedelta(minutes=1)
