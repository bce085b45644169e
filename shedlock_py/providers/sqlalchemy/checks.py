"""Checks of a database's settings and of this user's rights for ``shedlock doctor``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shedlock_py.errors import ProviderError
from shedlock_py.providers.kit import Check, not_known
from shedlock_py.providers.sqlalchemy.errors import Missing, is_denied, missing
from shedlock_py.providers.sqlalchemy.sqlite_files import LOCAL, file_system_of
from shedlock_py.providers.sqlalchemy.statements import SqlCommand, Statement

if TYPE_CHECKING:
    from shedlock_py.providers.sqlalchemy.tables import SqlProgram, SqlTables

_PRIMARY = "connect to the primary, in all replicas of the application to the same one"
_RUN_TWICE = "make jobs safe to run twice, or check fencing tokens where they write"

# Every user may read these. A logical slot feeds another system, which does not take over.
_POSTGRESQL = (
    "SELECT pg_is_in_recovery(), current_setting('fsync'), current_setting('synchronous_commit'), "
    "current_setting('synchronous_standby_names'), "
    "(SELECT count(*) FROM pg_stat_replication AS sender WHERE state IS DISTINCT FROM 'backup' AND NOT EXISTS "
    "(SELECT 1 FROM pg_replication_slots AS slot WHERE slot.active_pid = sender.pid AND slot_type = 'logical'))"
)
_MYSQL = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'read_only', 'super_read_only', 'innodb_read_only', "
    "'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'wsrep_on', 'group_replication_group_name')"
)
_SQLITE = "PRAGMA database_list"

# EXPLAIN needs the rights of the statement, but does not execute it. Every lock table has these columns. A role may
# have rights on some columns only.
_RIGHTS = {
    "SELECT": "EXPLAIN SELECT name FROM {table}",
    "INSERT": "EXPLAIN INSERT INTO {table} (name, lock_until, locked_at, locked_by) "
    "SELECT name, lock_until, locked_at, locked_by FROM {table} WHERE 1 = 0",
    "UPDATE": "EXPLAIN UPDATE {table} SET lock_until = lock_until, locked_at = locked_at, locked_by = locked_by "
    "WHERE 1 = 0",
    "DELETE": "EXPLAIN DELETE FROM {table} WHERE 1 = 0",
}
_FOR_JOBS = ("SELECT", "INSERT", "UPDATE")


def store_checks(tables: SqlTables, table_name: str, read_mounts: Callable[[], str]) -> SqlProgram[list[Check]]:
    """Check the database of ``tables``."""
    if tables.dialect.name == "sqlite":
        return (yield from _sqlite_checks(read_mounts))
    try:
        found = yield from _postgresql_checks() if tables.dialect.name == "postgresql" else _mysql_checks(tables)
    except ProviderError as error:
        found = [not_known(tables, "replication, durability", error)]
    if any(check.status == "failed" for check in found):
        return found
    found += yield from _permissions(tables, table_name)
    found += yield from tables.name_checks()
    return [*found, *(yield from _preparation(tables))]


def _rows(sql: str) -> SqlProgram[Sequence[Sequence[Any]]]:
    return (yield SqlCommand(Statement(sql, "rows"))).rows


def _permissions(tables: SqlTables, table_name: str) -> SqlProgram[list[Check]]:
    check, missing_rights = "permissions", []
    for right, sql in _RIGHTS.items():
        try:
            yield from _rows(sql.format(table=table_name))
        except ProviderError as error:
            if missing(error.__cause__) is Missing.TABLE:
                return []  # another check reports it
            if not is_denied(error.__cause__):
                return [not_known(tables, check, error)]
            missing_rights.append(right)
    if missing_rights == ["DELETE"]:
        return [Check(check, "ok", f"{', '.join(_FOR_JOBS)}; not DELETE, which only prune needs")]
    if missing_rights:
        hint = f"{tables.grant_sql(table_name)}; DELETE, too, for the user that prunes"
        return [Check(check, "failed", f"not allowed: {', '.join(missing_rights)}", hint)]
    return [Check(check, "ok", ", ".join(_RIGHTS))]


# PostgreSQL


def _postgresql_checks() -> SqlProgram[list[Check]]:
    [[is_standby, fsync, commit, standby_names, standbys]] = yield from _rows(_POSTGRESQL)
    if is_standby:
        return [Check("replication", "failed", "this server is a standby, and takes no writes", _PRIMARY)]
    durability = _durability(
        {
            "fsync": fsync,
            "synchronous_commit": "off" if commit == "off" else "on",
        },  # the other values of synchronous_commit are about standbys
        {"fsync": "on", "synchronous_commit": "on"},
    )
    return [_replication_of_postgresql(commit, standby_names, standbys), durability]


def _preparation(tables: SqlTables) -> SqlProgram[list[Check]]:
    """Advise ``prepare=yes`` on a direct connection to PostgreSQL.

    PostgreSQL sends its process id at connect. PgBouncer sends a made-up number instead.
    """
    if not tables.prepares_nothing:
        return []
    reply = yield SqlCommand(Statement("SELECT pg_backend_pid()", "backend"))
    [[process_id]] = reply.rows
    if process_id != reply.id:
        return []
    message = "not used, although the connection is direct: each statement is parsed and planned again"
    hint = "add prepare=yes to the URL; not to a URL that leads to a pooler such as PgBouncer"
    return [Check("prepared statements", "ok", message, hint)]


def _replication_of_postgresql(commit: str, standby_names: str, standbys: int) -> Check:
    check, cure = "replication", f"set synchronous_standby_names, with synchronous_commit = on; or {_RUN_TWICE}"
    forgets = "after a failover, the new primary may lack the latest locks, so they are free"
    if standby_names and commit not in ("off", "local"):
        return Check(check, "ok", "a commit waits for a synchronous standby")
    if standby_names:
        return Check(check, "warning", f"synchronous_commit = {commit} does not wait for the standby: {forgets}", cure)
    if standbys:
        what = f"{standbys} standby{'' if standbys == 1 else 's'}, none synchronous"
        return Check(check, "warning", f"{what}: {forgets}", cure)
    return Check(check, "ok", "no standby is connected")


# MySQL and MariaDB


def _mysql_checks(tables: SqlTables) -> SqlProgram[list[Check]]:
    values = {str(name).lower(): str(value) for name, value in (yield from _rows(_MYSQL))}
    for name in ("read_only", "super_read_only", "innodb_read_only"):
        if values.get(name, "OFF") not in ("OFF", "0"):
            return [Check("replication", "failed", f"{name} is on: a replica, which takes no writes", _PRIMARY)]
    wanted = {"innodb_flush_log_at_trx_commit": "1"}
    if values.get("log_bin") == "ON":
        wanted["sync_binlog"] = "1"  # after a crash, a commit that the binary log lacks is rolled back
    return [(yield from _replication_of_mysql(tables, values)), _durability(values, wanted)]


def _replication_of_mysql(tables: SqlTables, values: Mapping[str, str]) -> SqlProgram[Check]:
    check = "replication"
    is_galera, is_group = values.get("wsrep_on") == "ON", bool(values.get("group_replication_group_name"))
    if is_galera or is_group:
        what = "Galera" if is_galera else "Group Replication"
        message = f"{what}: two nodes may decide about one lock at the same time; it has not been tried"
        return Check(check, "warning", message, "send the locks of all replicas of the application to one node")
    if values.get("log_bin") == "OFF":
        return Check(check, "ok", "no binary log, so no replica that could take over")
    list_replicas = "SHOW SLAVE HOSTS" if "MariaDB" in values.get("version", "") else "SHOW REPLICAS"
    try:
        replicas = len((yield from _rows(list_replicas)))
    except ProviderError as error:
        return not_known(tables, check, error, f"look as an administrator: {list_replicas}")
    if not replicas:
        return Check(check, "ok", "no replica is connected")
    message = (
        f"{replicas} replica{'' if replicas == 1 else 's'}: after a failover, the new primary may lack the latest "
        f"locks, so they are free; semi-synchronous replication does not prevent this"
    )
    return Check(check, "warning", message, _RUN_TWICE)


def _durability(found: Mapping[str, str], wanted: Mapping[str, str]) -> Check:
    wrong = [name for name, value in wanted.items() if found.get(name, value) != value]
    if not wrong:
        return Check("durability", "ok", "a commit is on disk before its reply")
    shown = ", ".join(f"{name} = {found[name]}" for name in wrong)
    message = f"{shown}: a crash of the machine may lose the latest locks, so they are free"
    return Check("durability", "warning", message, f"set {', '.join(f'{name} = {wanted[name]}' for name in wrong)}")


# SQLite


def _sqlite_checks(read_mounts: Callable[[], str]) -> SqlProgram[list[Check]]:
    path = next((path for _, name, path in (yield from _rows(_SQLITE)) if name == "main"), "")
    file_system, is_network = file_system_of(path, read_mounts())
    if not path or not file_system:
        return []
    if not is_network:
        return [Check("file system", "ok", LOCAL.get(file_system, f"not known: whether {file_system} is a local disk"))]
    message = f"{file_system}, a network file system: neither its file locks nor its clock can be relied on"
    return [Check("file system", "warning", message, "use a local disk for one machine, a database server for several")]
