"""Odd values in another program's record: a clear error for that name, and other names go on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from shedlock_py import LockProvider, LockRequest, ProviderError, ProviderUnreachable
from tests.stores.redis.stores import URL_KINDS, Store, through
from tests.support.locks import acquired
from tests.support.logs import warnings_of

ODD = ["soon", "", "1e300", "nan", "inf", "0x10", "1.5", "9" * 30, "-" + "9" * 30, " 5", "5\n", b"\xff\xfe"]

pytestmark = through(*URL_KINDS, programs=True)


@pytest.fixture
def provider(store: Store, name: str) -> LockProvider:
    return store.provider(key_prefix=name)


def fails_for_that_name(work: Callable[[], object], name: str, field: str = "") -> None:
    with pytest.raises(ProviderError, match=f"{field}.*of this lock record is not a number") as odd:
        work()
    assert not isinstance(odd.value, ProviderUnreachable)
    assert odd.value.lock_name == name
    assert f"HGETALL {name}:{{{name}}}" in str(odd.value)


@pytest.mark.parametrize("field", ["lock_until", "fencing_token", "last_fire_time"])
def test_an_odd_value_is_an_error_of_that_name(
    provider: LockProvider, client: redis.Redis, name: str, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    for odd in ODD:
        other = acquired(provider, "other")
        lease = acquired(provider, name, lock_at_least_for="1m")
        key = f"{name}:{{{name}}}"
        client.hset(key, field, odd)  # type: ignore[arg-type]  # bytes, too
        before = client.hgetall(key)
        fails_for_that_name(lambda: provider.acquire(LockRequest(name, "1m")), name, field)
        fails_for_that_name(lambda: provider.take_over(LockRequest(name, "1m")), name)
        fails_for_that_name(lambda: provider.record(name), name)
        fails_for_that_name(lambda: provider.force_release(name), name)
        caplog.clear()
        assert [record.name for record in provider.records()] == ["other"]
        assert len(warnings_of(caplog, f"lock {name!r} is left out")) == 1
        if field == "lock_until":
            fails_for_that_name(partial(provider.extend, lease, "1m"), name, field)
            fails_for_that_name(partial(provider.release, lease), name, field)
        assert client.hgetall(key) == before
        provider.prune(0)
        assert provider.extend(other, "2m") is other
        client.delete(key)
        assert provider.release(acquired(provider, name))
        assert provider.release(other)


@pytest.mark.parametrize("token", [2**53, -(2**53)])
def test_i7_a_token_beyond_the_numbers_of_lua(
    provider: LockProvider, client: redis.Redis, name: str, token: int
) -> None:
    """Lua's numbers are exact below 2^53: beyond, the next token may be the same."""
    lease = acquired(provider, name)
    client.hset(f"{name}:{{{name}}}", "fencing_token", token)
    fails_for_that_name(lambda: provider.acquire(LockRequest(name, "1m")), name, "fencing_token")
    fails_for_that_name(lambda: provider.record(name), name)
    client.hset(f"{name}:{{{name}}}", "fencing_token", 2**53 - 2)
    assert provider.release(lease) is True
    assert acquired(provider, name).fencing_token == 2**53 - 1


def test_an_odd_fire_time_cannot_be_forgotten(provider: Any, client: redis.Redis, name: str) -> None:
    provider.release(acquired(provider, name))
    client.hset(f"{name}:{{{name}}}", "last_fire_time", "0001")
    with pytest.raises(ProviderError, match=r"has the fire time 1970-01-01 .* still"):
        provider.forget_fire_time(name)
    client.hset(f"{name}:{{{name}}}", "last_fire_time", "1")
    assert provider.forget_fire_time(name) is True
    assert provider.forget_fire_time(name) is False


def test_prune_leaves_a_record_with_an_odd_vote(provider: LockProvider, client: redis.Redis, name: str) -> None:
    provider.release(acquired(provider, "other"))
    provider.release(acquired(provider, name))
    client.hset(f"{name}:{{{name}}}", "vote_until", "soon")
    assert provider.prune(0) == 1, "the record with the odd value stays"
    assert [record.name for record in provider.records()] == [name]


@pytest.mark.parametrize("code", ["OOM", "BUSY", "READONLY"])
def test_a_name_with_a_code_of_redis_is_no_outage(
    provider: LockProvider, client: redis.Redis, name: str, code: str
) -> None:
    lock = f"job-{code}"
    provider.release(acquired(provider, lock))
    client.hset(f"{name}:{{{lock}}}", "lock_until", f"-{code} x")
    with pytest.raises(ProviderError, match="is not a number") as odd:
        provider.acquire(LockRequest(lock, "1m"))
    assert not isinstance(odd.value, ProviderUnreachable), "the server replied"
