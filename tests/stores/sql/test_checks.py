"""Checks of a database's settings and of its user's rights, for ``shedlock doctor``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2.extras import LogicalReplicationConnection
from sqlalchemy import make_url, text

from shedlock_py.provider import Check
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider
from shedlock_py.providers.sqlalchemy.sqlite_files import file_system_of
from shedlock_py.testing.blocking import BlockingLockProvider
from tests.cli.harness import run
from tests.faults.pairs import PostgresPair
from tests.stores.sql.stores import (
    DATABASE,
    KINDS,
    ONE_ASYNC_EACH,
    ONE_EACH,
    SQLITE_DRIVERS,
    Store,
    on,
    on_mysql_and_mariadb,
)
from tests.support.availability import private_server
from tests.support.locks import checks_of, opened, statuses
from tests.support.polling import wait_until
from tests.support.servers import PASSWORD, USER, MySqlServer, PostgresServer

PRIMARY = "connect to the primary, in all replicas of the application to the same one"
MAY_LACK = "after a failover, the new primary may lack the latest locks, so they are free"


def at(url: str) -> dict[str, Check]:
    with opened(url) as provider:
        return checks_of(provider)


@contextmanager
def settings(store: Store, **values: str) -> Iterator[None]:
    """Change global settings of MySQL or MariaDB inside the block."""
    before = {name: store.query(f"SELECT @@GLOBAL.{name}") for name in values}
    try:
        for name, value in values.items():
            store.execute(f"SET GLOBAL {name} = {value}")
        yield
    finally:
        for name, value in before.items():
            store.execute(f"SET GLOBAL {name} = {value}")


@contextmanager
def role(store: Store, *rights: str) -> Iterator[str]:
    """Yield the URL of a user who has only these rights on the lock table."""
    user = f"{store.driver.partition('+')[0]}_few"
    locks = f"{'public' if store.is_postgres else DATABASE}.shedlock"
    kind, password = ("ROLE", "LOGIN PASSWORD 'few'") if store.is_postgres else ("USER", "IDENTIFIED BY 'few'")
    store.execute(f"CREATE {kind} {user} {password}")
    try:
        for right in rights:
            store.execute(f"GRANT {right} ON {locks} TO {user}")
        yield make_url(store.url()).set(username=user, password="few").render_as_string(hide_password=False)
    finally:
        if store.is_postgres:
            store.execute(f"DROP OWNED BY {user}")
        store.execute(f"DROP {kind} {user}")


@on([*ONE_EACH, *ONE_ASYNC_EACH], kinds=KINDS)
def test_a_server_that_forgets_quickly_is_warned_of(store: Store, kind: str) -> None:
    """Test servers are quick and not durable; a user's own server may be durable."""
    setting, durable = ("fsync", "on") if store.is_postgres else ("innodb_flush_log_at_trx_commit", "1")
    value = str(store.query(f"SHOW {setting}" if store.is_postgres else f"SELECT @@{setting}"))
    checks = checks_of(store.provider_of(kind))
    assert statuses(checks) == {
        "replication": "ok",
        "durability": "ok" if value == durable else "warning",
        "permissions": "ok",
        **({} if store.is_postgres else {"lock names": "ok"}),
        **({"prepared statements": "ok"} if store.driver == "postgresql+psycopg" and kind == "url" else {}),
    }
    assert checks["permissions"].message == "SELECT, INSERT, UPDATE, DELETE"
    if value != durable:
        assert checks["durability"].message.startswith(f"{setting} = {value}")
        assert "may lose the latest locks" in checks["durability"].message


@on([*ONE_EACH, ONE_ASYNC_EACH[0]])
def test_the_rights_that_a_user_lacks_are_named(store: Store) -> None:
    needed, table = "GRANT SELECT, INSERT, UPDATE ON ", "public" if store.is_postgres else DATABASE
    for rights, missing in (
        (["SELECT"], "INSERT, UPDATE, DELETE"),
        (["SELECT", "INSERT", "DELETE"], "UPDATE"),
        (["SELECT", "INSERT", "UPDATE"], None),
    ):
        with role(store, *rights) as url:
            found = checks_of(store.provider(url=url))["permissions"]
        if missing is None:
            assert found == Check("permissions", "ok", "SELECT, INSERT, UPDATE; not DELETE, which only prune needs")
        else:
            assert (found.status, found.message) == ("failed", f"not allowed: {missing}")
            assert str(found.hint).startswith(f"{needed}{table}.shedlock TO")


