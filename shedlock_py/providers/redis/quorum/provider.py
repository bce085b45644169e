"""The sync and the async provider for a quorum: one broadcasts in threads, one in tasks."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

import redis
import redis.asyncio

from shedlock_py._clock import monotonic
from shedlock_py._program import run, run_async
from shedlock_py._timers import WorkerPool
from shedlock_py.durations import Duration
from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.kit import (
    DEFAULT_TIMEOUT,
    OPTIONS,
    AsyncProgramProvider,
    ProgramProvider,
    TimedOut,
    parse_timeout,
    parse_tolerance,
)
from shedlock_py.providers.redis.clients import (
    AnyClient,
    AsyncClient,
    AsyncManagedClient,
    Client,
    ManagedClient,
    open_async_client,
    open_client,
    place,
    redactor,
    shown,
)
from shedlock_py.providers.redis.quorum.broadcast import NoAnswer, NotAsked, OnEach, Pause, QuorumCommand, QuorumServer
from shedlock_py.providers.redis.quorum.programs import QuorumPrograms

ROUND_SECONDS = 1.2
"""How long a short broadcast waits for a majority, if so much is left of the operation's time."""
GRACE_SECONDS = 0.05
"""How long a broadcast waits for the other servers, once the replies settle the matter."""
LAST_SECONDS = 0.03
"""So much longer a broadcast waits than its requests, whose errors say what they were waiting for; and again, after
something else has blocked the event loop."""
THREADS_PER_SERVER = 16
"""For claims, and again for all else."""

