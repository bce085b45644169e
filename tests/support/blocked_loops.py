"""Event loops that stand still because a coroutine computes, which applications should avoid."""

import asyncio
import select
import time
from typing import Any

import pytest
import redis.asyncio


def compute(seconds: float) -> None:
    """Block the event loop. The block is the subject of a test here, not a way to wait."""
    time.sleep(seconds)


def block_when_redis_is_asked(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """After each request, block the loop until the reply is there, and ``seconds`` longer."""
    send = redis.asyncio.Connection.send_packed_command

    def block(connection: Any) -> None:
        writer = connection._writer  # redis-py shows its socket nowhere else
        if writer is not None:  # it may be closed meanwhile
            select.select([writer.get_extra_info("socket")], [], [], 30)
            compute(seconds)

    async def send_and_block(self: Any, *args: Any, **options: Any) -> None:
        await send(self, *args, **options)
        asyncio.get_running_loop().call_soon(block, self)

    monkeypatch.setattr(redis.asyncio.Connection, "send_packed_command", send_and_block)
