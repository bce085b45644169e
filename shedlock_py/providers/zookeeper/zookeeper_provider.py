"""The sync and the async provider, and the meaning of errors from ZooKeeper and kazoo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

from kazoo import exceptions as errors
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.cas import CasPrograms, parse_options
from shedlock_py.providers.cas.cluster_urls import parse_cluster_url
from shedlock_py.providers.cas.options import CasOptions
from shedlock_py.providers.kit import AsyncProgramProvider, Failure, ProgramProvider
from shedlock_py.providers.kit.certificates import TLS_OPTIONS, Certificates
from shedlock_py.providers.zookeeper.zookeeper_client import AsyncZooKeeperClient, ZooKeeperClient

_FORM = "zookeeper://host1,host2:2181/path or zookeeper://user:password@host1,host2,host3/path"
_IN_DOUBT = (errors.SystemZookeeperError, errors.OperationTimeoutError, errors.RequestTimeoutError)


class ZooKeeperPrograms(CasPrograms):
    """The programs of a compare-and-swap store, with errors of ZooKeeper and kazoo."""

    def classify(self, error: Exception) -> Failure:
        match error:
            case errors.SessionExpiredError() | errors.SessionMovedError():
                return Failure.SESSION_CLOSED
            case errors.ConnectionLoss() | OSError():
                return Failure.CONNECTION_LOST
            case errors.ZookeeperError():
                return Failure.UNREACHABLE if isinstance(error, _IN_DOUBT) else Failure.REFUSED
        return super().classify(error)

    def hint(self, error: Exception) -> str | None:
        match error:
            case errors.NoAuthError() | errors.InvalidACLError():
                return "the URL's user needs all rights for its path and the znodes in it: docs/providers/zookeeper.md"
            case OSError():
                return "name the client addresses of servers that run, with tls=true or ca= if they have TLS"
        return super().hint(error)


class ZooKeeperLockProvider(ProgramProvider):
    """Locks in a ZooKeeper ensemble.

    A lease that is not released is kept up to ``clock_error`` + a round trip longer than ``lock_at_most_for``. The time
    is the leader's, to a few milliseconds. See docs/providers/zookeeper.md.

    :param url: ``zookeeper://host:2181``, or several servers with commas between them. ``user:password@`` may precede
        them. A path after them replaces ``/shedlock``, the znode of the locks. Options: ``tls=true``, ``ca``, ``cert``
        and ``key`` (files), ``timeout``, ``fire_time_tolerance``, ``clock_error``.
    :param acl: kazoo's ACL of the znodes that are created. By default they are for the URL's user only, or for
        everybody if it names nobody.
    :param options: ``clock_error``, the largest difference between the servers' clocks (default: 1 s); ``timeout``, the
        time limit of a whole operation (default: 5 s); ``fire_time_tolerance``, how far a fire time may be ahead of the
        leader's clock (default: 5 minutes).
    :raises ConfigurationError: the URL cannot work.
    """

    def __init__(self, url: str, *, acl: Sequence[ACL] | None = None, **options: Unpack[CasOptions]) -> None:
        programs, place = _parsed(url, acl, options)
        super().__init__(programs, ZooKeeperClient(*place))


class AsyncZooKeeperLockProvider(AsyncProgramProvider):
    """:class:`ZooKeeperLockProvider` for asyncio. Several event loops may use it. Kazoo works in threads."""

    def __init__(self, url: str, *, acl: Sequence[ACL] | None = None, **options: Unpack[CasOptions]) -> None:
        programs, place = _parsed(url, acl, options)
        super().__init__(programs, AsyncZooKeeperClient(*place))


def _parsed(url: str, acl: Sequence[ACL] | None, given: CasOptions) -> tuple[ZooKeeperPrograms, tuple[Any, ...]]:
    url, options = parse_options(url, **given)
    cluster = parse_cluster_url(url, "zookeeper", 2181, TLS_OPTIONS, _FORM)
    path = cluster.path.strip("/") or "shedlock"
    if not path.isprintable() or any(part in ("", ".", "..") for part in path.split("/")):
        raise ConfigurationError(f"store URL: {path!r} is not a path of ZooKeeper")
    kazoo: dict[str, Any] = {"hosts": ",".join(cluster.hosts)}
    kazoo["default_acl"] = list(acl or (CREATOR_ALL_ACL if cluster.user else OPEN_ACL_UNSAFE))
    if cluster.user:
        kazoo["auth_data"] = [("digest", f"{cluster.user}:{cluster.password}")]
    if files := Certificates.from_options(cluster.options):
        files.context()  # raises an error for files that are not certificates
        kazoo |= {"use_ssl": True, "check_hostname": True, "ca": files.ca}
        kazoo |= {"certfile": files.cert, "keyfile": files.key or files.cert}
    programs = ZooKeeperPrograms(**options, passwords=(cluster.password,), names=(cluster.user, *cluster.names))
    return programs, (replace(cluster, path=f"/{path}"), kazoo, programs.clock_error)