@on(ONE_EACH)
def test_doctor_says_why_a_role_without_rights_is_refused(store: Store) -> None:
    with role(store, "INSERT") as url:
        done = run("doctor", "--json", store=url)
    reach, permissions = json.loads(done.stdout)["checks"]
    assert (done.exit_code, reach["check"], reach["status"]) == (1, "reach the store", "failed")
    assert "denied" in reach["message"]
    assert "is the server running" not in reach["hint"]
    assert permissions["message"].startswith("not allowed: SELECT, ")


def test_a_role_that_may_not_see_replicas_is_no_warning(mysql: Any) -> None:
    store = Store(mysql, "mysql+pymysql")
    with role(store, "SELECT", "INSERT", "UPDATE") as url:
        done = run("doctor", "--json", store=url)
        checks = {found["check"]: found for found in json.loads(done.stdout)["checks"]}
    assert (done.exit_code, checks["replication"]["status"]) == (0, "ok")
    assert checks["replication"]["message"].startswith("not known: ")
    assert checks["replication"]["hint"] == "look as an administrator: SHOW REPLICAS"


@on(on_mysql_and_mariadb("pymysql", "asyncmy"))
def test_settings_that_lose_locks_are_warned_of_on_mysql(store: Store) -> None:
    provider = store.provider()
    with settings(store, innodb_flush_log_at_trx_commit="1", sync_binlog="1"):
        assert checks_of(provider)["durability"].status == "ok"
    with settings(store, innodb_flush_log_at_trx_commit="1", sync_binlog="0"):
        found = checks_of(provider)["durability"]
        has_log = store.query("SELECT @@log_bin") == 1
        assert found.status == ("warning" if has_log else "ok"), "MariaDB has no binary log here"
        assert found.hint == ("set sync_binlog = 1" if has_log else None)
    with settings(store, read_only="ON"):
        (found,) = provider.checks()  # type: ignore[attr-defined]  # not in the protocol
    assert found == Check("replication", "failed", "read_only is on: a replica, which takes no writes", PRIMARY)


@pytest.mark.matrix("a second server for one query")
def test_a_replica_of_mysql_is_warned_of(mysql: Any) -> None:
    store = Store(mysql, "mysql+pymysql")
    host, port = mysql.address
    with private_server("mysql", MySqlServer) as server:
        replica = Store(server, "mysql+pymysql")
        with server.new_database(DATABASE):
            replica.execute(
                "SET GLOBAL server_id = 2",
                f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{host}', SOURCE_PORT = {port}, SOURCE_USER = '{USER}', "
                f"SOURCE_PASSWORD = '{PASSWORD}', GET_SOURCE_PUBLIC_KEY = 1, SOURCE_SSL = 0",
                "START REPLICA IO_THREAD",
            )
            wait_until(lambda: store.query("SHOW REPLICAS") is not None, timeout=30, what="the replica")
            found = at(store.url())["replication"]
            replica.execute("STOP REPLICA")
    assert found.status == "warning"
    assert found.message.startswith(f"1 replica: {MAY_LACK}")


@pytest.fixture(scope="module")
def pair() -> Iterator[PostgresPair]:
    with PostgresPair() as pair:
        execute(pair.primary, "ALTER SYSTEM SET wal_level = logical")
        pair.primary.restart()
        with opened(f"{pair.primary.url('postgresql+psycopg')}?timeout=60s") as provider:
            provider.create_schema()
        yield pair


def execute(server: PostgresServer, *statements: str) -> None:
    with server.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))


def replication_of(server: PostgresServer, options: str = "") -> Check:
    """Return a sync provider's check; async providers do the same."""
    found = at(server.url("postgresql+psycopg") + options)["replication"]
    asynchronous = server.url("postgresql+psycopg_async") + options
    with BlockingLockProvider(lambda: AsyncSqlAlchemyLockProvider(asynchronous)) as provider:
        assert checks_of(provider)["replication"] == found
    return found


