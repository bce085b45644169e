"""Clients over the SDK of a cloud's service: for threads over a blocking SDK, and for asyncio.

A store's programs make *requests* for each command. An :class:`Sdk` or :class:`AsyncSdk` sends a request. One time
limit covers all requests of a command, and the SDK's search for credentials.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any, Protocol
from weakref import finalize

from shedlock_py.providers.kit import TimedOut, call_within, close_with_loop, within
from shedlock_py.runtime.process import PerLoop, PerProcess, monotonic
from shedlock_py.runtime.program import Program, drive, drive_async
from shedlock_py.runtime.threads import WorkerPool

_A_REPLY = "a reply"

Exchange = Callable[[Any], Program[Any, Any, Any]]
"""Makes the requests for a command of the programs, and the command's reply from their replies."""


class Sdk(Protocol):
    """A blocking SDK."""

    shown: str
    """The place of the records, for people."""
    most_requests: int
    """The most requests at a time, and so the most connections."""

    def open(self, resources: ExitStack) -> Any:
        """Return a new client, which all threads share. ``resources`` closes it."""

    def send(self, client: Any, request: Any) -> Any:
        """Send ``request`` once. :raises NotSent: no byte of it has reached the service."""

    def is_outdated(self, error: Exception) -> bool:
        """Return whether a new client could help, because it finds new credentials."""


class AsyncSdk(Protocol):
    """:class:`Sdk` for asyncio. All tasks of an event loop share a client."""

    shown: str
    most_requests: int

    async def open(self, resources: AsyncExitStack) -> Any: ...

    async def send(self, client: Any, request: Any) -> Any: ...

    def is_outdated(self, error: Exception) -> bool: ...


class _Sending:
    """Whether a request may have been sent, for the error after the time limit."""

    def __init__(self, timeout: float | None) -> None:
        self._until = None if timeout is None else monotonic() + timeout
        self.has_begun = False

    def begin(self) -> None:
        """Call it before a request. :raises TimedOut: the time is over, so nothing may be sent."""
        self.has_begun = True
        if self._until is not None and monotonic() >= self._until:
            raise TimedOut(_A_REPLY, sent=False)


class _Threads:
    """The client of one process. An SDK takes a tenth of a second to create it, and longer to find credentials."""

    def __init__(self, sdk: Sdk) -> None:
        self.workers = WorkerPool(sdk.most_requests, "shedlock-sdk")
        self._sdk = sdk
        self._mutex = threading.Lock()  # used only in worker threads, which signal handlers do not interrupt
        self._client: Any = None
        self._closing: Any = None

    def client(self) -> Any:
        with self._mutex:
            if self._client is None:
                with ExitStack() as resources:
                    self._client = self._sdk.open(resources)
                    # For a provider that is never closed. At the end of the process, the system closes the connections.
                    self._closing = finalize(self, resources.pop_all().close)
                    self._closing.atexit = False
            return self._client

    def forget(self, client: Any) -> None:
        """Create a new client for the next request. It finds new credentials: an SDK may keep the first that it found.

        Other threads may still use the old client, so it is not closed but garbage-collected.
        """
        with self._mutex:
            if self._client is client:
                self._client = None
                self._closing.detach()

    def close(self) -> None:
        if self._client is not None:
            self._closing()


class SdkClient:
    """A client for threads. A worker thread executes each command, so that one time limit covers all of it."""

    def __init__(self, sdk: Sdk, exchange: Exchange) -> None:
        self.shown = sdk.shown
        self._sdk = sdk
        self._exchange = exchange
        self._of_process = PerProcess(partial(_Threads, sdk))

    def execute(self, command: Any, timeout: float | None) -> Any:
        mine, sending = self._of_process.get(), _Sending(timeout)

        def send(request: Any) -> Any:
            client = mine.client()
            sending.begin()
            try:
                return self._sdk.send(client, request)
            except Exception as error:
                if self._sdk.is_outdated(error):
                    mine.forget(client)
                raise

        work = partial(drive, self._exchange(command), send)
        try:
            return call_within(mine.workers, timeout, _A_REPLY, work, in_order=True)
        except TimedOut as error:
            raise TimedOut(error.waiting_for, sent=sending.has_begun) from error.__cause__

    def close(self) -> None:
        mine = self._of_process.pop()
        if mine is not None:
            mine.close()


class _Tasks:
    """The client of one event loop."""

    def __init__(self, sdk: AsyncSdk) -> None:
        import asyncio  # imported late: sync programs do not need asyncio

        self._sdk = sdk
        self.permits = asyncio.Semaphore(sdk.most_requests)
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
        async with AsyncExitStack() as resources:
            client = await self._sdk.open(resources)
            self._opened.append(resources.pop_all())
        await self._close(2)
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


class AsyncSdkClient:
    """:class:`SdkClient` for asyncio."""

    def __init__(self, sdk: AsyncSdk, exchange: Exchange) -> None:
        self.shown = sdk.shown
        self._sdk = sdk
        self._exchange = exchange
        self._of_loop = PerLoop(partial(_Tasks, sdk))

    async def execute(self, command: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 (see kit)
        mine, sending = self._of_loop.get(), _Sending(timeout)

        async def send(request: Any) -> Any:
            client = await mine.client()
            sending.begin()
            try:
                return await self._sdk.send(client, request)
            except Exception as error:
                if self._sdk.is_outdated(error):
                    mine.forget(client)
                raise

        try:
            async with within(timeout, _A_REPLY, sent=True), mine.permits:
                return await drive_async(self._exchange(command), send)
        except TimedOut as error:
            raise TimedOut(error.waiting_for, sent=sending.has_begun) from error.__cause__

    async def close(self) -> None:
        mine = self._of_loop.pop()
        if mine is not None:
            await mine.close()
