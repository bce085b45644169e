"""The two shells around the quorum's algorithm: one asks the servers in threads, one in tasks."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode

import redis
import redis.asyncio

from shedlock_py._aio import TURNS, shielded
from shedlock_py._clock import monotonic
from shedlock_py._program import run, run_async
from shedlock_py.durations import Duration
from shedlock_py.errors import ConfigurationError
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.providers.redis.clients import AnyClient, open_async_client, open_client, place, redactor, shown
from shedlock_py.providers.redis.quorum import QuorumAlgorithm
from shedlock_py.providers.redis.rounds import NoAnswer, NotAsked, OnEach, Pause, QuorumAsk, QuorumServer
from shedlock_py.rules import Lease, LockRecord, LockRequest

SERVER_SECONDS = 0.5
"""How long a client that we open waits for a connection and for an answer."""
ROUND_SECONDS = 1.2
"""How long one round waits for a majority; a client of the application may wait longer by itself."""
GRACE_SECONDS = 0.05
"""How long it waits for the others, once the answers settle the question."""
THREADS_PER_SERVER = 16

_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+(%[^\]]+)?\]|[^\s:@\[\]#]+)(:[0-9]{1,5})?")


class RedisQuorumLockProvider(LockProvider):
    """Locks on the majority of 3 or 5 independent Redis masters (Redlock): works while a minority of them is dead.

    Call :meth:`start_new_quorum` once, by hand, when the servers are new. A server that was restarted or emptied may
    have forgotten a lease, so it does not vote for ``longest_lease``; the others go on without it.

    :param clients_or_urls: one client or URL for each server, or one URL for all:
        ``redis+quorum://user:password@host1:6379,host2:6379,host3:6379/0?longest_lease=2h``.
    :param key_prefix: what the keys of the lock records begin with.
    :param longest_lease: no lease may be longer; how long a restarted server is kept out. The same wherever this
        quorum is used.
    :raises ConfigurationError: an even number of servers, the same one twice, a cluster, or a bad URL.
    """

    def __init__(
        self,
        clients_or_urls: Sequence[redis.Redis | str] | str,
        *,
        key_prefix: str = "shedlock",
        longest_lease: Duration = "1h",
    ) -> None:
        urls, longest_lease = _split(clients_or_urls, longest_lease)
        self._clients = [open_client(client, SERVER_SECONDS) for client in urls]
        self._servers = _servers(self._clients, key_prefix)
        self._algorithm = QuorumAlgorithm(len(self._clients), key_prefix, longest_lease, monotonic)
        self._threads: dict[int, list[ThreadPoolExecutor]] = {}  # by process: they do not survive a fork

    def acquire(self, request: LockRequest) -> Lease | None:
        return run(self._algorithm.acquire(request), self._execute)

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return run(self._algorithm.extend(lease, lock_at_most_for), self._execute)

    def release(self, lease: Lease) -> bool:
        return run(self._algorithm.release(lease), self._execute)

    def record(self, name: str) -> LockRecord | None:
        return run(self._algorithm.record(name), self._execute)

    def records(self, prefix: str = "") -> list[LockRecord]:
        return run(self._algorithm.records(prefix), self._execute)

    def force_release(self, name: str) -> bool:
        return run(self._algorithm.force_release(name), self._execute)

    def take_over(self, request: LockRequest) -> Lease:
        return run(self._algorithm.take_over(request), self._execute)

    def prune(self, unused_for: Duration) -> int:
        return run(self._algorithm.prune(unused_for), self._execute)

    def create_schema(self) -> None:
        """Nothing to create; a new quorum is started by :meth:`start_new_quorum`, on purpose."""

    def start_new_quorum(self) -> None:
        """Say that this quorum is new, so nobody can hold a lock on it: its servers vote at once. All must be up.

        Without it they vote after ``longest_lease``. Does nothing to a quorum that is in use. But servers that have
        *all* lost their data look new: so this is for people, once, and not for the start of an application.
        """
        return run(self._algorithm.start_new_quorum(), self._execute)

    def close(self) -> None:
        """Close the connections that we opened ourselves; those of borrowed clients stay as they are."""
        for threads in self._threads.pop(os.getpid(), []):
            # Our own clients have time limits; those of others may wait for a server that hangs as long as they like.
            threads.shutdown(wait=all(client.is_own for client in self._clients), cancel_futures=True)
        for client in self._clients:
            client.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {', '.join(map(place, self._clients))}>"

    def _execute(self, ask: QuorumAsk) -> Any:
        match ask:
            case Pause(seconds):
                return time.sleep(seconds)
            case OnEach():
                return self._on_each(ask)

    def _on_each(self, ask: OnEach) -> list[Any]:
        futures: list[Future[Any] | None] = []
        for number, (threads, server) in enumerate(zip(self._threads_here(), self._servers, strict=True)):
            is_asked = ask.only is None or number in ask.only
            execute = partial(self._clients[number].execute, timeout=SERVER_SECONDS)
            futures.append(threads.submit(run, ask.program(server), execute) if is_asked else None)
        asked = [future for future in futures if future is not None]
        patience = _Patience(ask)
        while (seconds := patience.left(futures)) > 0:
            wait([future for future in asked if not future.done()], seconds, FIRST_COMPLETED)
        for future in asked:
            future.cancel()  # one that has not begun; it would come too late
        return [_outcome(future) for future in futures]

    def _threads_here(self) -> list[ThreadPoolExecutor]:
        # Each server has threads of its own, so that one that hangs does not keep the others waiting.
        mine = self._threads.get(os.getpid())
        if mine is None:
            new = [ThreadPoolExecutor(THREADS_PER_SERVER, "shedlock-quorum") for _ in self._servers]
            mine = self._threads.setdefault(os.getpid(), new)
        return mine


class AsyncRedisQuorumLockProvider(AsyncLockProvider):
    """:class:`RedisQuorumLockProvider` for asyncio, with clients of ``redis.asyncio`` or URLs."""

    def __init__(
        self,
        clients_or_urls: Sequence[redis.asyncio.Redis | str] | str,
        *,
        key_prefix: str = "shedlock",
        longest_lease: Duration = "1h",
    ) -> None:
        urls, longest_lease = _split(clients_or_urls, longest_lease)
        self._clients = [open_async_client(client, SERVER_SECONDS) for client in urls]
        self._servers = _servers(self._clients, key_prefix)
        self._algorithm = QuorumAlgorithm(len(self._clients), key_prefix, longest_lease, monotonic)
        self._late: set[asyncio.Task[Any]] = set()  # the event loop itself keeps only weak references

    async def acquire(self, request: LockRequest) -> Lease | None:
        return await shielded(run_async(self._algorithm.acquire(request), self._execute), when_abandoned=self.release)

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        # To its end even if cancelled: a release that overtook it would be undone by it.
        return await shielded(run_async(self._algorithm.extend(lease, lock_at_most_for), self._execute))

    async def release(self, lease: Lease) -> bool:
        return await shielded(run_async(self._algorithm.release(lease), self._execute))

    async def record(self, name: str) -> LockRecord | None:
        return await shielded(run_async(self._algorithm.record(name), self._execute))

    async def records(self, prefix: str = "") -> list[LockRecord]:
        return await shielded(run_async(self._algorithm.records(prefix), self._execute))

    async def force_release(self, name: str) -> bool:
        return await shielded(run_async(self._algorithm.force_release(name), self._execute))

    async def take_over(self, request: LockRequest) -> Lease:
        return await shielded(run_async(self._algorithm.take_over(request), self._execute), when_abandoned=self.release)

    async def prune(self, unused_for: Duration) -> int:
        return await shielded(run_async(self._algorithm.prune(unused_for), self._execute))

    async def create_schema(self) -> None:
        """Nothing to create; a new quorum is started by :meth:`start_new_quorum`, on purpose."""

    async def start_new_quorum(self) -> None:
        """Say that this quorum is new, so nobody can hold a lock on it: its servers vote at once. All must be up.

        Without it they vote after ``longest_lease``. Does nothing to a quorum that is in use. But servers that have
        *all* lost their data look new: so this is for people, once, and not for the start of an application.
        """
        return await shielded(run_async(self._algorithm.start_new_quorum(), self._execute))

    async def close(self) -> None:
        """Close the connections that this event loop opened; those of borrowed clients stay as they are."""
        loop = asyncio.get_running_loop()
        late = [task for task in self._late if task.get_loop() is loop]
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for client in self._clients:
            await client.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {', '.join(map(place, self._clients))}>"

    async def _execute(self, ask: QuorumAsk) -> Any:
        match ask:
            case Pause(seconds):
                return await asyncio.sleep(seconds)
            case OnEach():
                return await self._on_each(ask)

    async def _on_each(self, ask: OnEach) -> list[Any]:
        tasks: list[asyncio.Task[Any] | None] = []
        for number, (client, server) in enumerate(zip(self._clients, self._servers, strict=True)):
            is_asked = ask.only is None or number in ask.only
            execute = partial(client.execute, timeout=SERVER_SECONDS)
            tasks.append(asyncio.create_task(run_async(ask.program(server), execute)) if is_asked else None)
        asked = [task for task in tasks if task is not None]
        self._late.update(asked)
        for task in asked:
            task.add_done_callback(self._forget)
        patience = _Patience(ask)
        while (seconds := patience.left(tasks)) > 0:
            waiting = [task for task in asked if not task.done()]
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for _ in range(TURNS):  # what has arrived while the loop was blocked counts, too
            if all(task.done() for task in asked):
                break
            await asyncio.sleep(0)
        return [_outcome(task) for task in tasks]

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # it was looked at, whoever came too late


class _Patience:
    """How much longer to wait for the answers."""

    def __init__(self, ask: OnEach) -> None:
        self._is_settled = ask.is_settled
        self._until = monotonic() + ROUND_SECONDS

    def left(self, asked: Sequence[Future[Any] | asyncio.Task[Any] | None]) -> float:
        """Seconds; zero when there is nothing to wait for."""
        if all(future is None or future.done() for future in asked):
            return 0
        if self._is_settled is not None and self._is_settled([_outcome(future) for future in asked]):
            self._until = min(self._until, monotonic() + GRACE_SECONDS)
            self._is_settled = None
        return max(0.0, self._until - monotonic())


def _outcome(future: Future[Any] | asyncio.Task[Any] | None) -> Any:
    if future is None:
        return NotAsked()
    if not future.done() or future.cancelled():
        return NoAnswer()
    return future.exception() or future.result()


def _servers(clients: Sequence[AnyClient], key_prefix: str) -> list[QuorumServer]:
    """The programs for each server."""
    places = [place(client).rpartition("/")[0] for client in clients]
    servers = []
    for client, where in zip(clients, places, strict=True):
        if client.is_cluster:
            raise ConfigurationError("a quorum is made of independent masters, not of clusters")
        if places.count(where) > 1 and "host" in client.options:
            raise ConfigurationError(f"a quorum needs different servers, but {where} is there twice")
        server = QuorumServer(key_prefix, redactor(client), has_retries=client.has_retries, timeout=SERVER_SECONDS)
        server.place = where
        servers.append(server)
    return servers


def _split(clients_or_urls: Any, longest_lease: Duration) -> tuple[list[Any], Duration]:
    """The servers one by one, and the longest lease, which a URL for all may name."""
    if not isinstance(clients_or_urls, str):
        if not isinstance(clients_or_urls, Sequence):  # a client alone could be iterated: over what is in its Redis
            kind = type(clients_or_urls).__name__
            raise ConfigurationError(f"a quorum needs a list of clients or URLs, one for each server, not {kind}")
        return list(clients_or_urls), longest_lease
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
    longest_lease = options.pop("longest_lease", longest_lease)
    ending = f"{slash}{database}" + (f"?{urlencode(options)}" if options else "")
    return [f"{scheme}://{user}{at}{place}{ending}" for place in places], longest_lease
