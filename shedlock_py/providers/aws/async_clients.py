"""The client for asyncio, over aiobotocore. A module of its own: the import takes a third of a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import ClientError, EndpointConnectionError, ResponseStreamingError

from shedlock_py._process import PerLoop, monotonic
from shedlock_py._program import run_async
from shedlock_py.providers.aws.clients import (
    A_REPLY,
    AwsReply,
    AwsRequest,
    Exchange,
    Sending,
    Sleep,
    directly,
    expected_reply,
    reply_of,
)
from shedlock_py.providers.aws.place import Place
from shedlock_py.providers.kit import NotSent, TimedOut, close_with_loop, within


class _Tasks:
    """The client of one event loop."""

    def __init__(self, place: Place, timeout: float | None) -> None:
        self._place = place
        self._timeout = timeout
        self._mutex = asyncio.Lock()
        self._client: Any = None
        self._resources = AsyncExitStack()
        self._at_end: AsyncGenerator[None] | None = None

    async def client(self) -> Any:
        if self._client is None:
            async with self._mutex:
                if self._client is None:
                    self._client = await self._opened()
        return self._client

    async def _opened(self) -> Any:
        if self._at_end is None:
            self._at_end = close_with_loop(self.close)
            await anext(self._at_end)
        session = AioSession(profile=self._place.profile)
        arguments = self._place.client_arguments(AioConfig, self._timeout)
        opening = session.create_client(region_name=self._place.region, **arguments)
        client = await self._resources.enter_async_context(opening)
        self._place.register_handlers(client)
        return client

    async def close(self) -> None:
        self._client = None
        await self._resources.aclose()


class AsyncAwsClient:
    """:class:`AwsClient` for asyncio."""

    def __init__(self, place: Place, timeout: float | None, exchange: Exchange = directly) -> None:
        self.shown = place.shown
        self._exchange = exchange
        self._of_loop = PerLoop(partial(_Tasks, place, timeout))

    async def execute(self, command: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 (see kit)
        mine, sending = self._of_loop.get(), Sending(timeout)

        async def send(request: AwsRequest | Sleep) -> AwsReply | None:
            if isinstance(request, Sleep):
                await asyncio.sleep(request.seconds)
                return None
            method = getattr(await mine.client(), request.method)
            sending.begin()
            sent_at = monotonic()
            try:
                value = await method(**request.arguments)
            except EndpointConnectionError as error:
                # aiobotocore raises it also where the connection broke later, and the request may have arrived.
                if isinstance(error.kwargs.get("error"), aiohttp.ClientConnectorError):
                    raise NotSent from error
                raise
            except ClientError as error:
                return expected_reply(request, error, sent_at)
            if hasattr(body := value.get("Body"), "read"):
                try:
                    async with body:
                        value["Body"] = await body.read()
                except aiohttp.ClientPayloadError as error:  # aiobotocore lets it pass; boto3 has an error of its own
                    raise ResponseStreamingError(error=error) from error
            return reply_of(value, sent_at)

        try:
            async with within(timeout, A_REPLY, sent=True):
                return await run_async(self._exchange(command), send)
        except TimedOut as error:
            raise TimedOut(error.waiting_for, sent=sending.has_begun) from error.__cause__

    async def close(self) -> None:
        mine = self._of_loop.pop()
        if mine is not None:
            await mine.close()
