"""How callers wait for a connection of a client that we open; asked of a real server, through redis-py's own client."""

from __future__ import annotations

import asyncio
import linecache
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Empty, Full
from types import FrameType
from typing import Any

import pytest
import redis
import redis.asyncio

from shedlock_py import LockRequest, ProviderUnreachable
from shedlock_py.providers.redis import AsyncRedisLockProvider
from shedlock_py.providers.redis.pools import AsyncPool, AsyncRedis, Stack
from tests.redis.stores import URL_KINDS, Store, acquired, ask
from tests.services.availability import private_server
from tests.services.blocked_loops import block_when_redis_is_asked, compute
from tests.services.forks import in_child
from tests.services.polling import wait_until
from tests.services.proxy import TcpProxy
from tests.services.redis import RedisEndpoint, RedisServer

SIZE = 3
LONG = 60.0
NONE_LEFT = "No connection available"


class Interrupted(Exception):
    """What a signal handler raises."""


# Of threads


@pytest.fixture
def client(redis_server: RedisEndpoint) -> Iterator[redis.Redis]:
    with own_client(redis_server, LONG) as client:
        yield client


@contextmanager
def own_client(server: RedisEndpoint, seconds: float) -> Iterator[redis.Redis]:
    pool = redis.BlockingConnectionPool.from_url(
        server.url(), queue_class=Stack, max_connections=SIZE, timeout=seconds, socket_timeout=LONG
    )
    client = redis.Redis(connection_pool=pool)
    yield client
    client.close()
    pool.disconnect()


@contextmanager
def all_busy(client: redis.Redis, server: RedisEndpoint, name: str) -> Iterator[None]:
    """So many threads wait for an answer as there may be connections; at the end they get it."""
    with ThreadPoolExecutor(SIZE) as threads, server.client() as other:
        others = ids(other)
        waiting = [threads.submit(ask, client, "BLPOP", name, 50) for _ in range(SIZE)]
        wait_until(lambda: len(ids(other) - others) == SIZE, what="they wait")
        try:
            yield
        finally:
            other.rpush(name, *range(SIZE))
        assert all(future.result(30) for future in waiting)


def ids(client: redis.Redis) -> set[str]:
    """Of the connections that wait for an element of a list."""
    return {each["id"] for each in client.client_list() if "b" in each["flags"]}


def test_connections_are_opened_when_they_are_needed(client: redis.Redis, name: str) -> None:
    numbers = {ask(client, "CLIENT", "ID") for _ in range(2 * SIZE)}
    assert len(numbers) == 1, "last in, first out"


def test_who_finds_none_waits_for_one(client: redis.Redis, redis_server: RedisEndpoint, name: str) -> None:
    with ThreadPoolExecutor(5) as threads:
        with all_busy(client, redis_server, name):
            with redis_server.client() as other:
                busy = ids(other)
            pings = [threads.submit(ask, client, "CLIENT", "ID") for _ in range(5)]
            assert not any(ping.done() for ping in pings)
        assert {str(ping.result(30)) for ping in pings} <= busy


def test_and_not_for_longer_than_it_may(redis_server: RedisEndpoint, name: str) -> None:
    with own_client(redis_server, 0.05) as client:
        with all_busy(client, redis_server, name), pytest.raises(redis.ConnectionError, match=NONE_LEFT):
            ask(client, "PING")
        assert ask(client, "PING")


def test_a_child_has_all_of_its_own(client: redis.Redis, redis_server: RedisEndpoint, name: str) -> None:
    """Although it was forked while all the parent's were busy, in threads which the child does not have."""

    def child() -> None:
        assert ask(client, "PING")
        with all_busy(client, redis_server, f"{name}-child"):
            pass

    with all_busy(client, redis_server, name):
        in_child(child)
    assert ask(client, "PING")


def test_a_server_that_refuses_costs_no_turn(name: str) -> None:
    pool = redis.BlockingConnectionPool.from_url("redis://127.0.0.1:1", queue_class=Stack, max_connections=1, timeout=0)
    client = redis.Redis(connection_pool=pool)
    for _ in range(3):
        with pytest.raises(redis.ConnectionError, match="connecting to"):
            ask(client, "PING")


