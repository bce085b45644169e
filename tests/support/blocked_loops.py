"""Event loops that stand still because the application computes in a coroutine, which it should not."""

import asyncio
import select
import time
from typing import Any

import pytest
import redis.asyncio


def compute(seconds: float) -> None:
    """Hold the loop up: here that is what a test is about, and not a way to wait for something."""
    time.sleep(seconds)


def block_when_redis_is_asked(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Whenever something was sent, the loop stands still until the answer is there, and so much longer."""
    send = redis.asyncio.Connection.send_packed_command

    def block(connection: Any) -> None:
        writer = connection._writer  # redis-py shows its socket nowhere else
        if writer is not None:  # not closed meanwhile
            select.select([writer.get_extra_info("socket")], [], [], 30)
            compute(seconds)

    async def send_and_block(self: Any, *args: Any, **options: Any) -> None:
        await send(self, *args, **options)
        asyncio.get_running_loop().call_soon(block, self)

    monkeypatch.setattr(redis.asyncio.Connection, "send_packed_command", send_and_block)
