"""A run is recovered if a majority has this exact run, and no server has its end."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from shedlock_py import ConfigurationError, LockRecord, LockRequest, ProviderUnreachable
from tests.stores.redis_quorum.quorums import NAME, Quorum, acquired
from tests.support.locks import record_of

FIRE_TIME = datetime(2024, 10, 26, 1, tzinfo=UTC)
REQUEST = LockRequest(NAME, "1m", fire_time=FIRE_TIME)

pytestmark = pytest.mark.usefixtures("long_grace")


def dead_run(quorum: Quorum, provider: Any) -> LockRecord:
    """Leave the lease of a long-dead holder on all servers."""
    acquired(provider, fire_time=FIRE_TIME)
    for number in range(quorum.size):
        quorum.send(number, "HSET", quorum.key(), "lock_until", quorum.now(number))
    return record_of(provider, NAME)


@pytest.mark.parametrize("mark", ["released_token", "freed_token"])
def test_i14_the_end_of_a_run_counts_that_is_on_one_server(quorum: Quorum, kind: str, mark: str) -> None:
    """The holder's release did not reach the other servers."""
    provider: Any = quorum.provider(kind=kind)
    dead = dead_run(quorum, provider)
    assert dead.is_released is False
    quorum.send(quorum.size - 1, "HSET", quorum.key(), mark, quorum.fields(0)["fencing_token"])
    with pytest.raises(ConfigurationError, match="never ended"):
        provider.recover(REQUEST, replace(dead, is_released=True))
    records = [quorum.fields(number) for number in range(quorum.size)]
    seen = quorum.provider(kind=kind, without=range(quorum.majority - 1)).record(NAME)
    assert seen is not None
    assert seen.is_released is True
    assert quorum.provider(kind=kind, without=range(quorum.majority - 1)).recover(REQUEST, dead) is None  # type: ignore[attr-defined]
    assert [quorum.fields(number) for number in range(quorum.size)] == records


def test_i14_a_majority_must_have_the_run(quorum: Quorum, kind: str) -> None:
    """Servers that missed its acquisition do not count: they also missed its end."""
    provider: Any = quorum.provider(kind=kind)
    dead = dead_run(quorum, provider)
    for number in range(quorum.majority - 1):
        quorum.send(number, "DEL", quorum.key())
    one_down: Any = quorum.provider(kind=kind, without=[quorum.size - 1], timeout="1s")
    with pytest.raises(
        ProviderUnreachable, match=f"{quorum.majority - 1} of {quorum.size} servers do not have the run"
    ):
        one_down.recover(REQUEST, dead)
    lease = provider.recover(REQUEST, dead)
    assert lease is not None
    assert provider.extend(lease, "1m") is lease
    assert [quorum.is_held(number) for number in range(quorum.size)] == [
        number >= quorum.majority - 1 for number in range(quorum.size)
    ]


def test_i1_a_run_that_a_majority_does_not_have_is_not_recovered(quorum: Quorum, kind: str) -> None:
    provider: Any = quorum.provider(kind=kind)
    dead = dead_run(quorum, provider)
    for number in range(quorum.majority):
        quorum.send(number, "HSET", quorum.key(), "locked_by", f"other#{'0' * 32}")
    assert provider.recover(REQUEST, dead) is None
    assert not any(quorum.is_held(number) for number in range(quorum.size))