def test_who_is_interrupted_while_it_waits_costs_no_turn(
    client: redis.Redis, redis_server: RedisEndpoint, name: str
) -> None:
    waiter = threading.get_ident()
    with alarms(), all_busy(client, redis_server, name):
        for _ in range(3):
            interrupting = threading.Thread(target=interrupt_in_get, args=[waiter])
            interrupting.start()
            with pytest.raises(Interrupted):
                ask(client, "PING")
            interrupting.join()
    with all_busy(client, redis_server, f"{name}-2"):
        pass


def interrupt_in_get(thread: int) -> None:
    def is_there() -> bool:
        frame = sys._current_frames().get(thread)
        return frame is not None and frame.f_code is Stack.get.__code__

    wait_until(is_there, what="it waits")
    signal.pthread_kill(thread, signal.SIGALRM)


@contextmanager
def alarms() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise Interrupted

    former = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, former)


def test_a_turn_that_was_taken_for_nobody_is_made_good(redis_server: RedisEndpoint, name: str) -> None:
    """Interrupted between its turn and its connection: for lack of turns, who waits in vain looks for what is left."""

    def interrupt(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and "self.queue.pop()" in line_of(frame):
            raise Interrupted
        return interrupt

    with own_client(redis_server, 0.05) as client:
        for _ in range(SIZE):
            sys.settrace(lambda frame, event, arg: interrupt if frame.f_code is Stack.get.__code__ else None)
            try:
                with pytest.raises(Interrupted):
                    ask(client, "PING")
            finally:
                sys.settrace(None)
        for _ in range(2):
            with all_busy(client, redis_server, name), pytest.raises(redis.ConnectionError, match=NONE_LEFT):
                ask(client, "PING")


def line_of(frame: FrameType) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno)


def test_the_stack_by_itself() -> None:
    stack = Stack(2)
    with pytest.raises(Empty):
        stack.get(block=False)
    for item in (None, "connection"):
        stack.put_nowait(item)
    with pytest.raises(Full):
        stack.put_nowait("another")
    assert [item for item in stack.queue if item] == ["connection"], "redis-py looks here"
    assert (stack.get(timeout=0), stack.get(timeout=LONG)) == ("connection", None)
    with pytest.raises(Empty):
        stack.get(timeout=0)


def test_a_turn_without_a_connection_is_waited_out() -> None:
    """Somebody took the connection who had waited in vain; the next one must wait, too, not fail at once."""
    stack = Stack(1)
    stack.put_nowait("connection")
    stack.queue.pop()  # without its turn
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(stack.get, True, 30.0)
        wait_until(lambda: stack._turns.empty(), what="the turn is used up")
        assert not waiting.done()
        stack.put_nowait("connection")
        assert waiting.result(30) == "connection"
    stack.put_nowait("connection")
    stack.queue.pop()
    with pytest.raises(Empty):
        stack.get(False)


# Of tasks


class Crowd:
    """Users of a pool for asyncio, of whom so many as it may have connections keep one until :meth:`end`."""

    def __init__(self, server: RedisEndpoint, seconds: float) -> None:
        self.pool = AsyncPool.from_url(
            server.url(), max_connections=SIZE, timeout=seconds, socket_timeout=LONG, socket_connect_timeout=LONG
        )
        self._client: Any = AsyncRedis(connection_pool=self.pool)
        self._begun: asyncio.Queue[None] = asyncio.Queue()
        self._end = asyncio.Event()

    async def ask(self, *words: str) -> Any:
        return await self._client.execute_command(*words)

    async def other_id(self) -> int:
        """The number of another connection, asked when the server has done what it was asked before."""
        connection = self.pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py's
        await connection.send_command("CLIENT", "ID")
        number = int(await connection.read_response())
        await connection.disconnect()
        return number

    async def _keep_one(self) -> None:
        connection = await self.pool.get_connection()
        self._begun.put_nowait(None)
        await self._end.wait()
        await self.pool.release(connection)

    async def begin(self) -> list[asyncio.Task[None]]:
        self._end.clear()
        busy = [asyncio.create_task(self._keep_one()) for _ in range(SIZE)]
        for _ in busy:
            await self._begun.get()
        return busy

    def end(self) -> None:
        self._end.set()


