"""Commands as requests to ZooKeeper, in one session for each process: kazoo keeps it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from uuid import uuid4
from weakref import finalize

from kazoo import exceptions as errors
from kazoo.client import KazooClient
from kazoo.protocol.states import KeeperState

from shedlock_py.events import logger
from shedlock_py.providers import cas
from shedlock_py.providers.cas.cluster_urls import ClusterUrl
from shedlock_py.providers.cas.listing import readable
from shedlock_py.providers.cas.records_in_json import entry_from_fields, fields_from_json, write_to_json
from shedlock_py.providers.cas.server_time import DRIFT
from shedlock_py.providers.kit import NotSent, PerProcess, ThreadedClient, TimedOut, call_within, seconds_left
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.threads import WorkerPool

SESSION_SECONDS = 4.0
"""The session timeout: the shortest that a server grants by default. Kazoo leaves a silent server after 2/3 of it."""
_SOON = 0.1
"""Seconds. If kazoo is not connected after this time, the session looks for the reason."""
_CLOCK = ".clock"
"""The znode that is written to read the leader's clock. In the name of a lock's znode, a dot is encoded."""
_AGE = 0.01 / (2 * DRIFT)
"""The largest age of a known time, as a share of ``clock_error``. Drift adds up to 1 % of ``clock_error`` by then."""
_NOT_DONE = (errors.NoNodeError, errors.NodeExistsError, errors.BadVersionError)

_log = logging.getLogger(f"{logger.name}.kazoo")
_log.setLevel(logging.ERROR)  # at DEBUG, kazoo logs the password; its warnings repeat our own errors


class Version(NamedTuple):
    """The state of a record that a write replaces.

    ZooKeeper's version counts from 0 again if a znode is deleted and created again, and a write cannot name the czxid.
    So ``made``, a random number, is in the record, and is the name of a child of its znode. The transaction that writes
    checks that this child exists: then the znode is the same.
    """

    made: str
    number: int


class Replies(NamedTuple):
    """The reply to each request: a value, or an exception for ZooKeeper's error."""

    values: list[Any]
    sent_at: float
    received_at: float


