"""docs/how-to/shedlock-java.md: its SQL runs, and each side excludes the other.

For all cases see ``tests/stores/sql/test_java.py`` and ``tests/stores/mongodb/test_java.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, create_engine, text

from shedlock_py import ConfigurationError, LockRequest, ProviderError, provider_from_url
from shedlock_py.model.durations import parse_duration
from shedlock_py.providers.mongodb import MongoLockProvider
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.guides.documents import Page
from tests.programs.applications import emptied
from tests.support.mongodb import MongoServer
from tests.support.redis import RedisEndpoint

PAGE = Page("shedlock-java")
DATABASE = "how_to_java"
SQL = [block.text for block in PAGE.of("sql")]
CREATE_IN_MYSQL = """
CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP(3) NOT NULL,
    locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name));
"""
CREATE_IN_POSTGRESQL = """
CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL,
    locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name));
"""
CREATE = {"postgresql": CREATE_IN_POSTGRESQL, "mariadb": CREATE_IN_MYSQL, "mysql": CREATE_IN_MYSQL}
"""As in ShedLock's documentation."""
ALTER = {"postgresql": SQL[0], "mariadb": SQL[1], "mysql": SQL[1]}
SELECT_OF_MYSQL = SQL[2].replace("timezone('utc', clock_timestamp())", "utc_timestamp(6)")
SELECT = {"postgresql": SQL[2], "mariadb": SELECT_OF_MYSQL, "mysql": SELECT_OF_MYSQL}
IN_A_MINUTE = {
    "postgresql": "timezone('utc', CURRENT_TIMESTAMP) + interval '1 minute'",
    "mariadb": "UTC_TIMESTAMP(3) + INTERVAL 1 MINUTE",
    "mysql": "UTC_TIMESTAMP(3) + INTERVAL 1 MINUTE",
}
REQUEST = LockRequest("report", "30m", "1m", holder="us:1")


@pytest.fixture
def engine(server_url: str) -> Iterator[Engine]:
    engine = create_engine(server_url)
    execute(engine, CREATE[engine.dialect.name])
    yield engine
    engine.dispose()


def execute(engine: Engine, script: str) -> None:
    with engine.begin() as connection:
        for statement in filter(str.strip, script.split(";")):
            connection.execute(text(statement))


def held(connection: Connection) -> list[tuple[str, str]]:
    """Run the page's own query: names and holders."""
    return [
        (row.name, row.locked_by) for row in connection.execute(text(SELECT[connection.dialect.name].rstrip(";\n")))
    ]


def java_locks(engine: Engine) -> None:
    until = IN_A_MINUTE[engine.dialect.name]
    execute(engine, f"INSERT INTO shedlock VALUES ('java', {until}, {until}, 'java-host')")


def check(engine: Engine, provider: SqlAlchemyLockProvider) -> None:
    assert provider.acquire(LockRequest("java", "1m")) is None, "Java's lock keeps us out"
    lease = provider.acquire(REQUEST)
    assert lease is not None
    with engine.connect() as connection:
        assert sorted(held(connection)) == [("java", "java-host"), ("report", lease.locked_by)]
    assert lease.locked_by.startswith("us:1#")
    assert provider.release(lease)
    with engine.connect() as connection:
        assert len(held(connection)) == 2, "the minimum hold is in the table, too"


@pytest.mark.parametrize("extra_columns", [False, True])
def test_the_table_as_it_is_and_with_our_columns(engine: Engine, extra_columns: bool) -> None:
    java_locks(engine)
    if extra_columns:
        execute(engine, ALTER[engine.dialect.name])
    else:
        with pytest.raises(ProviderError, match="add the missing columns: ALTER TABLE"):
            SqlAlchemyLockProvider(engine).acquire(REQUEST)
    provider = SqlAlchemyLockProvider(engine, extra_columns=extra_columns)
    check(engine, provider)
    lease = provider.acquire(LockRequest("another", "1m"))
    assert lease is not None
    assert (lease.fencing_token is not None) is extra_columns