def run(server: RedisEndpoint, seconds: float, work: Callable[[Crowd], Awaitable[None]]) -> None:
    """Run ``work``, and see that all turns are there afterwards."""

    async def main() -> None:
        crowd = Crowd(server, seconds)
        await work(crowd)
        busy = await asyncio.wait_for(crowd.begin(), 30)
        crowd.end()
        await asyncio.gather(*busy)
        await crowd.pool.disconnect()

    asyncio.run(main())


def test_tasks_wait_and_none_is_told_that_there_are_too_many(redis_server: RedisEndpoint, name: str) -> None:
    async def work(crowd: Crowd) -> None:
        numbers = await asyncio.gather(*(crowd.ask("CLIENT", "ID") for _ in range(50)))
        assert 2 <= len(set(numbers)) <= SIZE
        assert len({await crowd.ask("CLIENT", "ID") for _ in range(2 * SIZE)}) == 1, "last in, first out"

    run(redis_server, LONG, work)


def test_tasks_do_not_wait_longer_than_they_may(redis_server: RedisEndpoint, name: str) -> None:
    async def work(crowd: Crowd) -> None:
        busy = await crowd.begin()
        with pytest.raises(redis.ConnectionError, match=NONE_LEFT):
            await crowd.ask("PING")
        crowd.end()
        await asyncio.gather(*busy)

    run(redis_server, 0.05, work)


def test_waiting_tasks_that_are_cancelled_cost_no_turn(redis_server: RedisEndpoint, name: str) -> None:
    async def work(crowd: Crowd) -> None:
        busy = await crowd.begin()
        waiting = [asyncio.create_task(crowd.ask("PING")) for _ in range(3 * SIZE)]
        await asyncio.sleep(0)
        for task in waiting[:SIZE]:
            task.cancel()
        crowd.end()
        await asyncio.wait(busy)
        for task in waiting[SIZE : 2 * SIZE]:
            task.cancel()  # they have been given the turn, and not woken up yet
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(result, asyncio.CancelledError) for result in results[:SIZE]] == [True] * SIZE
        assert results[2 * SIZE :] == [True] * SIZE

    run(redis_server, LONG, work)


def test_tasks_that_fail_or_are_cancelled_give_their_turn_back(redis_server: RedisEndpoint, name: str) -> None:
    async def work(crowd: Crowd) -> None:
        for _ in range(SIZE + 1):
            with pytest.raises(redis.ResponseError):
                await crowd.ask("NONSENSE")
        for moment in range(20):
            asking = [asyncio.create_task(crowd.ask("PING")) for _ in range(2 * SIZE)]
            for _ in range(moment):
                await asyncio.sleep(0)
            for task in asking:
                task.cancel()
            await asyncio.wait(asking)

    run(redis_server, LONG, work)


def test_turns_are_given_in_order(redis_server: RedisEndpoint) -> None:
    async def work(crowd: Crowd) -> None:
        order: list[int] = []

        async def take(number: int) -> None:
            connection = await crowd.pool.get_connection()
            order.append(number)
            await asyncio.sleep(0)
            await crowd.pool.release(connection)

        busy = await crowd.begin()
        waiting = [asyncio.create_task(take(number)) for number in range(10)]
        await asyncio.sleep(0)
        crowd.end()
        await asyncio.gather(*busy, *waiting)
        assert order == list(range(10))

    run(redis_server, LONG, work)


def test_a_reply_that_nobody_has_read_is_not_taken_for_the_next_one(redis_server: RedisEndpoint) -> None:
    async def work(crowd: Crowd) -> None:
        connection = await crowd.pool.get_connection()
        await connection.send_command("ECHO", "for somebody else")
        number = await crowd.other_id()
        await crowd.pool.release(connection)
        assert await crowd.ask("CLIENT", "ID") > number, "a new connection"

    run(redis_server, LONG, work)


