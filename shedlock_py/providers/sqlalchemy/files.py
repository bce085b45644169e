"""SQLite's files: which one a connection has open, and which one is at its path now."""

from __future__ import annotations

import os
from contextlib import suppress
from urllib.parse import quote, unquote
from weakref import WeakSet

from sqlalchemy import URL, PoolProxiedConnection, event
from sqlalchemy.engine import Engine
from sqlalchemy.pool import ConnectionPoolEntry

FileIdentity = tuple[int, int]
"""Device and inode. The inode is not used again while a connection has the file open."""


def identity_of(path: str) -> FileIdentity | None:
    """Of the file at ``path`` now; None: there is none."""
    with suppress(OSError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None


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


_FILE = "shedlock_py file"
_FILE_BEFORE = "shedlock_py file before"
_REPLACED_MEANWHILE = (-1, -1)
_noting: WeakSet[Engine] = WeakSet()


def note_files(engine: Engine) -> None:
    """Note, for each connection that ``engine`` opens from now on, which file it has open."""
    path = path_of(engine.url)
    if path is None or engine in _noting:
        return
    _noting.add(engine)

    def before(_dialect: object, record: ConnectionPoolEntry, *_: object) -> None:
        record.info[_FILE_BEFORE] = identity_of(path)

    def after(_connection: object, record: ConnectionPoolEntry) -> None:
        was, now = record.info.get(_FILE_BEFORE), identity_of(path)
        record.info[_FILE] = now if was is None or was == now else _REPLACED_MEANWHILE

    event.listen(engine, "do_connect", before)
    event.listen(engine, "connect", after)


def is_file_known(connection: PoolProxiedConnection) -> bool:
    """False: the application opened it before there was a provider."""
    return _FILE in connection.info


def has_other_file(connection: PoolProxiedConnection, path: str | None) -> bool:
    """Whether the file at ``path`` was deleted or replaced since the connection was opened.

    SQLite would go on in the old file, which no other process sees.
    """
    return path is not None and is_file_known(connection) and identity_of(path) != connection.info[_FILE]
