"""MySQL's default authentication (caching_sha2_password) and TLS."""

from __future__ import annotations

import asyncio
import gc
import re
import ssl
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import make_url

from shedlock_py import LockProvider, LockRequest, ProviderUnreachable
from tests.stores.sql.stores import DATABASE, Store, drivers_of, on
from tests.support.availability import private_server
from tests.support.database import DatabaseServer
from tests.support.locks import acquired
from tests.support.servers import MySqlServer
from tests.support.timing import Stopwatch
from tests.support.tls import Certificates

all_drivers = on(drivers_of("mysql"))

PASSWORD = "hunter2"


@pytest.fixture
def url_of_a_new_user(store: Store) -> Iterator[str]:
    """A user who has not logged in since the server started: the client must send the password itself."""
    user = f"user_{uuid4().hex[:8]}"
    store.execute(
        f"CREATE USER {user}@'%' IDENTIFIED WITH caching_sha2_password BY '{PASSWORD}'",
        f"GRANT SELECT, INSERT, UPDATE ON {DATABASE}.* TO {user}@'%'",
    )
    yield make_url(store.url()).set(username=user, password=PASSWORD).render_as_string(hide_password=False)
    store.execute(f"DROP USER {user}@'%'")


@all_drivers
def test_a_user_who_logs_in_for_the_first_time(store: Store, url_of_a_new_user: str, name: str) -> None:
    for _ in range(2):  # the second login is quick
        assert store.provider(url=url_of_a_new_user).release(acquired(store.provider(url=url_of_a_new_user), name))


WITHOUT_CRYPTOGRAPHY = """
import sys
sys.modules["cryptography"] = None  # importing it fails, as if it were not installed
from shedlock_py import LockRequest, ProviderError
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from shedlock_py.testing.blocking import BlockingLockProvider
is_async, url = sys.stdin.read().split()
if is_async == "True":
    provider = BlockingLockProvider(lambda: AsyncSqlAlchemyLockProvider(url))
else:
    provider = SqlAlchemyLockProvider(url)
try:
    provider.acquire(LockRequest("job", "1m"))
except ProviderError as error:
    print(type(error).__name__, error)
provider.close()
"""


@pytest.mark.slow("starts a Python for each driver")
@all_drivers
def test_without_cryptography_the_error_says_what_to_install(driver: str, store: Store, url_of_a_new_user: str) -> None:
    if driver == "mysql+mysqldb":
        pytest.skip("mysqlclient encrypts with the library of MySQL or MariaDB")
    given = f"{store.is_async} {url_of_a_new_user}"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CRYPTOGRAPHY],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert re.match(r"ProviderError .*'cryptography' package .*— pip install 'shedlock_py\[", done.stdout)
    extra = {"mysql+pymysql": "[mysql]", "mysql+asyncmy": "[asyncmy]"}.get(driver, "'aiomysql[rsa]'")
    assert extra in done.stdout
    assert PASSWORD not in done.stdout


# TLS


class TlsMySqlServer(MySqlServer):
    """It does not use the certificates that MySQL makes: Python 3.13 does not trust them by default."""

    @cached_property
    def certificates(self) -> Certificates:
        return Certificates(self.data)

    def command(self, port: int) -> list[str]:
        own = self.certificates
        files = {"ca": own.authority, "cert": own.server, "key": own.server_key}
        options = [f"--ssl-{what}={file}" for what, file in files.items()]
        return [*super().command(port), *options, "--require-secure-transport=ON"]


@pytest.fixture(scope="module")
def tls_server(mysql_server: DatabaseServer) -> Iterator[TlsMySqlServer]:
    if not isinstance(mysql_server, MySqlServer):
        pytest.skip("needs a server with a certificate, but the environment names another server")
    with private_server("mysql", TlsMySqlServer) as server:
        server.create_database(DATABASE)
        yield server


@pytest.fixture
def collected(driver: str) -> Iterator[None]:
    """Collect this test's garbage in this test.

    An async driver may close a connection without waiting for the end of TLS: aiomysql always does so, and asyncmy does
    so if the server stands still. If the event loop ends first, the transport stays open, and any later test would show
    the warning.
    """
    yield
    with warnings.catch_warnings():
        if driver in ("mysql+aiomysql", "mysql+asyncmy"):
            warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def provider_with_tls(store: Store, authority: Path, **options: Any) -> LockProvider:
    no_host = "" if store.driver == "mysql+mysqldb" else "&ssl_check_hostname=false"
    return store.provider(url=f"{store.url()}?ssl_ca={authority}{no_host}", **options)


@pytest.mark.slow("starts a MySQL server")
@pytest.mark.usefixtures("collected")
@all_drivers
def test_a_lock_is_held_and_released_over_tls(driver: str, tls_server: TlsMySqlServer, name: str) -> None:
    store = Store(tls_server, driver)
    authority = tls_server.certificates.authority
    with store.stack:
        if driver == "mysql+aiomysql":  # takes no certificates from a URL
            context = ssl.create_default_context(cafile=str(authority))
            context.check_hostname = False
            provider = store.provider_of_engine(connect_args={"ssl": context})
        else:
            provider = provider_with_tls(store, authority)
        provider.create_schema()
        lease = acquired(provider, name)
        assert provider.acquire(LockRequest(name, "1m")) is None
        assert provider.release(lease)


@pytest.mark.slow("starts a MySQL server")
@pytest.mark.usefixtures("collected")
@on(["mysql+asyncmy"])
def test_i13_the_end_of_tls_is_not_awaited(driver: str, tls_server: TlsMySqlServer, name: str) -> None:
    """All connections are closed after a server stands still. Asyncmy waited half a minute for each idle connection."""
    store = Store(tls_server, driver)
    with store.stack:
        provider: Any = provider_with_tls(store, tls_server.certificates.authority, timeout="2s")
        provider.create_schema()

        async def fill_pool() -> None:
            await asyncio.gather(*(provider.async_provider.record(name) for _ in range(20)))

        provider.run(fill_pool())
        tls_server.pause()
        try:
            with Stopwatch() as watch, pytest.raises(ProviderUnreachable):
                provider.acquire(LockRequest(name, "1m"))
            assert watch.seconds < 15
        finally:
            tls_server.resume()
