"""SQLite's files: which one a connection has open, and which one is at its path now."""

from __future__ import annotations

import os
from contextlib import suppress
from urllib.parse import quote, unquote

from sqlalchemy import URL

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
