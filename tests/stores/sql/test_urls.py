"""Invalid URLs and engines are rejected at once, with helpful messages."""

import asyncio
import importlib.machinery
import ntpath
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from shedlock_py import (
    ConfigurationError,
    LockProvider,
    LockRequest,
    ProviderError,
    ProviderUnreachable,
    async_provider_from_url,
    hold,
    provider_from_url,
)
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider, sqlite_files
from shedlock_py.testing.blocking import BlockingLockProvider
from shedlock_py.testing.forks import in_child
from tests.stores.sql.stores import ASYNC_DRIVERS, DATABASE, DRIVERS, on
from tests.support.database import DatabaseServer
from tests.support.drivers import is_installed
from tests.support.locks import acquired
from tests.support.ports import free_port


@pytest.mark.parametrize(
    ("url", "path"),
    [
        (r"sqlite:///C:\data\locks.db", r"C:\data\locks.db"),
        ("sqlite:///C:/data/locks.db", r"C:\data\locks.db"),
        ("sqlite:////C:/data/locks.db", r"C:\data\locks.db"),
        ("sqlite:///file:///C:/data/my%20locks.db?uri=true", r"C:\data\my locks.db"),
        ("sqlite://///server/share/locks.db", r"\\server\share\locks.db"),
    ],
)
def test_paths_of_windows_are_found_in_urls(url: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_files, "os", SimpleNamespace(name="nt", path=ntpath))
    assert sqlite_files.path_of(make_url(url)) == path


def test_the_wrong_kind_of_engine_is_refused(tmp_path: Path) -> None:
    engine: Any = create_engine(f"sqlite:///{tmp_path}/locks.db")
    async_engine: Any = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/locks.db")
    with pytest.raises(ConfigurationError, match="AsyncSqlAlchemyLockProvider"):
        SqlAlchemyLockProvider(async_engine)
    with pytest.raises(ConfigurationError, match=r"give it to SqlAlchemyLockProvider"):
        AsyncSqlAlchemyLockProvider(engine)


@pytest.mark.parametrize("nonsense", [None, 5, b"sqlite:///x", object(), ["sqlite:///x.db"]])
def test_neither_an_engine_nor_a_url_is_refused(nonsense: Any) -> None:
    for provider_class in (SqlAlchemyLockProvider, AsyncSqlAlchemyLockProvider):
        with pytest.raises(ConfigurationError, match=r"(?i)engine|url"):
            provider_class(nonsense)


@pytest.mark.parametrize(
    ("scheme", "instead"),
    [
        ("postgresql+pg8000", "postgresql+psycopg:// or postgresql+psycopg2://"),
        ("mysql+mysqlconnector", "mysql+pymysql:// or mysql+mysqldb://"),
        ("mariadb+mariadbconnector", "mariadb+pymysql:// or mariadb+mysqldb://"),
    ],
)
def test_i13_a_driver_for_which_there_is_no_time_limit_is_refused(scheme: str, instead: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{re.escape(scheme)}:// is not supported.*use {re.escape(instead)}$"):
        provider_from_url(f"{scheme}://user@host/db")


MEMORY = [
    "sqlite://",
    "sqlite:///:memory:",
    "sqlite:///file::memory:?uri=true",
    "sqlite:///file:x?mode=memory&uri=true",
    "sqlite:///",
]


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")
@pytest.mark.parametrize("url", MEMORY)
def test_sqlite_in_memory_is_refused(url: str) -> None:
    for make in (provider_from_url, SqlAlchemyLockProvider, lambda url: SqlAlchemyLockProvider(create_engine(url))):
        with pytest.raises(ConfigurationError, match="InMemoryLockProvider"):
            make(url)
    async_url = url.replace("sqlite:", "sqlite+aiosqlite:")
    for make_async in (async_provider_from_url, AsyncSqlAlchemyLockProvider):
        with pytest.raises(ConfigurationError, match="InMemoryLockProvider"):
            make_async(async_url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("oracle://u:hunter2@h/db", "unknown scheme 'oracle'"),
        ("postgresql+nonsense://u:hunter2@h/db", "nonsense"),
        ("postgresql", "not a URL"),
        ("", "the store URL is empty"),
        ("://", "not a URL"),
        ("postgresql://u:hunter2@h:port/db", "store URL"),
        ("postgresql://u:hunter2@h:99999999/db", ""),
    ],
)
def test_urls_that_cannot_work_are_refused(url: str, words: str) -> None:
    for make in (provider_from_url, async_provider_from_url):
        if not words:  # it is a URL; the connection will fail later
            assert "hunter2" not in repr(make(url))
            continue
        with pytest.raises(ConfigurationError, match=words) as refused:
            make(url)
        assert "hunter2" not in str(refused.value)
        assert "hunter2" not in repr(refused.value.__cause__)
        assert "hunter2" not in repr(refused.value.__context__)


