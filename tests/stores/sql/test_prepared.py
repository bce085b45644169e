"""psycopg prepares nothing on managed connections: behind a pooler, prepared statements belong to other sessions."""

from collections.abc import Iterator
from functools import partial
from uuid import uuid4

import pytest

from shedlock_py import LockProvider, LockRequest
from shedlock_py.providers.sqlalchemy.statements import SqlCommand, Statement
from tests.stores.sql.stores import Store, acquired, carry_out
from tests.support.availability import private_server
from tests.support.database import DatabaseServer
from tests.support.pgbouncer import PgBouncer

PSYCOPG = ["postgresql+psycopg", "postgresql+psycopg_async"]
OFTEN = 12
pytestmark = pytest.mark.parametrize("driver", PSYCOPG)


@pytest.fixture(scope="module", params=["transaction", "session"])
def pooler(request: pytest.FixtureRequest, postgres_server: DatabaseServer) -> Iterator[PgBouncer]:
    size = 2 if request.param == "transaction" else 20  # so that each provider has a session
    make = partial(PgBouncer, postgres_server, pool_mode=request.param, pool_size=size)
    with private_server("pgbouncer", make) as pooler:
        yield pooler


def use(provider: LockProvider, name: str) -> None:
    for _ in range(OFTEN):
        lease = acquired(provider, name)
        assert provider.acquire(LockRequest(name, "1m")) is None
        assert provider.release(lease)


def prepared(provider: LockProvider) -> int:
    """How many statements the server keeps for the provider's own connection."""
    [[count]] = carry_out(provider, SqlCommand(Statement("SELECT count(*) FROM pg_prepared_statements", "rows"))).rows
    return int(count)


def test_nothing_is_prepared(store: Store, name: str) -> None:
    provider = store.provider()
    use(provider, name)
    assert prepared(provider) == 0


def test_behind_a_pooler(store: Store, pooler: PgBouncer) -> None:
    table = f"t_{uuid4().hex[:12]}"
    providers = [store.provider(url=pooler.url(store.driver), table_name=table) for _ in range(3)]
    providers[0].create_schema()
    for provider in providers * 2:
        use(provider, "job")
        assert prepared(provider) == 0


def test_a_table_that_is_changed_meanwhile(store: Store, name: str) -> None:
    """PostgreSQL refuses a prepared statement whose reply would have other types than when it was prepared."""
    with store.table() as table:
        provider = store.provider(table_name=table)
        provider.create_schema()
        lease = acquired(provider, name)
        for _ in range(OFTEN):
            assert provider.record(name)
        store.execute(f"ALTER TABLE {table} ALTER COLUMN locked_by TYPE text")
        record = provider.record(name)
        assert record
        assert record.locked_by == lease.locked_by
        assert provider.release(lease)
