"""The client for asyncio, over aiobotocore. A separate module, because its import takes a third of a second."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError, ResponseStreamingError

from shedlock_py.providers.aws.aws_clients import AwsReply, AwsRequest, Sleep, expected_reply, reply_of
from shedlock_py.providers.aws.errors import are_credentials_unknown
from shedlock_py.providers.aws.place import POOL_SIZE, Place
from shedlock_py.providers.cas.over_sdk import AsyncSdkClient, Exchange
from shedlock_py.providers.kit import NotSent
from shedlock_py.runtime.process import monotonic


class _AioBotoCore:
    """aiobotocore, for asyncio."""

    most_requests = POOL_SIZE

    def __init__(self, place: Place, timeout: float | None) -> None:
        self.shown = place.shown
        self._place = place
        self._timeout = timeout

    async def open(self, resources: AsyncExitStack) -> Any:
        session = AioSession(profile=self._place.profile)
        arguments = self._place.client_arguments(AioConfig, self._timeout)
        opening = session.create_client(region_name=self._place.region, **arguments)
        client = await resources.enter_async_context(opening)
        self._place.register_handlers(client)
        return client

    async def send(self, client: Any, request: AwsRequest | Sleep) -> AwsReply | None:
        if isinstance(request, Sleep):
            await asyncio.sleep(request.seconds)
            return None
        sent_at = monotonic()
        try:
            value = await getattr(client, request.method)(**request.arguments)
        except EndpointConnectionError as error:
            # aiobotocore also raises it if the connection broke later, when the request may have arrived.
            if isinstance(error.kwargs.get("error"), aiohttp.ClientConnectorError):
                raise NotSent from error
            raise
        except (BotoCoreError, ClientError) as error:
            return expected_reply(request, error, sent_at)
        if hasattr(body := value.get("Body"), "read"):
            try:
                async with body:
                    value["Body"] = await body.read()
            except aiohttp.ClientPayloadError as error:  # aiobotocore does not translate it; boto3 does
                raise ResponseStreamingError(error=error) from error
        return reply_of(value, sent_at)

    def is_outdated(self, error: Exception) -> bool:
        return are_credentials_unknown(error)


class AsyncAwsClient(AsyncSdkClient):
    """:class:`AwsClient` for asyncio."""

    def __init__(self, place: Place, timeout: float | None, exchange: Exchange) -> None:
        super().__init__(_AioBotoCore(place, timeout), exchange)