class AsHiredisTells(redis.asyncio.Connection):
    """With a redis-py before 8: of a connection that was closed it tells by an error."""

    async def can_read(self, *args: Any) -> bool:
        if await super().can_read(*args):
            raise redis.ConnectionError("Connection closed by server.")
        return False

    can_read_destructive = can_read


def test_a_connection_that_was_closed_is_replaced_however_it_is_told(redis_server: RedisEndpoint) -> None:
    async def work(crowd: Crowd) -> None:
        crowd.pool.connection_class = AsHiredisTells
        number = await crowd.ask("CLIENT", "ID")
        with redis_server.client() as client:
            client.client_kill_filter(_id=number)
        await crowd.other_id()
        assert await crowd.ask("CLIENT", "ID") > number, "a new connection"

    run(redis_server, LONG, work)


def test_disconnecting_ends_those_in_use_as_well(redis_server: RedisEndpoint) -> None:
    async def work(crowd: Crowd) -> None:
        connections = [await crowd.pool.get_connection() for _ in range(2)]
        await crowd.pool.release(connections[0])
        await crowd.pool.disconnect()
        assert [each.is_connected for each in connections] == [False, False]
        await crowd.pool.release(connections[1])

    run(redis_server, LONG, work)


def test_a_connection_that_cannot_be_made_costs_no_turn(redis_server: RedisEndpoint) -> None:
    async def work(crowd: Crowd) -> None:
        crowd.pool.connection_kwargs["no_such_option"] = 1
        for _ in range(2 * SIZE):
            with pytest.raises(TypeError, match="no_such_option"):
                await crowd.ask("PING")
        del crowd.pool.connection_kwargs["no_such_option"]

    run(redis_server, LONG, work)


def test_who_cannot_connect_costs_no_turn(name: str) -> None:
    async def main() -> None:
        provider = AsyncRedisLockProvider("redis://127.0.0.1:1?max_connections=1&timeout=0")
        for _ in range(3):
            with pytest.raises(ProviderUnreachable, match="onnect"):
                await provider.record(name)

    asyncio.run(main())


def test_i5_who_is_not_answered_waits_no_longer_than_a_url_says(redis_server: RedisEndpoint, name: str) -> None:
    async def main(proxy: TcpProxy) -> None:
        provider = AsyncRedisLockProvider(redis_server.url(via=proxy.address))
        await provider.record(name)
        proxy.stall()
        with pytest.raises(ProviderUnreachable, match="Timeout reading"):
            await provider.record(name)
        await provider.close()

    with TcpProxy(redis_server.address) as proxy:
        asyncio.run(main(proxy))


def test_i5_nor_for_what_is_said_before_the_first_command(redis_server: RedisEndpoint, name: str) -> None:
    """Of which there is nothing to undo."""

    async def main(proxy: TcpProxy) -> None:
        limits = "socket_timeout=0.05&socket_connect_timeout=0.05"
        provider = AsyncRedisLockProvider(f"{redis_server.url(via=proxy.address)}?{limits}")
        proxy.stall()
        with pytest.raises(ProviderUnreachable, match="Timeout connecting"):
            await provider.acquire(LockRequest(name, "1m"))
        assert proxy.connections <= 1
        await provider.close()

    with TcpProxy(redis_server.address) as proxy:
        asyncio.run(main(proxy))


# The loop is blocked by the application, and the store is not to blame

SHORT = 0.05  # seconds


def short(url: str) -> str:
    return f"{url}?socket_timeout={SHORT}&socket_connect_timeout={SHORT}"