class Session:
    """Sends requests, in the order of :meth:`send`.

    ZooKeeper carries out the requests of a session in their order, also after it was moved to another server, and none
    after its end. So an undo never comes before the request that it undoes. That needs one thread that hands all
    requests to kazoo: it does so even after Ctrl-C has interrupted the caller, and before it takes the undo.

    :ivar time: the leader's clock when it was last read.
    :ivar is_time_old: the next command must read the clock again.
    :param options: arguments of ``KazooClient``.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.time: cas.ServerTime | None = None
        self.is_time_old = False
        self._options = options
        self._clients: list[KazooClient] = []
        """The current client. Empty before the first request."""
        self._live = threading.Event()
        self._workers = WorkerPool(1, "shedlock-zookeeper")
        # For a provider that is never closed. At the end of the process, the system closes the connection.
        finalize(self, self._workers.submit, partial(_end, self._clients)).atexit = False

    def send(self, requests: Callable[[KazooClient], list[Any]], until: float) -> Replies:
        """Return the replies to ``requests``, which are sent together.

        :raises cas.OtherReplyError: kazoo cannot read a reply.
        """
        replied = threading.Lock()  # an exception of a signal handler could leave kazoo's own locks locked
        replied.acquire()

        def work() -> tuple[float, list[Any]]:
            client = self._connected(until)
            sent_at = monotonic()
            results = requests(client)
            results[-1].rawlink(lambda _: replied.release())
            return sent_at, results

        sent_at, results = call_within(self._workers, seconds_left(until), "a connection", work, sent=True)
        if not replied.acquire(timeout=seconds_left(until)):
            raise TimedOut("a reply", sent=True)
        values = [result.exception or result.value for result in results]
        if any(isinstance(value, Exception) and not isinstance(value, errors.KazooException) for value in values):
            raise cas.OtherReplyError
        return Replies(values, sent_at, monotonic())

    def _connected(self, until: float) -> KazooClient:
        if not self._clients or self._clients[-1].client_state == KeeperState.CLOSED:
            _end(self._clients)  # kazoo's thread ends after a reply that it cannot read
            again = {"max_tries": -1, "delay": 0.02, "max_delay": 1.0}
            client = KazooClient(timeout=SESSION_SECONDS, connection_retry=again, logger=_log, **self._options)
            self._live = client.start_async()
            client.handler.stop()  # without its threads, kazoo calls the callbacks of results at once
            self._clients.append(client)
        if not self._live.wait(min(_SOON, seconds_left(until))):
            self._probe(self._clients[-1], until)
            self._live.wait(seconds_left(until))
        if not self._live.is_set() or monotonic() >= until:
            raise TimedOut("a connection", sent=False)
        return self._clients[-1]

    def _probe(self, client: KazooClient, until: float) -> None:
        """Connect to a server, because kazoo does not say why it is not connected.

        :raises NotSent: no server can be reached.
        """
        tls = {key: value for key, value in self._options.items() if key not in ("hosts", "auth_data", "default_acl")}
        for number, (name, port) in enumerate(client.hosts):
            seconds = seconds_left(until) / (len(client.hosts) - number)  # one may drop all packets
            try:
                client.handler.create_connection((name, port), name, seconds, **tls).close()
                return
            except OSError as error:
                failed = OSError(f"{name}:{port}: {error}")
        raise NotSent from failed

    def close(self) -> None:
        with suppress(TimedOut):
            call_within(self._workers, 2.0, "the end of the session", partial(_end, self._clients))


def _end(clients: list[KazooClient]) -> None:
    while clients:
        client = clients.pop()
        with suppress(errors.KazooException):  # the session does not end while its server is silent
            client.stop()
            client.close()


class ZooKeeperClient:
    """A client for threads. Each record is a persistent znode."""

    def __init__(self, cluster: ClusterUrl, options: Mapping[str, Any], clock_error: timedelta) -> None:
        self.shown = f"{cluster.path} at zookeeper://{','.join(cluster.hosts)}"
        self._path = cluster.path
        self._clock = f"{cluster.path}/{_CLOCK}"
        self._most_age = clock_error.total_seconds() * _AGE
        self._of_process = PerProcess(partial(Session, options))

    def execute(self, command: cas.CasCommand, timeout: float | None) -> cas.CasReply:
        session, until = self._of_process.get(), monotonic() + (timeout or 0.0)
        found: Any
        session.is_time_old |= isinstance(command, cas.List) or getattr(command, "is_check", False)
        match command:
            case cas.Read(name):
                found = _entry(name, self._read(session, lambda client: client.get_async(self._znode(name)), until))
            case cas.List(prefix):
                found = self._list(session, prefix, until)
            case cas.Write() | cas.Delete():
                found = self._change(session, command, until)
        if session.time is None:  # nothing was read or written in this session, for example after a fork
            self._read(session, lambda client: client.exists_async(self._clock), until)
        assert session.time is not None
        return cas.CasReply(found, session.time.at(monotonic()))

    def close(self) -> None:
        if session := self._of_process.pop():
            session.close()

    def _read(self, session: Session, request: Callable[[KazooClient], Any], until: float) -> Any:
        """Return the reply to ``request``.

        A server may be behind the leader. It is not after a write or a sync of the same session, so one precedes.
        """

        def requests(client: KazooClient) -> list[Any]:
            time = None if session.is_time_old else session.time
            is_known = time is not None and monotonic() - time.sent_at <= self._most_age
            first = client.sync_async(self._clock) if is_known else client.set_async(self._clock, b"")
            return [first, request(client)]

        replies = session.send(requests, until)
        first, value = replies.values
        if isinstance(first, errors.NoNodeError):  # nobody has used this path yet
            create = session.send(lambda client: [client.create_async(self._clock, makepath=True)], until)
            _value(create.values[0], errors.NodeExistsError)
            return self._read(session, request, until)
        if not isinstance(_value(first), str):
            session.time, session.is_time_old = _time(first, replies), False
        return value

    def _list(self, session: Session, prefix: str, until: float) -> list[cas.Entry]:
        reply = self._read(session, lambda client: client.get_children_async(self._path), until)
        children = _value(reply, errors.NoNodeError) or []  # somebody may have deleted the path
        names = [name for child in children if child != _CLOCK and (name := unquote(child)).startswith(prefix)]
        if not names:
            return []
        replies = session.send(lambda client: [client.get_async(self._znode(name)) for name in names], until)
        found = zip(names, replies.values, strict=True)
        return list(readable((self._znode(name), partial(_entry, name, reply)) for name, reply in found))

    def _change(self, session: Session, command: cas.Write | cas.Delete, until: float) -> Version | None:
        """Return the new version, or the deleted version. Return None if the condition does not hold."""
        version: Version = command.if_version or Version(uuid4().hex, 0)
        znode = self._znode(command.name if isinstance(command, cas.Delete) else command.record.name)
        child = f"{znode}/{version.made}"

        def requests(client: KazooClient) -> list[Any]:
            transaction = client.transaction()
            if isinstance(command, cas.Delete):
                transaction.delete(child)
                transaction.delete(znode, version.number)
                return [transaction.commit_async()]
            if command.if_version is None:
                transaction.create(znode)
                transaction.create(child)
            else:
                transaction.check(child, -1)
            transaction.set_data(znode, write_to_json(command, made=version.made).encode(), version.number)
            return [transaction.commit_async()]

        replies = session.send(requests, until)
        for result in _value(replies.values[0]):
            if isinstance(result, errors.NoNodeError):
                session.is_time_old = True  # somebody may have deleted the path: the next read makes it again
            if isinstance(result, _NOT_DONE):
                return None
            if not isinstance(result, errors.RolledBackError):  # undone because of a later error
                stat = _value(result)
        if isinstance(command, cas.Delete):
            return version
        session.time = _time(stat, replies)
        return Version(version.made, stat.version)

    def _znode(self, name: str) -> str:
        return f"{self._path}/{quote(name, safe='').replace('.', '%2E')}"


class AsyncZooKeeperClient(ThreadedClient):
    """A client for asyncio: kazoo works in threads."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(ZooKeeperClient(*arguments))


def _value(reply: Any, expected: type[Exception] | tuple[()] = ()) -> Any:
    """Return the reply's value, or None for an ``expected`` error. Raise another error."""
    if isinstance(reply, Exception) and not isinstance(reply, expected):
        raise reply
    return None if isinstance(reply, Exception) else reply


def _time(stat: Any, replies: Replies) -> cas.ServerTime:
    """Return the time of a write. The leader sets ``mtime``, in milliseconds, after it has received the request."""
    return cas.ServerTime(datetime.fromtimestamp(stat.mtime / 1000, UTC), replies.sent_at, replies.received_at, 0.001)


def _entry(name: str, reply: Any) -> cas.Entry | None:
    if isinstance(reply, errors.NoNodeError):
        return None
    data, stat = _value(reply)
    fields = fields_from_json(data)
    if not isinstance(made := fields.pop("made", None), str):
        raise ValueError(f"not a lock record: {data!r:.200}")
    return entry_from_fields(name, fields, Version(made, stat.version))
