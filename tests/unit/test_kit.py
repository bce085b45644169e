"""The provider kit: its time limit for asyncio, and what a store may decide by itself."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shedlock_py import LockRecord, LockRequest
from shedlock_py._program import Program
from shedlock_py.providers.kit import ProgramProvider, TimedOut, within
from shedlock_py.providers.memory import InMemoryLockProvider, MemoryPrograms
from tests.services.blocked_loops import compute

LIMIT = 0.05
Line = tuple[asyncio.StreamReader, socket.socket]


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    """What is read from, and the socket of the other side."""
    mine, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=mine)
    yield reader, theirs
    writer.close()
    theirs.close()


async def limited(seconds: float | None, reader: asyncio.StreamReader, count: int) -> bytes:
    async with within(seconds, "a reply", sent=True):
        return await reader.readexactly(count)


async def test_i13_a_reply_that_arrived_while_the_event_loop_was_blocked_counts(line: Line) -> None:
    reader, theirs = line
    task = asyncio.create_task(limited(LIMIT, reader, 1))
    await asyncio.sleep(0)
    theirs.send(b"!")
    compute(2 * LIMIT)
    assert await task == b"!"
    assert task.cancelling() == 0


@pytest.mark.parametrize("is_blocked", [True, False])
async def test_i13_a_reply_that_has_not_arrived_does_not(line: Line, is_blocked: bool) -> None:
    reader, theirs = line
    began = time.monotonic()
    task = asyncio.create_task(limited(LIMIT, reader, 2))
    await asyncio.sleep(0)
    theirs.send(b"!")
    if is_blocked:
        compute(2 * LIMIT)
    with pytest.raises(TimedOut, match="waited for a reply") as caught:
        await task
    assert caught.value.sent
    assert time.monotonic() - began >= LIMIT
    assert task.cancelling() == 0


async def test_a_cancellation_is_no_time_limit(line: Line) -> None:
    for seconds in (None, LIMIT):
        task = asyncio.create_task(limited(seconds, line[0], 1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


class ReadsByItself(MemoryPrograms):
    """A store whose claim reads what it replaces."""

    def read_before_take_over(self, name: str) -> Program[Any, Any, LockRecord | None]:
        yield from ()
        return None

    def record(self, name: str) -> Program[Any, Any, LockRecord | None]:
        raise AssertionError("not needed")


def test_a_claim_may_read_by_itself_what_it_takes_over() -> None:
    memory = InMemoryLockProvider()
    programs = ReadsByItself(memory._store, memory.programs.fire_time_tolerance)
    assert ProgramProvider(programs, memory._store).take_over(LockRequest("job", "1m")).is_trusted()
