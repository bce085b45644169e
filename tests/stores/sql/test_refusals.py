"""Rejections by the database: helpful messages, without passwords."""

import logging
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from shedlock_py import LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.stores.sql.stores import DATABASE, ONE_EACH, Application, Store, on
from tests.support.locks import acquired

PASSWORDS = ["hunter2", "hun/ter:2@%41 x"]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    return caplog


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("database", [DATABASE, "no_such_database"])
def test_no_error_shows_the_password(
    store: Store, password: str, database: str, name: str, log: pytest.LogCaptureFixture
) -> None:
    right = database == DATABASE
    url = make_url(store.url()).set(database=database)
    if right:
        url = url.set(password=password)
    secret = str(url.password)
    text = url.render_as_string(hide_password=False)
    provider = store.provider(url=text)
    with pytest.raises(ProviderError) as refused:
        provider.acquire(LockRequest(name, "1m"))
    error = refused.value
    assert (error.operation, error.lock_name) == ("acquire", name)
    assert error.__cause__ is not None
    assert_hidden(secret, text, error, provider, log)


def assert_hidden(secret: str, url: str, error: Exception, provider: object, log: pytest.LogCaptureFixture) -> None:
    inner = getattr(provider, "async_provider", provider)
    said = [str(error), repr(error), repr(inner), str(inner), *traceback.format_exception(error), log.text]
    said += [repr(pickle.loads(pickle.dumps(error)))]
    encoded = make_url(url).render_as_string(hide_password=False).partition("@")[0].rpartition(":")[2]
    for line in said:
        assert secret not in line
        assert encoded not in line


@on(ONE_EACH)
def test_no_error_shows_the_password_of_the_query(
    driver: str, store: Store, name: str, log: pytest.LogCaptureFixture
) -> None:
    url = make_url(store.url()).set(password=None).update_query_dict({"password": "hunter2"})
    provider = store.provider(url=url.render_as_string(hide_password=False))
    with pytest.raises(ProviderError) as refused:
        provider.acquire(LockRequest(name, "1m"))
    assert_hidden("hunter2", "x://u:hunter2@h/", refused.value, provider, log)


# Read only


@pytest.fixture
def read_only(store: Store) -> Iterator[str]:
    if store.is_postgres:
        store.execute(f"ALTER DATABASE {DATABASE} SET default_transaction_read_only = on")
        yield store.url()
        with store.server.connect() as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {DATABASE} RESET ALL")
    else:
        yield store.url() + "?init_command=SET SESSION TRANSACTION READ ONLY"


def test_i5_a_server_that_is_read_only_is_unreachable(store: Store, read_only: str, name: str) -> None:
    lease = acquired(store.provider(), f"{name}-2") if not store.is_postgres else None
    provider = store.provider(url=read_only)
    with pytest.raises(ProviderUnreachable, match=r"(?i)read.only"):
        provider.acquire(LockRequest(name, "1m"))
    assert provider.record(name) is None
    if lease:
        with pytest.raises(ProviderUnreachable, match=r"(?i)read.only"):
            provider.release(lease)
        with pytest.raises(ProviderUnreachable, match=r"(?i)read.only"):
            provider.acquire(LockRequest(f"{name}-2", "1m"))


def test_i5_a_sqlite_file_that_is_read_only_is_unreachable(name: str, tmp_path: Path) -> None:
    file = tmp_path / "locks.db"
    writer = SqlAlchemyLockProvider(f"sqlite:///{file}")
    writer.create_schema()
    acquired(writer, "held")
    provider = SqlAlchemyLockProvider(f"sqlite:///file:{file}?mode=ro&uri=true")
    assert provider.acquire(LockRequest("held", "1m")) is None
    with pytest.raises(ProviderUnreachable, match="readonly"):
        provider.acquire(LockRequest(name, "1m"))
    provider.close()
    writer.close()


def test_i5_a_directory_that_does_not_exist(name: str, tmp_path: Path) -> None:
    provider = SqlAlchemyLockProvider(f"sqlite:///{tmp_path}/missing/locks.db")
    with pytest.raises(ProviderUnreachable, match="unable to open"):
        provider.acquire(LockRequest(name, "1m"))
    (tmp_path / "missing").mkdir()
    provider.create_schema()
    assert provider.release(acquired(provider, name))
    provider.close()


# Out of connections


def test_i5_a_pool_without_a_free_connection(store: Store, name: str) -> None:
    application = Application(store, pool_size=1, max_overflow=0, pool_timeout=0.1)
    provider = application.provider

    with application.connection_taken(), pytest.raises(ProviderUnreachable, match="QueuePool limit"):
        provider.acquire(LockRequest(name, "1m"))
    lease = acquired(provider, name)
    with application.connection_taken(), pytest.raises(ProviderUnreachable, match="QueuePool limit"):
        provider.release(lease)
    assert provider.release(lease)


@on(["postgresql+psycopg", "postgresql+psycopg2", "postgresql+asyncpg"])
def test_i5_a_server_without_a_free_connection(driver: str, store: Store, name: str) -> None:
    store.execute(f"CREATE ROLE {driver[11:]} LOGIN PASSWORD 'pw' CONNECTION LIMIT 0")
    store.execute(f"GRANT ALL ON shedlock TO {driver[11:]}")
    try:
        url = make_url(store.url()).set(username=driver[11:], password="pw")
        provider = store.provider(url=url.render_as_string(hide_password=False))
        with pytest.raises(ProviderUnreachable, match="too many connections"):
            provider.acquire(LockRequest(name, "1m"))
        store.execute(f"ALTER ROLE {driver[11:]} CONNECTION LIMIT 5")
        assert provider.release(acquired(provider, name))
    finally:
        store.stack.close()
        store.execute(f"DROP OWNED BY {driver[11:]}", f"DROP ROLE {driver[11:]}")
