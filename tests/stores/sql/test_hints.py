"""Errors name the next command, and hide secrets."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from shedlock_py import (
    LockRequest,
    ProviderError,
    ProviderUnreachable,
    async_provider_from_url,
    provider_from_url,
)
from shedlock_py.providers.sqlalchemy.errors import grant_sql
from shedlock_py.testing.blocking import BlockingLockProvider
from tests.stores.sql.stores import DATABASE, ONE_ASYNC_EACH, ONE_EACH, Store, on
from tests.stores.sql.test_checks import role
from tests.support.polling import wait_until
from tests.support.ports import free_port

REQUEST = LockRequest("job", "1m")


# SQLite's file


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("no/such/locks.db", "the file is {0}/no/such/locks.db, and the directory {0}/no/such does not exist"),
        ("locks.dir", "{0}/locks.dir is a directory"),
    ],
)
def test_a_file_that_cannot_be_opened_is_named_by_its_absolute_path(
    kind: str, path: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "locks.dir").mkdir()
    provider: Any = provider_from_url(f"sqlite:///{path}")
    if kind == "async":
        provider = BlockingLockProvider(lambda: async_provider_from_url(f"sqlite:///{path}"))
    monkeypatch.chdir("/")
    before = {*threading.enumerate()}
    with pytest.raises(ProviderUnreachable, match="unable to open database file") as caught:
        provider.acquire(REQUEST)
    assert str(caught.value.hint).startswith(hint.format(tmp_path))
    assert hint.format(tmp_path) in str(pickle.loads(pickle.dumps(caught.value)))
    # aiosqlite's thread reports to the closing event loop. The thread ends by itself.
    ours = {thread for thread in threading.enumerate() if "_connection_worker_thread" in thread.name} - before
    wait_until(lambda: not any(thread.is_alive() for thread in ours))
    provider.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ProviderUnreachable, match=f"the file is {tmp_path}/locks.db: let this user write"):
            provider_from_url(f"sqlite:///{tmp_path}/locks.db").acquire(REQUEST)
    finally:
        tmp_path.chmod(0o700)


# Rights


@on([*ONE_EACH, ONE_ASYNC_EACH[0]])
def test_permission_denied_names_the_grant(store: Store) -> None:
    with role(store, "SELECT") as url:
        user = make_url(url).username if store.is_postgres else "this user"
        with pytest.raises(ProviderError, match="denied") as caught:
            store.provider(url=url).acquire(REQUEST)
        grant = f"GRANT SELECT, INSERT, UPDATE ON shedlock TO {user}"
        assert str(caught.value.hint) == f"as the owner of the table or an administrator: {grant}"
    with role(store, "SELECT", "INSERT", "UPDATE") as url, pytest.raises(ProviderError, match="denied") as caught:
        store.provider(url=url).prune("1h")
    assert "GRANT SELECT, INSERT, UPDATE, DELETE ON shedlock TO" in str(caught.value.hint)


@on(ONE_EACH)
def test_the_grant_that_is_named_is_enough(store: Store) -> None:
    with role(store) as url:
        with pytest.raises(ProviderError, match="GRANT SELECT") as caught:
            store.provider(url=url).acquire(REQUEST)
        grant = str(caught.value.hint).partition(": ")[2]
        if not store.is_postgres:
            grant = grant.replace("this user", str(make_url(url).username)).replace(
                " shedlock ", f" {DATABASE}.shedlock "
            )
        store.execute(grant)
        provider = store.provider(url=url)
        lease = provider.acquire(REQUEST)
        assert lease is not None
        assert provider.release(lease)


def test_a_schema_of_postgresql_needs_a_grant_of_its_own() -> None:
    dialect = make_url("postgresql+psycopg://h/db").get_dialect()()
    url = make_url("postgresql+psycopg://Bob%20B@h/db")
    assert grant_sql(dialect, "ops.shedlock", "ops", url) == (
        'GRANT USAGE ON SCHEMA ops TO "Bob B"; GRANT SELECT, INSERT, UPDATE ON ops.shedlock TO "Bob B"'
    )


# Passwords


@pytest.mark.parametrize(
    "option",
    ["ssl_key_password", "sslpassword", "oauth_client_secret", "sslkey", "some_token", "api_key", "application_name"],
)
@pytest.mark.parametrize("from_url", [provider_from_url, async_provider_from_url])
def test_options_are_not_shown(option: str, from_url: object) -> None:
    assert callable(from_url)
    scheme = "postgresql+psycopg" if from_url is provider_from_url else "postgresql+asyncpg"
    provider = from_url(f"{scheme}://app:app@h/app?{option}=hunter2&host=h1&service=locks")
    shown = repr(provider)
    assert "hunter2" not in shown
    assert "://app:***@h/app?host=h1&service=locks>" in shown


@on(["postgresql+psycopg"])
def test_a_password_that_is_also_the_user_leaves_the_user_in_the_message(store: Store) -> None:
    for database in ("app", "nowhere"):
        url = make_url(store.url()).set(username="app", password="app", database=database)
        with pytest.raises(ProviderError, match=r'role "app" does not exist|user "app"') as caught:
            store.provider(url=url.render_as_string(hide_password=False)).acquire(REQUEST)
        assert "***" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "postgresql+psycopg2", "mysql+pymysql"])
def test_a_short_password_leaves_the_other_words(scheme: str) -> None:
    port = free_port()
    with pytest.raises(ProviderUnreachable) as caught:
        provider_from_url(f"{scheme}://u:p@127.0.0.1:{port}/to").acquire(REQUEST)
    assert "***" not in str(caught.value)
