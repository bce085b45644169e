"""SQLite's files: their paths, and what a forked child must not do with them.

SQLite keeps its file locks per process (https://www.sqlite.org/howtocorrupt.html, 2.6). A child that inherits an open
connection takes no lock on that file that other processes can see, and is refused. Therefore a provider opens its file
for one command and closes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import quote, unquote

from sqlalchemy import URL

from shedlock_py.runtime.process import OwningProcess


def path_of(url: URL) -> str | None:
    """The absolute path of the database file that ``url`` names."""
    database = url.database or ""
    if database.startswith("file:"):
        database = unquote(database.removeprefix("file:").partition("?")[0])
        if database.startswith("//"):  # file://localhost/path
            database = "/" + database[2:].partition("/")[2]
    if os.name == "nt" and re.match("/[A-Za-z]:", database):
        database = database[1:]  # as SQLite does: file:///C:/path, and one slash too many in sqlite:////C:/path
    return os.path.abspath(database) if database else None


def with_absolute_path(url: URL) -> URL:
    """``url`` with its path as it is now: the working directory may change later."""
    path = path_of(url)
    if path is None or url.get_backend_name() != "sqlite":
        return url
    return url.set(database=f"file:{quote(path)}" if str(url.database).startswith("file:") else path)


def missing_file(url: URL) -> str | None:
    """The absolute path of the SQLite file that ``url`` names, if the file does not exist.

    None, too, for a URI (``file:…``), which decides whether to create the file.
    """
    database = url.database or ""
    if url.get_backend_name() != "sqlite" or database in ("", ":memory:") or database.startswith("file:"):
        return None
    try:
        os.stat(database)
    except (FileNotFoundError, NotADirectoryError):
        return os.path.abspath(database)
    except OSError:
        pass  # such as a directory that this user may not search: the provider has the reason
    return None


class OpenFile(NamedTuple):
    """A file that a process has open."""

    path: str
    owner: OwningProcess


_open: set[OpenFile] = set()
"""A forked child inherits this set. What another process has opened stays in it for ever."""


def note_inherited(path: str, owner: OwningProcess) -> None:
    """Another process, ``owner``, had the file at ``path`` open at the fork."""
    _open.add(OpenFile(path, owner))


@contextmanager
def opened(path: str) -> Iterator[None]:
    """Note that this process has the file at ``path`` open.

    :raises RuntimeError: the parent process had it open at the fork.
    """
    for other in list(_open):
        if other.path == path and not other.owner.is_current():
            raise RuntimeError(
                "this process was forked while a SQLite connection was open, so its file locks do not work here. Fork "
                "when no job runs, dispose of your engine before, or use the start method spawn"
            )
    file = OpenFile(path, OwningProcess())
    _open.add(file)
    try:
        yield
    finally:
        _open.discard(file)


# Network file systems, whose file locks and clocks SQLite cannot rely on

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
    """What Linux says of the mounts of this process; "" elsewhere."""
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def file_system_of(path: str, mounts: str) -> tuple[str, bool]:
    """The type of the file system that ``path`` is on, and whether it is a network's; "" where that is not known."""
    place, found = os.path.realpath(path), ("", "")
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
        is_above = place == point or place.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(found[0]):  # the last of those at the same place hides the others
            found = point, after.split(" ")[0]
    kind = found[1]
    return kind, kind.removeprefix("fuse.").rstrip("4") in _NETWORK
