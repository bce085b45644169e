"""The short form of scenario 8: databases with awkward defaults, and PgBouncer before PostgreSQL."""

from uuid import uuid4

import pytest
from sqlalchemy import create_engine

from shedlock_py import LockRequest, ProviderError
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.faults.scenarios import settings
from tests.support.pgbouncer import PgBouncer
from tests.support.stores import Store, on_private_server

SETTINGS = {store: {setting.name: setting for setting in given} for store, given in settings.SETTINGS.items()}


CASES = [
    # The store, the setting, whether an application's engine is used (else a URL), and whether errors are due.
    ("postgres sync", "serializable", True, False), ("postgres async", "serializable", False, False),
    ("mariadb async", "serializable", True, False), ("mariadb sync", "ANSI_QUOTES", False, False),
    ("mariadb sync", "no autocommit", False, False), ("mariadb sync", "no autocommit", True, False),
    ("postgres async", "time limits", False, True), ("postgres sync", "few connections", False, True),
    ("mariadb sync", "time limits", False, True), ("mariadb async", "few connections", False, True),
    ("mysql sync", "serializable", True, False), ("mysql async", "no autocommit", False, False),
    ("mysql async", "log of statements", True, False), ("mysql sync", "few connections", False, True),
]  # fmt: skip


@pytest.mark.slow("starts workers, and waits for their leases")
@pytest.mark.parametrize(("store", "setting", "by_engine", "fails"), CASES, indirect=["store"])
def test_i5_an_awkward_setting_is_not_noticed_or_fails_closed(
    store: Store, setting: str, by_engine: bool, fails: bool
) -> None:
    with on_private_server(store) as own:
        report = settings.one_setting(own, SETTINGS[own.name][setting], 1, by_engine=by_engine)
    assert report.findings == []
    assert not fails or sum(number for kind, number in report.counts.items() if kind.endswith(" error")) >= 1


# PgBouncer


@pytest.mark.slow("starts PgBouncer and workers")
@pytest.mark.parametrize(
    ("store", "driver", "by_engine"),
    [
        ("postgres sync", "postgresql+psycopg", True),
        ("postgres sync", "postgresql+psycopg2", False),
        ("postgres async", "postgresql+psycopg", False),
        ("postgres async", "postgresql+asyncpg", False),
    ],
    indirect=["store"],
)
def test_i1_transaction_pooling_gives_no_lease_twice(store: Store, driver: str, by_engine: bool) -> None:
    """asyncpg prepares statements, which are then in another session. Each such failure is an error that says why."""
    with on_private_server(store) as own, settings.pooler_before(own) as pooler:
        history, report = settings.through_pooler(own, pooler, driver, 1, by_engine=by_engine)
    assert report.findings == []
    errors = [operation.error for operation in history.operations if operation.outcome == "error"]
    assert bool(errors) is driver.endswith("asyncpg")
    assert all(error.startswith("Provider") for error in errors)
    words = ("prepared statement", "does not exist", "already exists")
    assert not errors or any(word in error for error in errors for word in words)


@pytest.mark.slow("starts PgBouncer")
@pytest.mark.parametrize("store", ["postgres sync"], indirect=True)
def test_a_pooler_is_named_in_the_error(store: Store) -> None:
    """Two engines with psycopg's defaults prepare a statement after five executions, under the same names."""
    with on_private_server(store) as own, PgBouncer(own.servers[0], pool_size=1) as pooler:
        engines = [create_engine(pooler.url("postgresql+psycopg")) for _ in range(2)]
        table = f"faults_{uuid4().hex[:8]}"
        providers = [SqlAlchemyLockProvider(engine, table_name=table) for engine in engines]
        providers[0].create_schema()
        with pytest.raises(ProviderError, match=r"prepared statement .* PgBouncer .*prepare_threshold"):
            _use_often(providers)
        for engine in engines:
            engine.dispose()


def _use_often(providers: list[SqlAlchemyLockProvider]) -> None:
    for provider in providers * 16:
        lease = provider.acquire(LockRequest("pooled", "1m"))
        assert lease is None or provider.release(lease)