_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+(%[^\]]+)?\]|[^\s:@\[\]#]+)(:[0-9]{1,5})?")


class RedisQuorumLockProvider(ProgramProvider):
    """Locks on the majority of 3 or 5 independent Redis masters (Redlock): works while a minority of them is dead.

    Call :meth:`start_new_quorum` once, by hand, when the servers are new. A server that was restarted or emptied may
    have forgotten a lease, so it does not vote for ``longest_lease``; the others go on without it.

    :param clients_or_urls: one client or URL for each server, or one URL for all:
        ``redis+quorum://user:password@host1:6379,host2:6379,host3:6379/0?longest_lease=2h``.
    :param key_prefix: what the keys of the lock records begin with.
    :param longest_lease: no lease may be longer; how long a restarted server is kept out. The same wherever this
        quorum is used.
    :param timeout: how long one operation may take, everything included (5 s). For URLs, and in the URL for all:
        ``?timeout=3s``. Clients of the application have limits of their own.
    :param fire_time_tolerance: how far a fire time may lie in the future of the servers' clocks (5 minutes); in the URL
        for all ``?fire_time_tolerance=10m``.
    :raises ConfigurationError: an even number of servers, the same one twice, a cluster, or a bad URL or option.
    """

    programs: QuorumPrograms
    _client: QuorumClient

    def __init__(
        self,
        clients_or_urls: Sequence[redis.Redis | str] | str,
        *,
        key_prefix: str = "shedlock",
        longest_lease: Duration = "1h",
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
    ) -> None:
        options = _options(clients_or_urls, longest_lease, timeout, fire_time_tolerance)
        clients = [open_client(given, options.timeout or 0) for given in options.servers]
        programs = _programs(len(clients), key_prefix, options)
        super().__init__(programs, QuorumClient(clients, _servers(clients, key_prefix)))

    def start_new_quorum(self) -> None:
        """Say that this quorum is new, so nobody can hold a lock on it: its servers vote at once. All must be up.

        Without it they vote after ``longest_lease``. Does nothing to a quorum that is in use. But servers that have
        *all* lost their data look new: so this is for people, once, and not for the start of an application.
        """
        return self.run(self.programs.carry_out("start_new_quorum", None, self.programs.start_new_quorum()))

    def close(self) -> None:
        """Close the connections that the provider has opened; those of the application's clients stay as they are."""
        self._client.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {', '.join(map(place, self._client.clients))}>"


class AsyncRedisQuorumLockProvider(AsyncProgramProvider):
    """:class:`RedisQuorumLockProvider` for asyncio, with clients of ``redis.asyncio`` or URLs."""

    programs: QuorumPrograms
    _client: AsyncQuorumClient

    def __init__(
        self,
        clients_or_urls: Sequence[redis.asyncio.Redis | str] | str,
        *,
        key_prefix: str = "shedlock",
        longest_lease: Duration = "1h",
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
    ) -> None:
        options = _options(clients_or_urls, longest_lease, timeout, fire_time_tolerance)
        clients = [open_async_client(given, options.timeout or 0) for given in options.servers]
        programs = _programs(len(clients), key_prefix, options)
        super().__init__(programs, AsyncQuorumClient(clients, _servers(clients, key_prefix)))

    async def start_new_quorum(self) -> None:
        """See :meth:`RedisQuorumLockProvider.start_new_quorum`."""
        return await self.run(self.programs.carry_out("start_new_quorum", None, self.programs.start_new_quorum()))

    async def close(self) -> None:
        """Close the connections that this event loop opened; those of the application's clients stay as they are."""
        await self._client.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {', '.join(map(place, self._client.clients))}>"


class QuorumClient:
    """Broadcasts in threads."""

    def __init__(self, clients: Sequence[Client | ManagedClient], servers: Sequence[QuorumServer]) -> None:
        self.clients = clients
        self._servers = servers
        # Each server has threads of its own, so that one that hangs does not keep the others waiting. Claims have some
        # of their own, too, so that no heartbeat waits for them.
        self._workers = [WorkerPool(THREADS_PER_SERVER, "shedlock-quorum") for _ in servers]
        self._claim_workers = [WorkerPool(THREADS_PER_SERVER, "shedlock-quorum-claim") for _ in servers]

    def execute(self, command: QuorumCommand, timeout: float | None) -> Any:
        match command:
            case Pause(seconds):
                return time.sleep(seconds if timeout is None else min(seconds, timeout))
            case OnEach():
                return self._broadcast(command, _Limit(command, timeout))

    def _broadcast(self, command: OnEach, limit: _Limit) -> list[Any]:
        futures = [self._submit(command, server, limit) for server in self._servers]
        while (seconds := limit.left(futures)) > 0:
            wait([future for future in futures if not future.done()], seconds, FIRST_COMPLETED)
        for future in futures:
            future.cancel()  # one that has not begun; it would come too late
        return [limit.outcome(future, server) for future, server in zip(futures, self._servers, strict=True)]

    def _submit(self, command: OnEach, server: QuorumServer, limit: _Limit) -> Future[Any]:
        client = self.clients[server.number]

        def carry_out() -> Any:
            return run(command.program(server), lambda request: client.execute(request, limit.for_request()))

        try:
            if command.only is None or server.number in command.only:
                workers = self._claim_workers if command.is_claim else self._workers
                return workers[server.number].submit(carry_out)
            error: Exception = NotAsked()
        except RuntimeError as refused:
            error = NoAnswer(f"{server.place}: {refused}")  # no thread can be started
        future = Future[Any]()
        future.set_exception(error)
        return future

    def close(self) -> None:
        for client in self.clients:
            client.close()


class AsyncQuorumClient:
    """Broadcasts in tasks."""

    def __init__(self, clients: Sequence[AsyncClient | AsyncManagedClient], servers: Sequence[QuorumServer]) -> None:
        self.clients = clients
        self._servers = servers
        self._late: set[asyncio.Task[Any]] = set()  # the event loop itself keeps only weak references

    async def execute(self, command: QuorumCommand, timeout: float | None) -> Any:  # noqa: ASYNC109 (of the kit's client)
        match command:
            case Pause(seconds):
                return await asyncio.sleep(seconds if timeout is None else min(seconds, timeout))
            case OnEach():
                return await self._broadcast(command, _Limit(command, timeout))

    async def _broadcast(self, command: OnEach, limit: _Limit) -> list[Any]:
        tasks = [asyncio.create_task(self._carry_out(command, server, limit)) for server in self._servers]
        self._late.update(tasks)
        for task in tasks:
            task.add_done_callback(self._forget)
        while (seconds := limit.left(tasks)) > 0:
            await asyncio.wait(
                [task for task in tasks if not task.done()], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        waiting = [task for task in tasks if not task.done()]
        if waiting and limit.is_overdue():
            await asyncio.wait(waiting, timeout=LAST_SECONDS)  # replies that arrived while the event loop was blocked
        return [limit.outcome(task, server) for task, server in zip(tasks, self._servers, strict=True)]

    async def _carry_out(self, command: OnEach, server: QuorumServer, limit: _Limit) -> Any:
        if command.only is not None and server.number not in command.only:
            raise NotAsked
        client = self.clients[server.number]
        return await run_async(command.program(server), lambda request: client.execute(request, limit.for_request()))

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # so that the event loop does not report it as never retrieved

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        late = [task for task in self._late if task.get_loop() is loop]
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for client in self.clients:
            await client.close()


class _Limit:
    """How long one broadcast waits.

    :param timeout: seconds that are left of the operation; None: the user's clients have limits of their own.
    """

    def __init__(self, command: OnEach, timeout: float | None) -> None:
        longest = DEFAULT_TIMEOUT.total_seconds() if command.is_long else ROUND_SECONDS
        self._seconds = longest if timeout is None else timeout if command.is_long else min(longest, timeout)
        self._requests_until = monotonic() + self._seconds
        self._until = self._requests_until + LAST_SECONDS
        self._is_settled = command.is_settled

    def for_request(self) -> float:
        """Seconds for the next request to a server."""
        seconds = self._requests_until - monotonic()
        if seconds <= 0:
            raise TimedOut("its turn", sent=False)
        return seconds

    def left(self, pending: Sequence[Future[Any] | asyncio.Task[Any]]) -> float:
        """Seconds to wait for the next reply; zero when there is nothing to wait for."""
        if all(future.done() for future in pending):
            return 0
        if self._is_settled is not None and self._is_settled([_reply(future) for future in pending]):
            self._until = min(self._until, monotonic() + GRACE_SECONDS)
            self._is_settled = None
        return max(0.0, self._until - monotonic())

    def is_overdue(self) -> bool:
        """Whether something else has blocked the event loop, and with it this broadcast."""
        return monotonic() > self._until + LAST_SECONDS / 4

    def outcome(self, future: Future[Any] | asyncio.Task[Any], server: QuorumServer) -> Any:
        """The result or the error of one server."""
        reply = _reply(future)
        return NoAnswer(f"{server.place}: no reply within {self._seconds:g} s") if reply is _NO_REPLY else reply


_NO_REPLY = NoAnswer("no reply yet")


def _reply(future: Future[Any] | asyncio.Task[Any]) -> Any:
    if not future.done() or future.cancelled():
        return _NO_REPLY
    error = future.exception()
    if error is None:
        return future.result()
    return error if isinstance(error, Exception) else NoAnswer(repr(error))


class _Options(NamedTuple):
    """What the arguments of a provider say."""

    servers: list[Any]
    """A client or a URL for each."""
    longest_lease: Duration
    timeout: float | None
    fire_time_tolerance: timedelta


def _options(
    clients_or_urls: Any, longest_lease: Duration, timeout: Duration | None, tolerance: Duration | None
) -> _Options:
    servers, in_url = _split(clients_or_urls)
    is_managed = any(isinstance(server, str) for server in servers)
    return _Options(
        servers,
        in_url.get("longest_lease", longest_lease),
        parse_timeout(timeout, in_url.get("timeout"), is_managed=is_managed),
        parse_tolerance(tolerance, in_url.get("fire_time_tolerance")),
    )


def _programs(size: int, key_prefix: str, options: _Options) -> QuorumPrograms:
    return QuorumPrograms(
        size,
        key_prefix,
        options.longest_lease,
        timeout=options.timeout,
        fire_time_tolerance=options.fire_time_tolerance,
    )


def _servers(clients: Sequence[AnyClient], key_prefix: str) -> list[QuorumServer]:
    """The programs for each server."""
    places = [place(client).rpartition("/")[0] for client in clients]
    servers = []
    for number, (client, where) in enumerate(zip(clients, places, strict=True)):
        if client.is_cluster:
            raise ConfigurationError("a quorum is made of independent masters, not of clusters")
        if places.count(where) > 1 and "host" in client.options:
            raise ConfigurationError(f"a quorum needs different servers, but {where} is there twice")
        server = QuorumServer(key_prefix, redactor(client), has_retries=client.has_retries)
        server.number, server.place = number, where
        servers.append(server)
    return servers


def _split(clients_or_urls: Any) -> tuple[list[Any], dict[str, str]]:
    """The servers one by one, and the options of the provider that a URL for all may have."""
    if not isinstance(clients_or_urls, str):
        if not isinstance(clients_or_urls, Sequence):  # a client alone could be iterated: over what is in its Redis
            kind = type(clients_or_urls).__name__
            raise ConfigurationError(f"a quorum needs a list of clients or URLs, one for each server, not {kind}")
        return list(clients_or_urls), {}
    scheme, separator, rest = clients_or_urls.partition("+quorum://")
    if not separator or scheme not in ("redis", "rediss"):
        example = "redis+quorum://host1,host2,host3"
        raise ConfigurationError(f"the URL of a quorum looks like {example}, not like {shown(clients_or_urls)}")
    servers, _, query = rest.partition("?")
    servers, slash, database = servers.partition("/")
    user, at, hosts = servers.rpartition("@")
    places = [place.strip() for place in hosts.split(",")]
    if "#" in user or not all(map(_PLACE.fullmatch, places)):
        # Not shown: it may be a part of a password.
        raise ConfigurationError(
            "a bad URL of a quorum: write each server as host, host:port or [IPv6]:port, and special characters of a "
            "password percent-encoded"
        )
    options = dict(parse_qsl(query, keep_blank_values=True))
    in_url = {name: options.pop(name) for name in ("longest_lease", *OPTIONS) if name in options}
    ending = f"{slash}{database}" + (f"?{urlencode(options)}" if options else "")
    return [f"{scheme}://{user}{at}{place}{ending}" for place in places], in_url
