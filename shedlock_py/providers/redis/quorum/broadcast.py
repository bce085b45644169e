"""Broadcasts: the commands of a quorum's programs, and the clients that execute them in threads or tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

from shedlock_py.errors import ConfigurationError, ProviderError
from shedlock_py.providers import kit
from shedlock_py.providers.redis.commands import Command
from shedlock_py.providers.redis.redis_clients import AsyncManagedClient, BaseClient, ManagedClient
from shedlock_py.providers.redis.redis_programs import RedisPrograms
from shedlock_py.runtime.process import PerLoop, is_from_signal, monotonic
from shedlock_py.runtime.program import Program, drive, drive_async
from shedlock_py.runtime.threads import WorkerPool

BROADCAST_SECONDS = 1.2
"""The longest wait of a short broadcast for a majority, if the operation has that much time left."""
GRACE_SECONDS = 0.05
"""The wait for the other servers, after the replies have settled the result."""
REQUEST_SHARE = 0.95
"""The share of a broadcast's time that its requests get, so that it still receives their errors."""
READ_SECONDS = 0.03
"""After the event loop was blocked, the time it has to read the replies that have arrived."""
THREADS_PER_SERVER = 16
"""For claims, and as many for other commands."""


@dataclass(frozen=True, slots=True)
class QuorumServer:
    """One server of a quorum."""

    number: int
    """Starts at 0."""
    place: str
    """Host and port, for people."""
    programs: RedisPrograms
    client: Any

    def carry_out(self, program: Program[Command, Any, Any]) -> Program[Command, Any, Any]:
        """Carry out ``program`` with retries. Errors name this server."""
        try:
            return (yield from kit.carry_out(self.programs, self.place, None, program))
        except ProviderError as error:
            if error.operation == self.place:
                raise
            # The error may name a lock record, not the server.
            raise type(error)(f"{self.place}: {error.message}", operation=self.place, hint=error.hint) from error


@dataclass(frozen=True, slots=True)
class OnEach:
    """A command: carry out a program on every server at the same time.

    The reply is a list with the result or the error of each server. As soon as the replies settle the result, the
    client waits only a short time for the other servers.
    """

    program: Callable[[QuorumServer], Program[Command, Any, Any]]
    is_settled: Callable[[Sequence[Any]], bool] | None = None
    """Returns whether these replies are enough. A silent server has an error. If None, all replies are needed."""
    only: frozenset[int] | None = None
    """Numbers of the servers to send to. The reply has :class:`NotAddressed` for all other servers."""
    can_grant: bool = False
    """The command can grant a lock or a vote."""
    is_long: bool = False
    """A server may need several requests, for example to read all its records."""


@dataclass(frozen=True, slots=True)
class Pause(kit.GrantsNothing):
    """A command: wait."""

    seconds: float


QuorumCommand = OnEach | Pause


class NoReply(Exception):
    """A server did not reply in time. The message names the server."""


class NotAddressed(Exception):
    """Nothing was sent to this server."""


class QuorumClient:
    """Broadcasts in threads.

    Each server has its own threads, so that a silent server delays only itself. Claims also have their own
    threads, so that heartbeats do not wait for them.
    """

    def __init__(self, clients: Sequence[BaseClient], key_prefix: str) -> None:
        self.shown = "at " + ", ".join(client.place for client in clients)
        self._servers = _servers(clients, key_prefix)
        self._workers = [WorkerPool(THREADS_PER_SERVER, "shedlock-quorum") for _ in clients]
        self._claim_workers = [WorkerPool(THREADS_PER_SERVER, "shedlock-quorum-claim") for _ in clients]

    def execute(self, command: QuorumCommand, timeout: float | None) -> Any:
        if isinstance(command, Pause):
            return time.sleep(_shortest(command.seconds, timeout))
        broadcast = _Broadcast(command, self._servers, timeout)
        workers = self._claim_workers if command.can_grant else self._workers
        refused: list[tuple[Callable[[], Any], Future[Any]]] = []
        for server in broadcast.addressed:
            request = partial(drive, *broadcast.start(server))
            try:
                future = workers[server.number].submit(request)
            except RuntimeError:  # no thread can be started
                future = Future()
                refused.append((request, future))
            broadcast.futures[server.number] = future
        for refused_request, future in refused:  # without threads, send the requests one after the other
            _run_here(refused_request, future)
        while (seconds := broadcast.seconds_left()) > 0:
            wait(broadcast.pending(), seconds, FIRST_COMPLETED)
        for future in broadcast.pending():
            future.cancel()  # a request that has not started would come too late
        return broadcast.results()

    def close(self) -> None:
        for server in self._servers:
            if isinstance(server.client, ManagedClient):
                server.client.close()


