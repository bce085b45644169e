"""SQLite's files: the file that a connection has open, and the rules for a forked child.

SQLite keeps its file locks per process (https://www.sqlite.org/howtocorrupt.html, 2.6). If a child inherits an open
connection, other processes cannot see the child's locks on that file, so the child is refused. Therefore the idle
connections of sync engines are closed before Python forks.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote, unquote
from weakref import WeakSet, ref

from sqlalchemy import URL, PoolProxiedConnection, event
from sqlalchemy.engine import Engine
from sqlalchemy.pool import ConnectionPoolEntry

from shedlock_py.runtime.process import OwningProcess

_FILE = "shedlock_py file"


class OpenFile(NamedTuple):
    """The file that a connection has open."""

    path: str
    identity: tuple[int, int] | None
    """Device and inode. An inode is not reused while a connection has the file open."""
    owner: OwningProcess


def path_of(url: URL) -> str | None:
    """Return the absolute path of the database file in ``url``."""
    database = url.database or ""
    if database.startswith("file:"):
        database = unquote(database.removeprefix("file:").partition("?")[0])
        if database.startswith("//"):  # file://localhost/path
            database = "/" + database[2:].partition("/")[2]
    if os.name == "nt" and re.match("/[A-Za-z]:", database):
        database = database[1:]  # like SQLite: file:///C:/path, and one slash too many in sqlite:////C:/path
    return os.path.abspath(database) if database else None


def with_absolute_path(url: URL) -> URL:
    """Return ``url`` with its absolute path: the working directory may change later."""
    path = path_of(url)
    if path is None or url.get_backend_name() != "sqlite":
        return url
    return url.set(database=f"file:{quote(path)}" if str(url.database).startswith("file:") else path)


def missing_file(url: URL) -> str | None:
    """Return the absolute path of the SQLite file in ``url``, if the file does not exist.

    Return None for a URI (``file:…``), because the URI decides whether to create the file.
    """
    database = url.database or ""
    if url.get_backend_name() != "sqlite" or database in ("", ":memory:") or database.startswith("file:"):
        return None
    try:
        os.stat(database)
    except (FileNotFoundError, NotADirectoryError):
        return os.path.abspath(database)
    except OSError:
        pass  # for example a directory that this user may not search: the provider reports the reason
    return None


def _identity_of(path: str) -> tuple[int, int] | None:
    """Return device and inode of the file that is at ``path`` now. None if it does not exist."""
    with suppress(OSError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None


_watched: WeakSet[Engine] = WeakSet()
_opened: set[ref[ConnectionPoolEntry | PoolProxiedConnection]] = set()
_unusable: set[str] = set()
"""Paths of files that the parent process had open at the fork."""
_process = OwningProcess()


def watch_files(engine: Engine, path: str) -> None:
    """Note the file and the process of each connection that ``engine`` opens from now on."""
    if engine in _watched:
        return
    _watched.add(engine)

    def before(_dialect: object, record: ConnectionPoolEntry, *_: object) -> None:
        record.info[_FILE] = OpenFile(path, _identity_of(path), OwningProcess())

    def after(_connection: object, record: ConnectionPoolEntry) -> None:
        file: OpenFile = record.info[_FILE]
        if file.identity is None:
            record.info[_FILE] = file._replace(identity=_identity_of(path))
        note_open(record)

    event.listen(engine, "do_connect", before)
    event.listen(engine, "connect", after, insert=True)  # before the application's listeners, which may use the file


def note_open(connection: ConnectionPoolEntry | PoolProxiedConnection) -> None:
    """Note an open connection, because a child must not inherit it."""
    _note_fork()
    _opened.add(ref(connection, _opened.discard))


def has_file_of_path(connection: PoolProxiedConnection) -> bool:
    """Return whether the connection's file is still at its path.

    False if the file was deleted or replaced, or if the connection was opened before the provider existed. SQLite would
    continue in the old file, which other processes do not see.
    """
    file: OpenFile | None = connection.info.get(_FILE)
    if file is None:
        return False
    try:
        status = os.stat(file.path)
    except OSError:
        return file.identity is None  # it never existed: a VFS such as "memdb" uses no files
    return (status.st_dev, status.st_ino) == file.identity


def _note_fork() -> None:
    """In a child, note the files of inherited connections. C code forks without a hook, so every call compares."""
    global _process
    if _process.is_current():
        return
    for connection in [reference() for reference in list(_opened)]:
        file: OpenFile | None = None
        if connection is not None and connection.dbapi_connection is not None:
            file = connection.info.get(_FILE)
        if file is not None and not file.owner.is_current():
            _unusable.add(file.path)
    _process = OwningProcess()


def require_usable(path: str, *, is_inherited: bool = False) -> None:
    """Refuse a file that the parent process had open at the fork.

    :param is_inherited: the parent opened the file before the provider existed.
    :raises RuntimeError: the parent had the file open.
    """
    _note_fork()
    if is_inherited:
        _unusable.add(path)
    if path in _unusable:
        raise RuntimeError(
            "this process was forked while a SQLite connection was open, so its file locks do not work here. Fork "
            "before the provider is used, close the provider or dispose of the engine first, or use the start method "
            "spawn"
        )


# SQLite cannot rely on the file locks and clocks of network file systems

_NETWORK = {"nfs", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "beegfs", "glusterfs"}
_NETWORK |= {"sshfs", "s3fs", "davfs", "rclone", "gcsfuse", "mfs", "vboxsf", "prl_fs", "vmhgfs"}
_NETWORK |= {"ceph-fuse", "blobfuse2", "mount-s3", "mountpoint-s3", "juicefs", "gpfs", "wekafs"}
LOCAL = {
    **{kind: f"{kind}, a local disk" for kind in ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs")},
    "tmpfs": "tmpfs: in memory",
    "overlay": "overlay: the layer of one container; another container has a file and locks of its own",
}
_MOUNTS = "/proc/self/mountinfo"
_ESCAPED = re.compile(r"\\([0-7]{3})")


def read_mounts() -> str:
    """Return Linux's list of this process's mounts, or "" on other systems."""
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def file_system_of(path: str, mounts: str) -> tuple[str, bool]:
    """Return the type of the file system of ``path`` ("" if not known), and whether it is a network file system."""
    place, found = os.path.realpath(path), ("", "")
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
        is_above = place == point or place.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(found[0]):  # the last mount at a place hides earlier mounts
            found = point, after.split(" ")[0]
    kind = found[1]
    return kind, kind.removeprefix("fuse.").rstrip("4") in _NETWORK
