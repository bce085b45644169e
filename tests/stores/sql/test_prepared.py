"""Prepared statements. psycopg prepares none on managed connections: a pooler gives their sessions to others.

``prepare=yes`` turns them on. ``shedlock doctor`` advises it without a pooler.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import Any
from uuid import uuid4

import pytest

from shedlock_py import LockProvider, LockRequest, ProviderError
from shedlock_py.providers.sqlalchemy.statements import SqlCommand, Statement
from tests.stores.sql.stores import KINDS, Store, carry_out, drivers_of, on
from tests.support.availability import private_server
from tests.support.database import DatabaseServer
from tests.support.locks import acquired, checks_of, record_of
from tests.support.pgbouncer import PgBouncer

PSYCOPG = ["postgresql+psycopg", "postgresql+psycopg_async"]
OFTEN = 7
of_psycopg = on(PSYCOPG, programs=True)


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


def use_all(providers: Sequence[LockProvider]) -> None:
    for provider in providers:
        use(provider, "job")


def prepared(provider: LockProvider) -> int:
    """Return the number of prepared statements of the provider's connection."""
    [[count]] = carry_out(provider, SqlCommand(Statement("SELECT count(*) FROM pg_prepared_statements", "rows"))).rows
    return int(count)


@of_psycopg
def test_no_statement_is_prepared(store: Store, name: str) -> None:
    provider = store.provider()
    use(provider, name)
    assert prepared(provider) == 0


@of_psycopg
def test_with_prepare_psycopg_prepares_what_a_connection_repeats(store: Store, name: str) -> None:
    provider = store.provider(url=f"{store.url()}?prepare=yes")
    use(provider, name)
    assert prepared(provider) > 0


@of_psycopg
def test_behind_a_pooler_no_statement_is_prepared(store: Store, pooler: PgBouncer) -> None:
    table = f"t_{uuid4().hex[:12]}"
    providers = [store.provider(url=pooler.url(store.driver), table_name=table) for _ in range(3)]
    providers[0].create_schema()
    use_all(providers * 2)
    assert [prepared(provider) for provider in providers] == [0, 0, 0]


@on(drivers_of("postgres"))
def test_doctor_advises_prepare_on_a_direct_connection_of_psycopg(store: Store) -> None:
    found = checks_of(store.provider()).get("prepared statements")
    if store.driver in PSYCOPG:
        assert found is not None
        assert found.status == "ok"
        assert "direct" in found.message
        assert "prepare=yes" in str(found.hint)
    else:
        assert found is None, "prepare=yes changes nothing for this driver"


@of_psycopg
def test_doctor_does_not_advise_prepare_where_it_is_set(store: Store) -> None:
    assert "prepared statements" not in checks_of(store.provider(url=f"{store.url()}?prepare=yes"))


@of_psycopg
def test_doctor_does_not_advise_prepare_behind_a_pooler(store: Store, pooler: PgBouncer) -> None:
    assert "prepared statements" not in checks_of(store.provider(url=pooler.url(store.driver)))


@of_psycopg
def test_prepare_behind_a_pooler_is_named_in_the_error(store: Store, postgres_server: DatabaseServer) -> None:
    """Two providers share a session. psycopg gives their statements the same names."""
    make = partial(PgBouncer, postgres_server, pool_size=1)
    with private_server("pgbouncer", make) as pooler, store.table() as table:
        url = f"{pooler.url(store.driver)}?prepare=yes"
        providers = [store.provider(url=url, table_name=table) for _ in range(2)]
        providers[0].create_schema()
        with pytest.raises(ProviderError, match=r"prepared statement .* PgBouncer .*without prepare=yes"):
            use_all(providers * 2)


@on(drivers_of("postgres"), kinds=KINDS)
def test_i5_a_table_that_is_changed_meanwhile(kind: str, store: Store, name: str) -> None:
    """PostgreSQL rejects a prepared statement after its columns' types have changed."""
    with store.table() as table:
        options: dict[str, Any] = {"table_name": table, "history": 5}
        provider: Any = store.provider(**options) if kind == "url" else store.provider_of_engine(options=options)
        provider.create_schema()
        request, column_type = LockRequest(name, "1m"), cycle(["text", "varchar(255)"])
        steps: list[Callable[[], object]] = [
            lambda: record_of(provider, name),
            lambda: next(iter(provider.records())),
            lambda: next(iter(provider.runs(name))),
            lambda: provider.take_over(request),
            lambda: provider.force_release(name),
        ]
        for _ in range(OFTEN):
            acquired(provider, name)
            assert all(step() for step in steps)
        for step in steps:
            acquired(provider, name)
            new_type = next(column_type)
            for each in (table, f"{table}_runs"):
                store.execute(f"ALTER TABLE {each} ALTER COLUMN locked_by TYPE {new_type}")
            assert step()
            provider.force_release(name)