def _run_here(request: Callable[[], Any], future: Future[Any]) -> None:
    """Run the request in the caller's thread. Connecting, or a user's client, may outlast the broadcast."""
    try:
        future.set_result(request())
    except Exception as error:
        if is_from_signal(error):
            raise
        future.set_exception(error)


class AsyncQuorumClient:
    """Broadcasts in tasks."""

    def __init__(self, clients: Sequence[BaseClient], key_prefix: str) -> None:
        self.shown = "at " + ", ".join(client.place for client in clients)
        self._servers = _servers(clients, key_prefix)
        self._tasks: PerLoop[set[asyncio.Task[Any]]] = PerLoop(set)  # the event loop keeps only weak references

    async def execute(self, command: QuorumCommand, timeout: float | None) -> Any:  # noqa: ASYNC109 (of the kit's client)
        if isinstance(command, Pause):
            return await asyncio.sleep(_shortest(command.seconds, timeout))
        broadcast, tasks = _Broadcast(command, self._servers, timeout), self._tasks.get()
        for server in broadcast.addressed:
            task = asyncio.create_task(drive_async(*broadcast.start(server)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            # Read the exception: otherwise the event loop reports that it was never retrieved.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            broadcast.futures[server.number] = task
        while (seconds := broadcast.seconds_left()) > 0:
            await asyncio.wait(broadcast.pending(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if pending := broadcast.pending():
            await asyncio.wait(pending, timeout=READ_SECONDS)
        return broadcast.results()

    async def close(self) -> None:
        late = list(self._tasks.get())
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for server in self._servers:
            if isinstance(server.client, AsyncManagedClient):
                await server.client.close()


class _Broadcast:
    """One running broadcast: the futures of its servers, and its deadline.

    :param timeout: the seconds that the operation has left. None if user-supplied clients have their own limits.
    """

    def __init__(self, command: OnEach, servers: Sequence[QuorumServer], timeout: float | None) -> None:
        self._command = command
        self._servers = servers
        self.addressed = [server for server in servers if command.only is None or server.number in command.only]
        self.futures: dict[int, Any] = {}
        """Futures of threads, or tasks, by the number of the server."""
        if command.is_long:
            self._seconds = kit.DEFAULT_TIMEOUT.total_seconds() if timeout is None else timeout
        else:
            self._seconds = _shortest(BROADCAST_SECONDS, timeout)
        self._until = monotonic() + self._seconds
        self._requests_until = self._until - (1 - REQUEST_SHARE) * self._seconds
        self._is_settled = False

    def start(self, server: QuorumServer) -> tuple[Program[Command, Any, Any], Callable[[Command], Any]]:
        """Return a server's program, and the function that executes its commands."""

        def request(command: Command) -> Any:
            seconds = self._requests_until - monotonic()
            if seconds <= 0:
                raise kit.TimedOut("a free thread, or its earlier requests", sent=False)
            return server.client.execute(command, seconds)

        return server.carry_out(self._command.program(server)), request

    def pending(self) -> list[Any]:
        return [future for future in self.futures.values() if not future.done()]

    def seconds_left(self) -> float:
        """Return the seconds to wait for the next reply. 0 if no reply is missing."""
        if not self.pending():
            return 0
        is_settled = self._command.is_settled
        if not self._is_settled and is_settled is not None and is_settled(self.results()):
            self._is_settled = True
            self._until = min(self._until, monotonic() + GRACE_SECONDS)
        return max(0.0, self._until - monotonic())

    def results(self) -> list[Any]:
        """Return the result or the error of each server."""
        return [self._result(server) for server in self._servers]

    def _result(self, server: QuorumServer) -> Any:
        future = self.futures.get(server.number)
        if future is None:
            return NotAddressed()
        if not future.done() or future.cancelled():
            return NoReply(f"{server.place}: no reply within {self._seconds:g} s")
        error = future.exception()
        if error is None:
            return future.result()
        return error if isinstance(error, Exception) else NoReply(f"{server.place}: {error!r}")


def _shortest(seconds: float, timeout: float | None) -> float:
    return seconds if timeout is None else min(seconds, timeout)


def _servers(clients: Sequence[BaseClient], key_prefix: str) -> list[QuorumServer]:
    places = [client.place.rpartition("/")[0] if "host" in client.options else client.place for client in clients]
    for client, place in zip(clients, places, strict=True):
        if client.is_cluster:
            raise ConfigurationError("a quorum is made of independent masters, not of clusters")
        if places.count(place) > 1 and "host" in client.options:
            raise ConfigurationError(f"a quorum needs different servers, but {place} is there twice")
    return [
        QuorumServer(number, place, RedisPrograms(key_prefix, client), client)
        for number, (client, place) in enumerate(zip(clients, places, strict=True))
    ]
