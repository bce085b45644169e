"""What the model found in shedlock_py: the same steps, on real stores."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy.exc import OperationalError

from shedlock_py import InMemoryLockProvider, LockRequest
from shedlock_py._program import run
from shedlock_py.lease import Claim
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.testing import FakeClock

STORES = {"sqlite": "", "postgresql+psycopg": "postgres_server", "mysql+pymysql": "mariadb_server"}


@pytest.mark.parametrize("operation", ["acquire", "take_over"])
@pytest.mark.parametrize("driver", STORES)
def test_i6_a_question_that_comes_twice_does_not_cut_an_extended_lease(
    driver: str, operation: str, request: pytest.FixtureRequest, tmp_path: Any
) -> None:
    """Asked again after a broken connection; the first question, still under way, is carried out long after."""
    url = request.getfixturevalue(STORES[driver]).url(driver) if STORES[driver] else f"sqlite:///{tmp_path}/locks.db"
    provider, name = SqlAlchemyLockProvider(url), f"twice-{uuid4().hex[:8]}"
    provider.create_schema()
    asked = []

    def execute(ask: Any) -> Any:
        asked.append(ask)
        return provider._client.execute(ask, 5.0)

    lease = run(getattr(provider.programs, operation)(LockRequest(name, "10s")), execute)
    assert lease is not None
    token = lease.fencing_token
    assert provider.extend(lease, "10m")
    provider._client.execute(asked[-1], 5.0)
    record = provider.record(name)
    assert record is not None
    assert record.remaining > timedelta(minutes=9)
    assert record.fencing_token == token
    assert lease.trusted_for() < record.remaining
    assert provider.release(lease) is True
    provider.close()


@pytest.mark.parametrize("driver", STORES)
def test_i6_an_extension_that_was_asked_twice_may_yet_be_done_again(
    driver: str, request: pytest.FixtureRequest, tmp_path: Any
) -> None:
    """Its first question, still under way, is carried out after a longer extension, which must not be believed."""
    url = request.getfixturevalue(STORES[driver]).url(driver) if STORES[driver] else f"sqlite:///{tmp_path}/locks.db"
    provider, name = SqlAlchemyLockProvider(url), f"twice-{uuid4().hex[:8]}"
    provider.create_schema()
    lease = provider.acquire(LockRequest(name, "10s"))
    assert lease is not None
    asked = []

    def execute(ask: Any) -> Any:
        asked.append(ask)
        if len(asked) == 1:
            raise OperationalError("", {}, Exception("gone"), connection_invalidated=True)
        return provider._client.execute(ask, 5.0)

    assert run(provider.programs.extend(lease, timedelta(minutes=1)), execute) is lease
    assert len(asked) == 2
    assert provider.extend(lease, "1h") is lease
    provider._client.execute(asked[0], 5.0)
    record = provider.record(name)
    assert record is not None
    assert record.remaining < timedelta(minutes=2)
    assert lease.trusted_for() < record.remaining
    assert provider.extend(lease, "1m") is lease, "of the same length: believed"
    assert lease.trusted_for() > timedelta(seconds=50)
    provider.close()


@pytest.mark.parametrize("heard_first", ["shorter", "longer"])
def test_i6_of_two_extensions_at_once_the_shorter_counts(heard_first: str) -> None:
    """The store did the shorter one last; which one, the replies do not tell."""
    clock = FakeClock()
    lease = Claim(LockRequest("job", "1m"), clock).granted(1)
    shorter, longer = lease.begin_extension("1m"), lease.begin_extension("10m")
    for extension in (shorter, longer) if heard_first == "shorter" else (longer, shorter):
        extension.granted()
    assert lease.trusted_for() <= timedelta(minutes=1)
    lease.begin_extension("10m").granted()
    assert lease.trusted_for() > timedelta(minutes=9), "nothing is in doubt any more"


def test_extensions_one_after_the_other_are_believed() -> None:
    clock = FakeClock()
    provider = InMemoryLockProvider(clock=clock)
    lease = provider.acquire(LockRequest("job", "1m"))
    assert lease is not None
    for length in ("10m", "1m", "20m"):
        assert provider.extend(lease, length) is lease
    assert lease.trusted_for() > timedelta(minutes=19)