NOWHERE = "u:hunter2@127.0.0.1:9/db"  # no test that uses it connects


def assert_option_is_refused(provider: LockProvider, driver: str, words: str) -> None:
    with pytest.raises(ProviderError, match=words) as refused:
        provider.acquire(LockRequest("job", "1m"))
    assert not isinstance(refused.value, ProviderUnreachable)
    assert refused.value.hint is not None
    assert f"({driver.partition('+')[2].removesuffix('_async')})" in refused.value.hint
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("where", ["in the URL", "of the application's engine"])
@on(DRIVERS)
def test_i5_an_option_that_the_driver_does_not_know_is_no_outage(driver: str, where: str) -> None:
    """The server is not at fault: a retry fails again."""
    url, is_async = f"{driver}://{NOWHERE}", driver in ASYNC_DRIVERS
    given: Any = f"{url}?nonsense=1"
    if where != "in the URL":
        given = (create_async_engine if is_async else create_engine)(url, connect_args={"nonsense": "1"})
    if is_async:
        with BlockingLockProvider(lambda: AsyncSqlAlchemyLockProvider(given)) as provider:
            assert_option_is_refused(provider, driver, "nonsense")
    else:
        assert_option_is_refused(SqlAlchemyLockProvider(given), driver, "nonsense")


@pytest.mark.parametrize("option", ["connect_timeout=soon", "local_infile=perhaps"])
@on(["mysql+pymysql", "mysql+mysqldb", "mysql+aiomysql", "mysql+asyncmy"])
def test_a_value_that_an_option_cannot_have_is_refused(driver: str, option: str) -> None:
    make = AsyncSqlAlchemyLockProvider if driver in ASYNC_DRIVERS else SqlAlchemyLockProvider
    with pytest.raises(ConfigurationError, match=f"store URL: .*{option.partition('=')[2]}"):
        make(f"{driver}://{NOWHERE}?{option}")


@pytest.mark.parametrize("url", ["mssql+pyodbc://h/db", "nonsense://h/db"])
def test_dialects_that_are_not_supported_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        SqlAlchemyLockProvider(url)


def test_a_sync_driver_for_an_async_provider_is_refused() -> None:
    instead = {
        "postgresql+psycopg2": "asyncpg",
        "mysql+pymysql": "asyncmy",
        "mysql+mysqldb": "asyncmy",
        "sqlite+pysqlite": "aiosqlite",
    }
    for driver, other in instead.items():
        if not is_installed(driver):
            continue
        with pytest.raises(ConfigurationError, match="not an async driver; use ") as refused:
            AsyncSqlAlchemyLockProvider(f"{driver}://u:hunter2@h/db")
        assert "hunter2" not in str(refused.value)
        assert other in str(refused.value)


def test_an_async_driver_for_a_sync_provider_is_refused() -> None:
    for driver in filter(is_installed, (*ASYNC_DRIVERS, "sqlite+aiosqlite")):
        for make in (SqlAlchemyLockProvider, provider_from_url):
            with pytest.raises(ConfigurationError, match=r"async"):
                make(f"{driver}:///db" if "sqlite" in driver else f"{driver}://u:hunter2@h/db")
        with pytest.raises(ConfigurationError, match=r"async"):
            SqlAlchemyLockProvider(create_engine(f"{driver}:///locks.db"))


