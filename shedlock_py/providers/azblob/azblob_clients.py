"""The SDK's clients: for threads over requests, for asyncio over aiohttp."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import aiohttp
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceRequestTimeoutError
from azure.storage.blob import ContainerClient
from azure.storage.blob.aio import ContainerClient as AsyncContainerClient
from urllib3.exceptions import NewConnectionError

from shedlock_py.providers.azblob.place import Place
from shedlock_py.providers.azblob.wire import DOWNLOAD, LIST, NOT_DONE, BlobReply, BlobRequest, code_of
from shedlock_py.providers.cas import ServerTime
from shedlock_py.providers.kit import NotSent
from shedlock_py.runtime.process import monotonic

_NO_CONNECTION = (NewConnectionError, aiohttp.ClientConnectorError)


class _Sdk:
    most_requests = 10
    """The package requests keeps no more connections."""

    def __init__(self, place: Place, timeout: float) -> None:
        self.shown = place.shown
        self.place = place
        self.arguments: dict[str, Any] = {"conn_str": place.connection, "container_name": place.container}
        self.arguments |= {"connection_timeout": timeout, "read_timeout": timeout}
        self.arguments["retry_total"] = 0  # the kit retries, and knows which commands it may repeat

    def is_outdated(self, error: Exception) -> bool:
        return False  # DefaultAzureCredential renews its tokens, and other credentials stay


class BlobSdk(_Sdk):
    """For threads."""

    def open(self, resources: ExitStack) -> ContainerClient:
        credential = None
        if self.place.is_keyless:
            from azure.identity import DefaultAzureCredential  # imported late: takes a third of a second

            credential = resources.enter_context(DefaultAzureCredential())
        return resources.enter_context(ContainerClient.from_connection_string(**self.arguments, credential=credential))

    def send(self, client: ContainerClient, request: BlobRequest) -> BlobReply:
        replies = _Replies()
        try:
            value = getattr(client, request.method)(**request.arguments, raw_response_hook=replies.hook)
            if request.method == DOWNLOAD:
                value = value.readall()
            elif request.method == LIST:
                value = [found.name for found in value]
        except (ServiceRequestError, HttpResponseError) as error:
            return replies.of_error(error)
        return replies.last(value)


class AsyncBlobSdk(_Sdk):
    """:class:`BlobSdk` for asyncio."""

    async def open(self, resources: AsyncExitStack) -> AsyncContainerClient:
        credential = None
        if self.place.is_keyless:
            from azure.identity.aio import DefaultAzureCredential

            credential = await resources.enter_async_context(DefaultAzureCredential())
        client = AsyncContainerClient.from_connection_string(**self.arguments, credential=credential)
        return await resources.enter_async_context(client)

    async def send(self, client: AsyncContainerClient, request: BlobRequest) -> BlobReply:
        replies = _Replies()
        try:
            called = getattr(client, request.method)(**request.arguments, raw_response_hook=replies.hook)
            value: Any = [found.name async for found in called] if request.method == LIST else await called
            if request.method == DOWNLOAD:
                value = await value.readall()
        except (ServiceRequestError, HttpResponseError) as error:
            return replies.of_error(error)
        return replies.last(value)


class _Replies:
    """The replies to one call of the SDK. The last one counts.

    A list has several pages, and the SDK sends the read of a blob without content again.
    """

    def __init__(self) -> None:
        self._sent_at = monotonic()
        self._headers: Mapping[str, str] = {}

    def hook(self, response: Any) -> None:
        self._headers = response.http_response.headers

    def last(self, value: Any, code: str = "") -> BlobReply:
        time = ServerTime.from_header(self._headers.get("Date"), self._sent_at, monotonic())
        return BlobReply(time, self._headers.get("ETag", ""), code, value)

    def of_error(self, error: ServiceRequestError | HttpResponseError) -> BlobReply:
        """Return an error reply that means "not done". :raises Exception: it is another error."""
        if isinstance(error, ServiceRequestTimeoutError) or isinstance(error.inner_exception, _NO_CONNECTION):
            raise NotSent from error  # the SDK also raises ServiceRequestError for a connection that broke later
        if code_of(error) not in NOT_DONE:
            raise error
        return self.last(None, code_of(error))
