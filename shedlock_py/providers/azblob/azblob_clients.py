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
from shedlock_py.providers.azblob.wire import NOT_DONE, BlobReply, BlobRequest, code_of
from shedlock_py.providers.cas import ServerTime
from shedlock_py.providers.kit import NotSent
from shedlock_py.runtime.process import monotonic

_Opened = tuple[ExitStack, ContainerClient]
_AsyncOpened = tuple[AsyncExitStack, AsyncContainerClient]
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
    """For threads. ``open`` returns the stack that closes the client, and the client."""

    def open(self) -> _Opened:
        resources, credential = ExitStack(), None
        if self.place.is_keyless:
            from azure.identity import DefaultAzureCredential  # imported late: takes a third of a second

            credential = resources.enter_context(DefaultAzureCredential())
        client = ContainerClient.from_connection_string(**self.arguments, credential=credential)
        return resources, resources.enter_context(client)

    def close(self, client: _Opened) -> None:
        client[0].close()

    def send(self, client: _Opened, request: BlobRequest) -> BlobReply:
        replies = _Replies()
        try:
            value = getattr(client[1], request.method)(**request.arguments, raw_response_hook=replies.hook)
            if request.method == "download_blob":
                value = value.readall()
            elif request.method == "walk_blobs":
                pages = value.by_page(request.page)
                value = [found.name for found in next(pages)], pages.continuation_token or None
        except (ServiceRequestError, HttpResponseError) as error:
            return replies.of_error(error)
        return replies.last(value)


class AsyncBlobSdk(_Sdk):
    """:class:`BlobSdk` for asyncio."""

    async def open(self) -> _AsyncOpened:
        resources, credential = AsyncExitStack(), None
        if self.place.is_keyless:
            from azure.identity.aio import DefaultAzureCredential

            credential = await resources.enter_async_context(DefaultAzureCredential())
        client = AsyncContainerClient.from_connection_string(**self.arguments, credential=credential)
        return resources, await resources.enter_async_context(client)

    async def close(self, client: _AsyncOpened) -> None:
        await client[0].aclose()

    async def send(self, client: _AsyncOpened, request: BlobRequest) -> BlobReply:
        replies = _Replies()
        try:
            value = getattr(client[1], request.method)(**request.arguments, raw_response_hook=replies.hook)
            if request.method == "walk_blobs":
                pages = value.by_page(request.page)
                value = [found.name async for found in await anext(pages)], pages.continuation_token or None
            else:
                value = await value
                if request.method == "download_blob":
                    value = await value.readall()
        except (ServiceRequestError, HttpResponseError) as error:
            return replies.of_error(error)
        return replies.last(value)


class _Replies:
    """The replies to one call of the SDK. The last one counts: the SDK repeats a read of a blob without content."""

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