@pytest.mark.parametrize("driver", [each for each in (*DRIVERS, *ASYNC_DRIVERS) if each.startswith("postgresql")])
def test_several_hosts_as_the_error_for_libpq_writes_them(postgres: DatabaseServer, driver: str, name: str) -> None:
    if not is_installed(driver):
        pytest.skip(f"{driver} is not installed")
    whole = make_url(postgres.url(driver, DATABASE))
    hosts = f"?host=127.0.0.1:{free_port()}&host={whole.host}:{whole.port}"
    url = f"{driver}://{whole.username}:{whole.password or ''}@/{whole.database}{hosts}"
    if driver in ASYNC_DRIVERS:
        asyncio.run(use(AsyncSqlAlchemyLockProvider(url), name))
    else:
        provider = SqlAlchemyLockProvider(url)
        assert provider.release(acquired(provider, name))
        provider.close()


def test_the_alias_of_hosting_services_works(postgres: DatabaseServer, name: str) -> None:
    url = postgres.url("postgres", DATABASE)
    assert url.startswith("postgres://")
    provider = provider_from_url(url)
    assert isinstance(provider, SqlAlchemyLockProvider)
    assert provider.release(acquired(provider, name))
    provider.close()
    assert isinstance(async_provider_from_url(url), AsyncSqlAlchemyLockProvider)


@pytest.mark.parametrize(
    ("server", "scheme"),
    [("postgres", "postgresql"), ("mariadb", "mysql"), ("mariadb", "mariadb"), ("mysql", "mysql")],
)
def test_a_url_without_a_driver_works(server: str, scheme: str, request: pytest.FixtureRequest, name: str) -> None:
    url = request.getfixturevalue(server).url(scheme, DATABASE)
    for given in (url, make_url(url)):
        provider = SqlAlchemyLockProvider(given)
        with hold(name, lock_at_most_for="1m", provider=provider) as lease:
            assert lease
        provider.close()
    asyncio.run(use(AsyncSqlAlchemyLockProvider(url), name))


def test_the_scheme_of_mariadb_on_mysql_is_refused(mysql: DatabaseServer, name: str) -> None:
    provider = SqlAlchemyLockProvider(mysql.url("mariadb+pymysql", DATABASE))
    with pytest.raises(ProviderError, match="MariaDB") as refused:
        provider.acquire(LockRequest(name, "1m"))
    assert not isinstance(refused.value, ProviderUnreachable)
    provider.close()


async def use(provider: AsyncSqlAlchemyLockProvider, name: str) -> None:
    lease = await provider.acquire(LockRequest(name, "1m"))
    assert lease
    assert await provider.release(lease)
    await provider.close()


@on(["mysql+pymysql", "mysql+mysqldb", "mysql+asyncmy", "postgresql+psycopg_async"])
def test_the_scheme_of_mysql_works_on_mariadb(driver: str, request: pytest.FixtureRequest, name: str) -> None:
    """Other tests in this directory use mariadb:// for MariaDB."""
    server: DatabaseServer = request.getfixturevalue("postgres" if "post" in driver else "mariadb")
    url = server.url(driver, DATABASE)
    if driver.endswith(("asyncmy", "_async")):
        asyncio.run(use(AsyncSqlAlchemyLockProvider(url), name))
    else:
        provider = SqlAlchemyLockProvider(url)
        assert provider.release(acquired(provider, name))
        provider.close()


