"""The server did what it was asked, and nobody heard. I12: nothing stays locked that nobody knows to hold."""

import time
from datetime import timedelta
from typing import Any

import pytest

from shedlock_py import Lease, LockProvider, LockRequest, ProviderUnreachable
from shedlock_py._program import Program
from shedlock_py.lease import Claim
from shedlock_py.providers.mongodb import MongoLockProvider
from shedlock_py.providers.mongodb import programs as commands
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.mongodb.stores import PATIENT, Store
from tests.stores.sql.stores import acquired, record_of

MOST = 1000


@pytest.fixture(params=["url", "client", "client without retries"])
def provider(request: pytest.FixtureRequest, store: Store, lossy: TcpProxy) -> LockProvider:
    if request.param == "url":
        provider = store.provider(lossy.address, **PATIENT)
    else:
        retries = request.param == "client"
        provider = store.provider_of_client(lossy.address, retryWrites=retries, retryReads=retries)
    provider.record("warm")
    return provider


@pytest.fixture
def witness(store: Store) -> LockProvider:
    """Another replica, with a better line."""
    return store.provider(**PATIENT)


def execute(provider: MongoLockProvider, command: commands.Command) -> Any:
    """What one command does by itself, as a late copy of it would."""

    def program() -> Program[commands.Command, Any, Any]:
        return (yield command)

    return provider.run(program())


def assert_ours(witness: LockProvider, lease: Lease | None) -> Lease:
    assert lease is not None, "the lock is ours"
    assert lease.is_trusted()
    record = record_of(witness, lease.name)
    assert (record.locked_by, record.fencing_token, record.is_held) == (lease.locked_by, lease.fencing_token, True)
    return lease


def test_i12_acquire(provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str) -> None:
    tokens = []
    for _ in range(3):  # the first time there is no record
        lossy.drop_replies_to(name)
        lease = assert_ours(witness, provider.acquire(LockRequest(name, "1m")))
        assert lossy.drops_left == 0
        tokens.append(lease.fencing_token or 0)
        assert provider.release(lease)
        assert not record_of(witness, name).is_held
    assert tokens == sorted(set(tokens))


def test_a_skip(provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str) -> None:
    lease = acquired(witness, name)
    lossy.drop_replies_to(name)
    assert provider.acquire(LockRequest(name, "1m")) is None
    assert lossy.drops_left == 0
    assert_ours(witness, lease)


def test_take_over(provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str) -> None:
    acquired(witness, name)
    lossy.drop_replies_to(name)
    assert_ours(witness, provider.take_over(LockRequest(name, "1m")))
    assert lossy.drops_left == 0


def test_extend(provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str) -> None:
    lease = acquired(provider, name)
    lossy.drop_replies_to(name)
    assert provider.extend(lease, "10m") is lease
    assert lossy.drops_left == 0
    assert record_of(witness, name).remaining.total_seconds() > 500
    assert lease.trusted_for().total_seconds() > 500
    assert_ours(witness, lease)


@pytest.mark.parametrize("at_least", [0, "50s"])
def test_i12_release(
    provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str, at_least: int | str
) -> None:
    lease = acquired(provider, name, lock_at_least_for=at_least)
    lossy.drop_replies_to(name)
    assert provider.release(lease) is True
    assert lossy.drops_left == 0
    assert record_of(witness, name).is_held is bool(at_least)
    assert record_of(witness, name).remaining.total_seconds() < 51
    assert provider.release(lease) is False


@pytest.mark.parametrize("losses", [6, MOST])
def test_i12_acquire_that_is_never_answered(
    provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str, losses: int
) -> None:
    lossy.drop_replies_to(name, losses)
    with pytest.raises(ProviderUnreachable) as unreachable:
        provider.acquire(LockRequest(name, "1m"))
    assert (unreachable.value.operation, unreachable.value.lock_name) == ("acquire", name)
    assert unreachable.value.__cause__ is not None
    asked = losses - lossy.drops_left
    assert asked >= 3, "asked, asked again, and undone"
    lossy.drop_replies_to(name, 0)
    assert witness.release(acquired(witness, name))


def test_release_that_is_never_answered(
    provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str
) -> None:
    lease = acquired(provider, name)
    lossy.drop_replies_to(name, MOST)
    with pytest.raises(ProviderUnreachable):
        provider.release(lease)
    assert not lease.is_trusted()
    lossy.drop_replies_to(name, 0)
    provider.release(lease)
    assert witness.release(acquired(witness, name))


def test_extend_that_is_never_answered(
    provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str
) -> None:
    lease = acquired(provider, name)
    lossy.drop_replies_to(name, MOST)
    with pytest.raises(ProviderUnreachable):
        provider.extend(lease, "10m")
    assert 0 < lease.trusted_for().total_seconds() <= 60, "believes no more than before"
    lossy.drop_replies_to(name, 0)
    assert provider.extend(lease, "5m") is lease
    assert_ours(witness, lease)
    assert provider.release(lease)


@pytest.mark.parametrize("store", ["sync"], indirect=True)
@pytest.mark.parametrize("operation", ["acquire", "take_over"])
def test_i12_a_command_that_arrives_again_after_the_release(operation: str, store: Store, name: str) -> None:
    """As one may that was held up in the network, was asked again, and undone."""
    provider = store.provider(**PATIENT)
    assert isinstance(provider, MongoLockProvider)
    claim = Claim(LockRequest(name, "1h"), time.monotonic)
    tolerance = timedelta(minutes=5)
    is_acquire = operation == "acquire"
    command = commands.acquire(claim, None, tolerance) if is_acquire else commands.take_over(claim, None, tolerance)
    for _ in range(2):
        execute(provider, command)
        assert record_of(provider, name).locked_by == claim.locked_by
    before = record_of(provider, name)
    assert execute(provider, commands.release(name, claim.locked_by, timedelta(0))).matched_count == 1
    execute(provider, command)
    after = record_of(provider, name)
    assert not after.is_held
    assert after.fencing_token == before.fencing_token


def test_what_comes_late_finds_the_lease_released(store: Store, witness: LockProvider, name: str) -> None:
    """A heartbeat that was under way, and the release itself once more, executed after the release."""
    if store.is_async:
        pytest.skip("the commands are the same, and given to the sync shell here")
    assert isinstance(witness, MongoLockProvider)
    for at_least in ("0s", "20s"):
        lease = witness.acquire(LockRequest(f"{name}-{at_least}", "1m", at_least))
        assert lease is not None
        assert witness.release(lease) is True
        before = witness.record(lease.name)
        late = commands.extend(lease, timedelta(hours=1))
        assert execute(witness, late).matched_count == 0
        assert (
            execute(witness, commands.release(lease.name, lease.locked_by, timedelta(0))).matched_count == 1
        )  # asked again
        assert witness.record(lease.name) == before
