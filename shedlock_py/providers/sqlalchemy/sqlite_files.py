"""SQLite's files: which file a connection has open, and what a forked child must not do with it.

SQLite keeps its file locks per process (https://www.sqlite.org/howtocorrupt.html, 2.6). A child that inherits an open
connection takes no lock on that file that other processes can see. Therefore idle connections are closed before Python
forks, and a child that inherits an open one is refused: another thread used it, or C code forked.
"""

from __future__ import annotations

import os
from contextlib import suppress
from urllib.parse import quote, unquote
from weakref import WeakSet, ref

from sqlalchemy import URL, Pool, PoolProxiedConnection, event
from sqlalchemy.engine import Engine
from sqlalchemy.pool import ConnectionPoolEntry

from shedlock_py._process import OwningProcess

FileIdentity = tuple[int, int]
"""Device and inode. The inode is not used again while a connection has the file open."""

_FILE = "shedlock_py file"
_FILE_BEFORE = "shedlock_py file before"
_PATH = "shedlock_py path"
_OWNER = "shedlock_py process"
_REPLACED_MEANWHILE = (-1, -1)


def path_of(url: URL) -> str | None:
    """The absolute path of the database file that ``url`` names."""
    database = url.database or ""
    if database.startswith("file:"):
        database = unquote(database.removeprefix("file:").partition("?")[0])
        if database.startswith("//"):  # file://localhost/path
            database = "/" + database[2:].partition("/")[2]
    return os.path.abspath(database) if database else None


def with_absolute_path(url: URL) -> URL:
    """``url`` with its path as it is now: the working directory may change later."""
    path = path_of(url)
    if path is None or url.get_backend_name() != "sqlite":
        return url
    return url.set(database=f"file:{quote(path)}" if str(url.database).startswith("file:") else path)


def _identity_of(path: str) -> FileIdentity | None:
    """Of the file that is at ``path`` now; None: there is none."""
    with suppress(OSError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None


_opened: set[ref[ConnectionPoolEntry]] = set()
_watched: WeakSet[Engine] = WeakSet()
_unusable: set[str] = set()
"""Paths of files that the parent of this process had open at the fork."""
_process = OwningProcess()


def watch_files(engine: Engine) -> None:
    """Note, for each connection that ``engine`` opens from now on, which file it has open, and in which process."""
    path = path_of(engine.url)
    if path is None or engine in _watched:
        return
    _watched.add(engine)

    def before(_dialect: object, record: ConnectionPoolEntry, *_: object) -> None:
        record.info[_FILE_BEFORE] = _identity_of(path)

    def after(_connection: object, record: ConnectionPoolEntry) -> None:
        _note_fork()
        was, now = record.info.get(_FILE_BEFORE), _identity_of(path)
        record.info[_FILE] = now if was is None or was == now else _REPLACED_MEANWHILE
        record.info[_PATH], record.info[_OWNER] = path, OwningProcess()
        _opened.add(ref(record, _opened.discard))

    event.listen(engine, "do_connect", before)
    event.listen(engine, "connect", after, insert=True)  # before the application's listeners, which may use it


def is_file_known(connection: PoolProxiedConnection) -> bool:
    """False: the application opened the connection before there was a provider."""
    return _FILE in connection.info


def has_other_file(connection: PoolProxiedConnection, path: str | None) -> bool:
    """Whether the file at ``path`` was deleted or replaced since the connection was opened.

    SQLite would go on in the old file, which no other process sees.
    """
    return path is not None and is_file_known(connection) and _identity_of(path) != connection.info[_FILE]


# Forks


def _open_records() -> list[ConnectionPoolEntry]:
    records = [reference() for reference in list(_opened)]
    return [record for record in records if record is not None and record.dbapi_connection is not None]


def _note_fork() -> None:
    """In a child, remember the files of inherited connections. C code forks without a hook, so each call compares."""
    global _process
    if not _process.is_current():
        for record in _open_records():
            owner = record.info.get(_OWNER)
            if owner is not None and not owner.is_current():
                _unusable.add(record.info[_PATH])
        _process = OwningProcess()


def require_usable(path: str, inherited_pool: Pool | None) -> None:
    """Refuse a file that the parent process had open at the fork.

    :param inherited_pool: may have connections from before there was a provider.
    :raises RuntimeError: the parent had it open.
    """
    _note_fork()
    if any(getattr(inherited_pool, count, int)() for count in ("checkedin", "checkedout")):
        _unusable.add(path)
    if path in _unusable:
        raise RuntimeError(
            "this process was forked while a connection to SQLite was open, which must not be: fork earlier, or "
            "start processes anew (spawn)"
        )


def forget_closed(record: ConnectionPoolEntry) -> None:
    """The connection was closed without the knowledge of the pool; a child does not inherit it."""
    record.info.pop(_OWNER, None)