MISSING = [
    ("async_provider_from_url", "sqlite:///locks.db", "greenlet", "'shedlock_py[aiosqlite]'"),
    ("provider_from_url", "postgresql://h/db", "psycopg,psycopg2", "'shedlock_py[postgresql]'"),
    ("provider_from_url", "postgresql+psycopg2://h/db", "psycopg2", "'shedlock_py[sqlalchemy]' psycopg2-binary"),
    ("provider_from_url", "mysql://h/db", "pymysql,MySQLdb", "'shedlock_py[mysql]'"),
    ("provider_from_url", "mysql+mysqldb://h/db", "MySQLdb", "'shedlock_py[sqlalchemy]' mysqlclient"),
    ("async_provider_from_url", "postgresql://h/db", "asyncpg,psycopg", "'shedlock_py[asyncpg]'"),
    ("async_provider_from_url", "postgresql+psycopg_async://h/db", "psycopg", "'shedlock_py[postgresql]'"),
    ("async_provider_from_url", "mysql://h/db", "asyncmy,aiomysql", "'shedlock_py[asyncmy]'"),
    ("async_provider_from_url", "mariadb+aiomysql://h/db", "aiomysql", "'shedlock_py[sqlalchemy]' 'aiomysql[rsa]'"),
    ("async_provider_from_url", "sqlite:///locks.db", "aiosqlite", "'shedlock_py[aiosqlite]'"),
    ("provider_from_url", "sqlite:///locks.db", "sqlalchemy", "'shedlock_py[sqlite]'"),
    ("async_provider_from_url", "sqlite:///locks.db", "sqlalchemy", "'shedlock_py[aiosqlite]'"),
]


@pytest.mark.parametrize(
    ("function", "url", "missing", "packages"),
    [
        pytest.param(*case, marks=[] if number in (1, 7, 10) else pytest.mark.slow("imports all modules anew"))
        for number, case in enumerate(MISSING)
    ],
)
def test_the_error_of_a_missing_package_says_what_to_install(
    function: str, url: str, missing: str, packages: str
) -> None:
    absent = {
        *missing.split(","),
        *(["shedlock_py"] if missing == "sqlalchemy" else ["sqlalchemy"] if missing == "greenlet" else []),
    }

    class WithoutSome(importlib.machinery.PathFinder):
        @classmethod
        def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
            return None if name.partition(".")[0] in missing.split(",") else super().find_spec(name, path, target)

    def child() -> None:
        """Import the modules again, without these packages."""
        for name in [name for name in sys.modules if name.partition(".")[0] in absent]:
            del sys.modules[name]
        sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = WithoutSome
        fresh = importlib.import_module("shedlock_py")
        with pytest.raises(fresh.ConfigurationError, match=re.escape(f"pip install {packages}") + "$"):
            getattr(fresh, function)(url)

    in_child(child)


def test_a_url_connects_at_first_use(name: str) -> None:
    provider = provider_from_url("postgresql://nobody@127.0.0.1:9/none")
    assert isinstance(provider, SqlAlchemyLockProvider)
    assert "127.0.0.1:9" in repr(provider)
    provider.close()


def test_a_table_name_with_a_schema_names_the_option() -> None:
    """ShedLock for Java accepts this form. Here it would mean another table, in the default schema."""
    with pytest.raises(ConfigurationError, match=r"has a dot: .* schema='app', table_name='shedlock'$"):
        SqlAlchemyLockProvider("postgresql://app@127.0.0.1/app", table_name="app.shedlock")


def test_an_engine_with_a_driver_that_nobody_has_tried_is_refused() -> None:
    engine = create_engine("postgresql+pg8000://app@127.0.0.1/app", module=SimpleNamespace(paramstyle="format"))
    with pytest.raises(ConfigurationError, match=r"the driver pg8000 is not supported: use an engine with psycopg or"):
        SqlAlchemyLockProvider(engine)


@pytest.mark.parametrize("scheme", ["mysql+pymysql", "mariadb+pymysql"])
def test_no_character_of_a_password_that_the_driver_cannot_send_is_shown(scheme: str) -> None:
    provider = SqlAlchemyLockProvider(f"{scheme}://app:%E5%AF%86@127.0.0.1:1/app")
    with pytest.raises(ProviderError, match=r"latin-?1 cannot encode a character of .* the password") as caught:
        provider.record("job")
    assert "\u5bc6" not in str(caught.value)
    assert "5bc6" not in str(caught.value)
