"""One winner in each round and no errors, for all database settings."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from shedlock_py import Lease, LockProvider, LockRequest
from tests.stores.sql.stores import DATABASE, DRIVERS, SYNC_DRIVERS, Store, drivers_of, marks_of, programs_on
from tests.support import tiers
from tests.support.database import DatabaseServer

THREADS = 8
ROUNDS = 15 if tiers.runs("full") else 5

POSTGRES_SETTINGS = {
    "default_transaction_isolation": ["serializable", "repeatable read"],
    "default_transaction_deferrable": ["on"],
    "lock_timeout": ["1s"],
    "synchronous_commit": ["off"],
}
ISOLATION_LEVELS = ["'REPEATABLE-READ'", "'SERIALIZABLE'", "'READ-UNCOMMITTED'"]
GLOBAL_SETTINGS = {
    "mariadb": {
        "tx_isolation": ISOLATION_LEVELS,
        "sql_mode": ["''", "'ANSI_QUOTES,PIPES_AS_CONCAT'", "'ORACLE'", "'SIMULTANEOUS_ASSIGNMENT'"],
        "innodb_snapshot_isolation": ["1"],
        "innodb_lock_wait_timeout": ["1"],
        "completion_type": ["1"],  # CHAIN: the end of a transaction begins the next transaction
    },
    "mysql": {
        "transaction_isolation": ISOLATION_LEVELS,
        "sql_mode": ["''", "'ANSI_QUOTES,PIPES_AS_CONCAT'", "'TRADITIONAL,NO_BACKSLASH_ESCAPES'"],
        "innodb_lock_wait_timeout": ["1"],
        "completion_type": ["1"],
        "autocommit": ["0"],
    },
}


def flat(settings: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, values in settings.items() for value in values]


def slow_but_isolation(setting: tuple[str, str]) -> list[pytest.MarkDecorator]:
    return [] if "isolation" in setting[0] else [pytest.mark.slow("another setting than the isolation level")]


def one_winner_each_round(providers: list[LockProvider], name: str) -> None:
    barrier = threading.Barrier(THREADS)

    def contend(number: int) -> list[Lease | None]:
        provider = providers[number % len(providers)]
        leases = []
        for i in range(ROUNDS):
            barrier.wait(30)
            leases.append(provider.acquire(LockRequest(f"{name}-{i // 2}", "1m")))
            barrier.wait(30)
            if lease := leases[-1]:
                assert provider.extend(lease, "2m") is lease
                assert provider.release(lease)
        return leases

    with ThreadPoolExecutor(THREADS) as pool:
        columns = list(pool.map(contend, range(THREADS)))
    rounds = list(zip(*columns, strict=True))
    assert [sum(lease is not None for lease in leases) for leases in rounds] == [1] * ROUNDS
    tokens = [lease.fencing_token or 0 for leases in rounds for lease in leases if lease]
    pairs = zip(tokens[::2], tokens[1::2], strict=False)
    assert all(first < second for first, second in pairs), "two rounds on one lock"


def both_kinds(store: Store) -> list[LockProvider]:
    return [store.provider(), store.provider(), store.provider_of_engine(), store.provider_of_engine()]


@pytest.fixture(
    params=[
        pytest.param(setting, id="=".join(setting), marks=slow_but_isolation(setting))
        for setting in flat(POSTGRES_SETTINGS)
    ]
)
def postgres_setting(request: pytest.FixtureRequest, postgres: DatabaseServer) -> Iterator[None]:
    setting, value = request.param
    with postgres.connect() as connection:
        connection.execute(text(f"ALTER DATABASE {DATABASE} SET {setting} = '{value}'"))
        yield
        connection.execute(text(f"ALTER DATABASE {DATABASE} RESET ALL"))


@programs_on(drivers_of("postgres"))
def test_i1_one_winner_with_each_setting_of_postgres(
    driver: str, postgres_setting: None, store: Store, name: str
) -> None:
    one_winner_each_round(both_kinds(store), name)


@pytest.fixture
def global_setting(setting: tuple[str, str], store: Store) -> Iterator[None]:
    variable, value = setting
    with store.server.connect() as connection:
        before = connection.execute(text(f"SELECT @@GLOBAL.{variable}")).scalar()
        connection.execute(text(f"SET GLOBAL {variable} = {value}"))
        yield
        connection.execute(text(f"SET GLOBAL {variable} = :before"), {"before": before})


GLOBAL = [
    pytest.param(
        driver,
        setting,
        id=f"{driver}-{'='.join(setting)}",
        marks=marks_of(driver, DRIVERS, programs=True) + slow_but_isolation(setting),
    )
    for driver in drivers_of("mariadb", "mysql")
    for setting in flat(GLOBAL_SETTINGS[DRIVERS[driver]])
]


@pytest.mark.usefixtures("global_setting")
@pytest.mark.parametrize(("driver", "setting"), GLOBAL)
def test_i1_one_winner_with_each_setting_of_mysql_and_mariadb(store: Store, name: str) -> None:
    one_winner_each_round(both_kinds(store), name)


@pytest.mark.parametrize(
    "level",
    [
        "SERIALIZABLE",
        *(
            pytest.param(level, marks=pytest.mark.slow("another level"))
            for level in ("REPEATABLE READ", "READ COMMITTED")
        ),
        "AUTOCOMMIT",
    ],
)
@programs_on(SYNC_DRIVERS)
def test_i1_one_winner_at_each_level_of_a_users_engine(driver: str, level: str, store: Store, name: str) -> None:
    engines = [store.provider_of_engine(isolation_level=level) for _ in range(2)]
    one_winner_each_round([*engines, store.provider()], name)