def test_an_answer_that_has_arrived_counts_however_late_it_is_read(
    redis_server: RedisEndpoint, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those to what is said before the first command, too."""
    block_when_redis_is_asked(monkeypatch, 2 * SHORT)

    async def main() -> None:
        provider = AsyncRedisLockProvider(short(redis_server.url()))
        for _ in range(3):
            lease = await provider.acquire(LockRequest(name, "1m"))
            assert lease is not None
            assert await provider.acquire(LockRequest(name, "1m")) is None
            assert await provider.release(lease)
        await provider.close()

    asyncio.run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_loop_that_is_blocked_while_it_connects(redis_server: RedisEndpoint, host: str) -> None:
    """At whichever of its turns."""

    async def main() -> None:
        url = redis_server.url(via=(host, redis_server.address[1]))
        for moment in range(20):
            provider = AsyncRedisLockProvider(short(url))
            asking = asyncio.create_task(provider.record("unused"))
            for _ in range(moment):
                await asyncio.sleep(0)
            compute(2 * SHORT)
            assert await asking is None, moment
            await provider.close()

    asyncio.run(main())


def test_i5_a_silent_server_has_not_answered_though_the_loop_was_blocked(
    redis_server: RedisEndpoint, name: str
) -> None:
    async def main(proxy: TcpProxy) -> None:
        provider = AsyncRedisLockProvider(short(redis_server.url(via=proxy.address)))
        await provider.record(name)
        proxy.stall()
        asking = asyncio.create_task(provider.record(name))
        await asyncio.sleep(0)
        compute(2 * SHORT)
        with pytest.raises(ProviderUnreachable, match="Timeout reading"):
            await asyncio.wait_for(asking, 30)
        await provider.close()

    with TcpProxy(redis_server.address) as proxy:
        asyncio.run(main(proxy))


def test_a_command_that_is_cancelled_ends_at_once(redis_server: RedisEndpoint) -> None:
    """And it does not say that the server is silent, even if the limit is over, too."""

    async def work(crowd: Crowd) -> None:
        await crowd.ask("PING")
        for seconds in (LONG, SHORT):
            crowd.pool.answer_seconds = seconds
            asking = asyncio.create_task(crowd.ask("BLPOP", "no such list", "50"))
            for _ in range(5):  # fewer than a limit that is over would let pass
                await asyncio.sleep(0)
            if seconds == SHORT:
                compute(2 * SHORT)
            asking.cancel()
            await asyncio.wait({asking}, timeout=30)
            assert asking.cancelled()
        crowd.pool.answer_seconds = LONG

    run(redis_server, LONG, work)


def test_a_long_scan_lets_others_have_their_turn(private_redis: RedisEndpoint, name: str) -> None:
    async def main() -> None:
        provider = AsyncRedisLockProvider(f"{private_redis.url()}?max_connections=1")
        scanning = asyncio.create_task(provider.records())
        assert await provider.acquire(LockRequest(name, "1m"))
        assert await provider.acquire(LockRequest(name, "1m")) is None
        assert not scanning.done()
        await scanning
        await provider.close()

    with private_redis.client() as client:
        client.mset({f"other-{number}": "" for number in range(20_000)})
    asyncio.run(main())


@pytest.fixture
def private_redis() -> Iterator[RedisEndpoint]:
    with private_server("redis", RedisServer) as server:
        yield server


# As a URL says it


@pytest.mark.parametrize("kind", URL_KINDS)
def test_i5_a_url_says_how_many_and_how_long(private: Store, name: str) -> None:
    url = f"{private.server.url()}?max_connections={SIZE}&timeout=0.05&socket_timeout={LONG}"
    provider = private.provider(url=url)
    with private.server.client() as client, ThreadPoolExecutor(SIZE) as threads:
        acquired(provider, name)
        client.client_pause(60_000, all=False)
        waiting = [threads.submit(provider.acquire, LockRequest(name, "1m")) for _ in range(SIZE)]
        wait_until(lambda: asking(client) == SIZE, what="they ask")
        with pytest.raises(ProviderUnreachable, match=NONE_LEFT):
            provider.acquire(LockRequest(name, "1m"))
        assert asking(client) == SIZE
        client.client_unpause()
        assert [future.result(30) for future in waiting] == [None] * SIZE
    assert provider.acquire(LockRequest(name, "1m")) is None


def asking(client: redis.Redis) -> int:
    return sum(each["cmd"] == "evalsha" for each in client.client_list())
