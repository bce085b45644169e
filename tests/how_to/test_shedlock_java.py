"""docs/how-to/shedlock-java.md: its SQL runs, and then each side keeps the other out.

How each side behaves in every case is tested in ``tests/sql/test_java.py`` and ``tests/mongodb/test_java.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, create_engine, text

from shedlock_py import LockRequest, ProviderError, provider_from_url
from shedlock_py.providers.mongodb import MongoLockProvider
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.how_to.pages import Page
from tests.services.database import DatabaseServer
from tests.services.mongodb import MongoServer
from tests.services.redis import RedisEndpoint

PAGE = Page("shedlock-java")
DATABASE = "how_to_java"
SQL = [block.text for block in PAGE.of("sql")]
CREATE = {"postgresql": SQL[0], "mariadb": SQL[1]}
ALTER = {"postgresql": SQL[2], "mariadb": SQL[3]}
SELECT = {
    "postgresql": SQL[4],
    "mariadb": SQL[4].replace("timezone('utc', clock_timestamp())", "utc_timestamp(6)"),
}
IN_A_MINUTE = {
    "postgresql": "timezone('utc', CURRENT_TIMESTAMP) + interval '1 minute'",
    "mariadb": "UTC_TIMESTAMP(3) + INTERVAL 1 MINUTE",
}
REQUEST = LockRequest("report", "30m", "1m", holder="us:1")


@pytest.fixture(params=["postgres", "mariadb"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    server: DatabaseServer = request.getfixturevalue(f"{request.param}_server")
    server.drop_database(DATABASE)
    server.create_database(DATABASE)
    url = server.url({"postgres": "postgresql+psycopg", "mariadb": "mariadb+pymysql"}[request.param], DATABASE)
    engine = create_engine(url)
    execute(engine, CREATE[engine.dialect.name])
    yield engine
    engine.dispose()
    server.drop_database(DATABASE)


def execute(engine: Engine, script: str) -> None:
    with engine.begin() as connection:
        for statement in filter(str.strip, script.split(";")):
            connection.execute(text(statement))


def held(connection: Connection) -> list[tuple[str, str]]:
    """The page's own question: names and holders."""
    return [
        (row.name, row.locked_by) for row in connection.execute(text(SELECT[connection.dialect.name].rstrip(";\n")))
    ]


def java_locks(engine: Engine) -> None:
    until = IN_A_MINUTE[engine.dialect.name]
    execute(engine, f"INSERT INTO shedlock VALUES ('java', {until}, {until}, 'java-host')")


def check(engine: Engine, provider: SqlAlchemyLockProvider) -> None:
    assert provider.acquire(LockRequest("java", "1m")) is None, "theirs keeps us out"
    lease = provider.acquire(REQUEST)
    assert lease is not None
    with engine.connect() as connection:
        assert sorted(held(connection)) == [("java", "java-host"), ("report", lease.locked_by)]
    assert lease.locked_by.startswith("us:1#")
    assert provider.release(lease)
    with engine.connect() as connection:
        assert len(held(connection)) == 2, "the minimum hold is in the table, too"


def test_the_table_as_it_is(engine: Engine) -> None:
    java_locks(engine)
    with pytest.raises(ProviderError, match="add the missing columns: ALTER TABLE"):
        SqlAlchemyLockProvider(engine).acquire(REQUEST)
    provider = SqlAlchemyLockProvider(engine, extra_columns=False)
    check(engine, provider)
    lease = provider.acquire(LockRequest("another", "1m"))
    assert lease is not None
    assert lease.fencing_token is None


def test_the_table_with_our_columns(engine: Engine) -> None:
    java_locks(engine)
    execute(engine, ALTER[engine.dialect.name])
    provider = SqlAlchemyLockProvider(engine)
    check(engine, provider)
    lease = provider.acquire(LockRequest("another", "1m"))
    assert lease is not None
    assert lease.fencing_token is not None


def test_the_table_of_mongodb(mongodb_server: MongoServer) -> None:
    (collection,) = re.findall(r'collection="(\w+)"', PAGE.text)
    fields = re.findall(r"`(\w+)`", PAGE.text.partition("| Java's and our field | only ours |")[2].partition("\n\n")[0])
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
    (key,) = re.findall(r"ours a hash, `([^`]+)`", PAGE.text)
    provider = provider_from_url(redis_server.url(13))
    lease = provider.acquire(LockRequest("name", "1m"))
    assert lease is not None
    with redis_server.client(13) as client:
        assert client.keys() == [key.encode()]
        assert client.type(key) == b"hash"
        client.flushdb()
