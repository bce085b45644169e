"""Clients that carry out a quorum's broadcasts: in threads, or in tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from shedlock_py._clock import monotonic
from shedlock_py._process import PerLoop
from shedlock_py._program import run, run_async
from shedlock_py._timers import WorkerPool
from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.kit import DEFAULT_TIMEOUT, TimedOut
from shedlock_py.providers.redis.clients import AnyClient, AsyncClient, AsyncManagedClient, Client, ManagedClient
from shedlock_py.providers.redis.quorum.broadcast import (
    NoReply,
    NotAddressed,
    OnEach,
    Pause,
    QuorumCommand,
    QuorumServer,
)

BROADCAST_SECONDS = 1.2
"""How long a short broadcast waits for a majority, if so much is left of the operation's time."""
GRACE_SECONDS = 0.05
"""How long a broadcast waits for the other servers, after the replies have settled the matter."""
REQUEST_SHARE = 0.95
"""The part of its time that a broadcast gives to its requests: so it receives their errors, which name the reason."""
READ_SECONDS = 0.03
"""Time that an event loop, after it was blocked, has to read the replies that have arrived."""
THREADS_PER_SERVER = 16
"""For claims, and again for all else."""


class _QuorumClient:
    def __init__(self, clients: Sequence[AnyClient], key_prefix: str) -> None:
        self.place = ", ".join(client.place for client in clients)
        """For people to read."""
        self._servers = _servers(clients, key_prefix)


class QuorumClient(_QuorumClient):
    """Broadcasts in threads.

    Each server has its own threads, so that a silent server does not delay the others. Claims have their own threads,
    too, so that no heartbeat waits for them.
    """

    def __init__(self, clients: Sequence[Client | ManagedClient], key_prefix: str) -> None:
        super().__init__(clients, key_prefix)
        self._clients = clients
        self._workers = [WorkerPool(THREADS_PER_SERVER, "shedlock-quorum") for _ in clients]
        self._claim_workers = [WorkerPool(THREADS_PER_SERVER, "shedlock-quorum-claim") for _ in clients]

    def execute(self, command: QuorumCommand, timeout: float | None) -> Any:
        if isinstance(command, Pause):
            return time.sleep(_shortest(command.seconds, timeout))
        broadcast = _Broadcast(command, self._servers, timeout)
        for server in broadcast.addressed:
            broadcast.futures[server.number] = self._submit(broadcast, server)
        while (seconds := broadcast.seconds_left()) > 0:
            wait(broadcast.pending(), seconds, FIRST_COMPLETED)
        for future in broadcast.pending():
            future.cancel()  # a request that has not begun would come too late
        return broadcast.results()

    def _submit(self, broadcast: _Broadcast, server: QuorumServer) -> Future[Any]:
        client = self._clients[server.number]

        def carry_out() -> Any:
            program = server.named(broadcast.command.program(server))
            return run(program, lambda request: client.execute(request, broadcast.seconds_for_request()))

        workers = self._claim_workers if broadcast.command.is_claim else self._workers
        try:
            return workers[server.number].submit(carry_out)
        except RuntimeError as error:  # no thread can be started
            future = Future[Any]()
            future.set_exception(NoReply(f"{server.place}: {error}"))
            return future

    def close(self) -> None:
        for client in self._clients:
            client.close()


class AsyncQuorumClient(_QuorumClient):
    """Broadcasts in tasks."""

    def __init__(self, clients: Sequence[AsyncClient | AsyncManagedClient], key_prefix: str) -> None:
        super().__init__(clients, key_prefix)
        self._clients = clients
        self._tasks: PerLoop[set[asyncio.Task[Any]]] = PerLoop(set)  # the event loop itself keeps only weak references

    async def execute(self, command: QuorumCommand, timeout: float | None) -> Any:  # noqa: ASYNC109 (of the kit's client)
        if isinstance(command, Pause):
            return await asyncio.sleep(_shortest(command.seconds, timeout))
        broadcast = _Broadcast(command, self._servers, timeout)
        for server in broadcast.addressed:
            broadcast.futures[server.number] = self._create_task(broadcast, server)
        while (seconds := broadcast.seconds_left()) > 0:
            await asyncio.wait(broadcast.pending(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if pending := broadcast.pending():
            await asyncio.wait(pending, timeout=READ_SECONDS)
        return broadcast.results()

    def _create_task(self, broadcast: _Broadcast, server: QuorumServer) -> asyncio.Task[Any]:
        client, tasks = self._clients[server.number], self._tasks.get()

        async def carry_out() -> Any:
            program = server.named(broadcast.command.program(server))
            return await run_async(program, lambda request: client.execute(request, broadcast.seconds_for_request()))

        def forget(task: asyncio.Task[Any]) -> None:
            tasks.discard(task)
            if not task.cancelled():
                task.exception()  # so that the event loop does not report it as never retrieved

        task = asyncio.create_task(carry_out())
        tasks.add(task)
        task.add_done_callback(forget)
        return task

    async def close(self) -> None:
        late = list(self._tasks.get())
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for client in self._clients:
            await client.close()


class _Broadcast:
    """One broadcast while it is carried out: the futures of its servers, and how long it waits for them.

    :param timeout: seconds that are left of the operation; None: user-supplied clients have limits of their own.
    """

    def __init__(self, command: OnEach, servers: Sequence[QuorumServer], timeout: float | None) -> None:
        self.command = command
        self.addressed = [server for server in servers if command.only is None or server.number in command.only]
        self.futures: dict[int, Any] = {}
        """Futures of threads, or tasks; by the number of the server."""
        self._servers = servers
        longest = DEFAULT_TIMEOUT.total_seconds() if command.is_long else BROADCAST_SECONDS
        self._seconds = timeout if command.is_long and timeout is not None else _shortest(longest, timeout)
        self._until = monotonic() + self._seconds
        self._requests_until = self._until - (1 - REQUEST_SHARE) * self._seconds
        self._is_settled = False

    def seconds_for_request(self) -> float:
        """Seconds for the next request to a server."""
        seconds = self._requests_until - monotonic()
        if seconds <= 0:
            raise TimedOut("a thread", sent=False)
        return seconds

    def pending(self) -> list[Any]:
        return [future for future in self.futures.values() if not future.done()]

    def seconds_left(self) -> float:
        """Seconds to wait for the next reply; zero when there is nothing to wait for."""
        if not self.pending():
            return 0
        is_settled = self.command.is_settled
        if not self._is_settled and is_settled is not None and is_settled(self.results()):
            self._is_settled = True
            self._until = min(self._until, monotonic() + GRACE_SECONDS)
        return max(0.0, self._until - monotonic())

    def results(self) -> list[Any]:
        """The result or the error of each server."""
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


def _servers(clients: Sequence[AnyClient], key_prefix: str) -> list[QuorumServer]:
    """The programs for each server."""
    places = [client.place.rpartition("/")[0] for client in clients]
    for client, place in zip(clients, places, strict=True):
        if client.is_cluster:
            raise ConfigurationError("a quorum is made of independent masters, not of clusters")
        if places.count(place) > 1 and "host" in client.options:
            raise ConfigurationError(f"a quorum needs different servers, but {place} is there twice")
    return [
        QuorumServer(number, place, key_prefix, client.redact, has_retries=client.has_retries)
        for number, (client, place) in enumerate(zip(clients, places, strict=True))
    ]