@contextmanager
def reading_changes(server: PostgresServer) -> Iterator[None]:
    """Let another system receive all changes, as Debezium does."""
    host, port = server.address
    connection: Any = psycopg2.connect(
        host=host, port=port, user=USER, password=PASSWORD, dbname="shedlock",
        connection_factory=LogicalReplicationConnection,
    )  # fmt: skip
    with closing(connection), connection.cursor() as cursor:
        cursor.execute("CREATE_REPLICATION_SLOT changes TEMPORARY LOGICAL pgoutput")
        cursor.execute("START_REPLICATION SLOT changes LOGICAL 0/0 (proto_version '1', publication_names 'none')")
        with server.connect() as observer:
            assert observer.execute(text("SELECT count(*) FROM pg_stat_replication")).scalar_one() == 1
        yield


@pytest.mark.slow("a primary and a standby")
def test_standbys_of_postgresql_are_warned_of(pair: PostgresPair) -> None:
    primary = pair.primary
    none = Check("replication", "ok", "no standby is connected")
    assert replication_of(primary) == none
    with reading_changes(primary):
        assert replication_of(primary) == none
    standby = pair.follow().server
    found = replication_of(primary)
    assert (found.status, found.message) == ("warning", f"1 standby, none synchronous: {MAY_LACK}")
    assert str(found.hint).startswith("set synchronous_standby_names, with synchronous_commit = on; or ")
    execute(primary, "CREATE ROLE few LOGIN PASSWORD 'few'")
    as_few = make_url(primary.url("postgresql+psycopg")).set(username="few", password="few")
    assert at(as_few.render_as_string(hide_password=False))["replication"] == found, "everybody may see it"

    execute(primary, "ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()")
    wait_until(lambda: replication_of(primary).status == "ok", what="the new setting")
    assert replication_of(primary).message == "a commit waits for a synchronous standby"
    for value in ("local", "off"):
        found = replication_of(primary, f"?options=-csynchronous_commit%3D{value}")
        assert (found.status, found.message) == (
            "warning",
            f"synchronous_commit = {value} does not wait for the standby: {MAY_LACK}",
        )
    durability = at(primary.url("postgresql+psycopg") + "?options=-csynchronous_commit%3Doff")["durability"]
    assert durability.hint == "set fsync = on, synchronous_commit = on"

    found = replication_of(standby)
    assert found == Check("replication", "failed", "this server is a standby, and takes no writes", PRIMARY)
    done = run("doctor", "--json", store=standby.url("postgresql+psycopg"))
    assert done.exit_code == 1
    assert [each["check"] for each in json.loads(done.stdout)["checks"]] == ["reach the store", "replication"]


# SQLite

HERE = "24 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"


@on(SQLITE_DRIVERS)
def test_a_file_of_this_machine_is_fine(store: Store) -> None:
    (found,) = store.provider().checks()  # type: ignore[attr-defined]  # not in the protocol
    assert (found.check, found.status) == ("file system", "ok")


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
@on(SQLITE_DRIVERS)
def test_a_file_of_a_network_is_warned_of(
    store: Store, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider: Any = store.provider()
    programs = getattr(provider, "async_provider", provider).programs

    def mounted(*places: str) -> list[Check]:
        lines = [f"25 24 0:50 / {place} rw shared:2 master:3 - {kind} server:/export rw" for place in places]
        monkeypatch.setattr(programs, "read_mounts", lambda: "\n".join([HERE, *lines, ""]))
        checks: list[Check] = provider.checks()
        return checks

    for place in (str(tmp_path), str(tmp_path.parent)):
        (found,) = mounted(place)
        assert (found.check, found.status) == ("file system", "warning")
        assert found.message.startswith(f"{kind}, a network file system: ")
    (found,) = mounted(f"{tmp_path}-2", str(tmp_path / "locks"), "not a line")
    assert found.status == "ok", "other places"
    assert found.message == "ext4, a local disk"
    monkeypatch.setattr(programs, "read_mounts", lambda: "")
    assert provider.checks() == [], "not Linux"


def test_the_last_mount_of_a_place_counts_also_with_spaces(tmp_path: Path) -> None:
    place = tmp_path / "net work"
    escaped = str(place).replace(" ", r"\040")
    mounts = "\n".join(f"1 2 0:3 / {escaped} rw - {kind} none rw" for kind in ("ext4", "nfs"))
    assert file_system_of(str(place / "locks.db"), mounts) == ("nfs", True), "the last one hides the first"
    assert file_system_of(str(tmp_path / "locks.db"), mounts) == ("", False)
