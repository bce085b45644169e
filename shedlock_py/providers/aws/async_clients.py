"""The client for asyncio, over aiobotocore. A separate module, because its import takes a third of a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError, ResponseStreamingError

from shedlock_py.providers.aws.aws_clients import (
    A_REPLY,
    AwsReply,
    AwsRequest,
    Exchange,
    Sending,
    Sleep,
    expected_reply,
    reply_of,
)
from shedlock_py.providers.aws.errors import are_credentials_unknown
from shedlock_py.providers.aws.place import Place
from shedlock_py.providers.kit import NotSent, TimedOut, close_with_loop, within
from shedlock_py.runtime.process import PerLoop, monotonic
from shedlock_py.runtime.program import drive_async


class _Tasks:
    def __init__(self, place: Place, timeout: float | None) -> None:
        self._place = place
        self._timeout = timeout
        self._mutex = asyncio.Lock()
        self._client: Any = None
        self._opened: list[AsyncExitStack] = []
        """The oldest client first. A forgotten client is closed later, because tasks may wait for its replies."""
        self._at_end: AsyncGenerator[None] | None = None

    async def client(self) -> Any:
        if self._client is None:
            async with self._mutex:
                if self._client is None:
                    self._client = await self._open()
        return self._client

    async def _open(self) -> Any:
        if self._at_end is None:
            self._at_end = close_with_loop(self.close)
            await anext(self._at_end)
        session = AioSession(profile=self._place.profile)
        arguments = self._place.client_arguments(AioConfig, self._timeout)
        opening = session.create_client(region_name=self._place.region, **arguments)
        resources = AsyncExitStack()
        client = await resources.enter_async_context(opening)
        self._opened.append(resources)
        await self._close(2)
        self._place.register_handlers(client)
        return client

    def forget(self, client: Any) -> None:
        """See :meth:`_Threads.forget`."""
        if self._client is client:
            self._client = None

    async def close(self) -> None:
        self._client = None
        await self._close(0)

    async def _close(self, most: int) -> None:
        while len(self._opened) > most:
            await self._opened.pop(0).aclose()


class AsyncAwsClient:
    """:class:`AwsClient` for asyncio."""

    def __init__(self, place: Place, timeout: float | None, exchange: Exchange) -> None:
        self.shown = place.shown
        self._exchange = exchange
        self._of_loop = PerLoop(partial(_Tasks, place, timeout))

    async def execute(self, command: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 (see kit)
        mine, sending = self._of_loop.get(), Sending(timeout)

        async def send(request: AwsRequest | Sleep) -> AwsReply | None:
            if isinstance(request, Sleep):
                await asyncio.sleep(request.seconds)
                return None
            client = await mine.client()
            sending.begin()
            sent_at = monotonic()
            try:
                value = await getattr(client, request.method)(**request.arguments)
            except EndpointConnectionError as error:
                # aiobotocore also raises it if the connection broke later, when the request may have arrived.
                if isinstance(error.kwargs.get("error"), aiohttp.ClientConnectorError):
                    raise NotSent from error
                raise
            except (BotoCoreError, ClientError) as error:
                if are_credentials_unknown(error):
                    mine.forget(client)
                return expected_reply(request, error, sent_at)
            if hasattr(body := value.get("Body"), "read"):
                try:
                    async with body:
                        value["Body"] = await body.read()
                except aiohttp.ClientPayloadError as error:  # aiobotocore does not translate it; boto3 does
                    raise ResponseStreamingError(error=error) from error
            return reply_of(value, sent_at)

        try:
            async with within(timeout, A_REPLY, sent=True):
                return await drive_async(self._exchange(command), send)
        except TimedOut as error:
            raise TimedOut(error.waiting_for, sent=sending.has_begun) from error.__cause__

    async def close(self) -> None:
        mine = self._of_loop.pop()
        if mine is not None:
            await mine.close()