def test_the_table_of_mongodb(mongodb_server: MongoServer) -> None:
    (collection,) = re.findall(r'collection="(\w+)"', PAGE.text)
    _, _, table = PAGE.text.partition("| Java's field and that of shedlock_py | only that of shedlock_py |")
    fields = re.findall(r"`(\w+)`", table.partition("\n\n")[0])
    provider = MongoLockProvider(mongodb_server.url(DATABASE), collection=collection)
    lease = provider.acquire(LockRequest("report", "1m"))
    assert lease is not None
    with mongodb_server.connect() as client:
        document = client[DATABASE][collection].find_one()
        client.drop_database(DATABASE)
    provider.close()
    assert document is not None
    assert set(document) <= set(fields) == {*document, "lastFireTime"}


def test_the_key_of_redis(redis_server: RedisEndpoint) -> None:
    (key,) = re.findall(r"that of shedlock_py a hash, `([^`]+)`", PAGE.text)
    provider = provider_from_url(redis_server.url(13))
    with emptied(redis_server, 13), redis_server.client(13) as client:
        assert provider.acquire(LockRequest("name", "1m")) is not None
        assert client.keys() == [key.encode()]
        assert client.type(key) == b"hash"


# The time zone of the columns' change

FAR_AWAY = "+05:00"
"""The zone of the applications' sessions. The server uses UTC, or this machine's zone."""


def in_zone(connection: Connection, zone: str) -> None:
    postgres = connection.dialect.name == "postgresql"
    set_zone = f"SET TIME ZONE INTERVAL '{zone}' HOUR TO MINUTE" if postgres else f"SET time_zone = '{zone}'"
    connection.execute(text(set_zone))


def change_columns(engine: Engine, zone: str) -> None:
    """Change the types as the page describes, in a session of that zone."""
    if engine.dialect.name == "postgresql":
        changes = "ALTER COLUMN lock_until TYPE timestamp, ALTER COLUMN locked_at TYPE timestamp"
        script = f"{ALTER['postgresql']}ALTER TABLE shedlock {changes}"
    else:
        alter = ALTER[engine.dialect.name]
        assert "SET time_zone = DEFAULT;" in alter
        script = alter.replace("DEFAULT", f"'{zone}'")
    with engine.begin() as connection:
        in_zone(connection, zone)
        for statement in filter(str.strip, script.split(";")):
            connection.execute(text(statement))


@pytest.mark.parametrize(("zone", "is_held"), [(FAR_AWAY, True), ("+00:00", False)], ids=["the writers'", "another"])
def test_the_columns_are_changed_in_the_zone_of_those_that_wrote_the_rows(
    engine: Engine, zone: str, is_held: bool
) -> None:
    if engine.dialect.name == "postgresql":
        execute(engine, "ALTER TABLE shedlock ALTER lock_until TYPE timestamptz, ALTER locked_at TYPE timestamptz")
    with engine.begin() as connection:
        in_zone(connection, FAR_AWAY)
        until = IN_A_MINUTE[engine.dialect.name]
        connection.execute(text(f"INSERT INTO shedlock VALUES ('java', {until}, {until}, 'java-host')"))
    change_columns(engine, zone)
    provider = SqlAlchemyLockProvider(engine.url)
    record = provider.record("java")
    assert record is not None
    assert record.is_held is is_held
    assert (provider.acquire(LockRequest("java", "1m")) is None) is is_held
    provider.close()


# Facts that one side does not know of the other


def test_fire_times_do_not_see_javas_runs(engine: Engine) -> None:
    java_locks(engine)
    execute(engine, ALTER[engine.dialect.name])
    provider = SqlAlchemyLockProvider(engine)
    provider.force_release("java")  # as when its run has ended
    fire_time = datetime.now(UTC).replace(microsecond=0)
    lease = provider.acquire(LockRequest("java", "1m", fire_time=fire_time))
    assert lease is not None
    assert provider.release(lease)
    assert provider.acquire(LockRequest("java", "1m", fire_time=fire_time)) is None  # we do see our own runs


def test_the_durations_that_java_takes_and_we_refuse() -> None:
    (paragraph,) = re.findall(r"^Durations may stay.*?\n\n", PAGE.text, re.DOTALL | re.MULTILINE)
    accepted, _, refused = paragraph.partition("are refused:")
    durations = {parse_duration(value) for value in re.findall(r'`"([^"]+)"`', accepted)}
    assert durations == {timedelta(minutes=30)}
    values = re.findall(r'`"([^"]+)"`', refused)
    assert {"1000", "500us", "+10m"} < set(values)
    for value in values:
        with pytest.raises(ConfigurationError):
            parse_duration(value)
