"""What carries the commands of a store out, one at a time."""

from __future__ import annotations

from typing import Any, Protocol


class StoreClient(Protocol):
    """Carries a command out for :class:`ProgramProvider`.

    It may also have ``close()``, and ``shown``: what the provider's ``repr`` shows of the store.
    """

    def execute(self, command: Any, timeout: float | None, /) -> Any:
        """The reply, within ``timeout`` seconds (None: as long as the user's client takes), or :class:`TimedOut`."""


class AsyncStoreClient(Protocol):
    """Carries a command out for :class:`AsyncProgramProvider`, on any event loop.

    Its ``close()`` is a coroutine. A caller that is cancelled does not cancel ``execute``; the end of the event loop
    does.
    """

    async def execute(self, command: Any, timeout: float | None, /) -> Any:  # noqa: ASYNC109 (what is left of the operation's)
        """See :class:`StoreClient`."""


class ThreadedClient:
    """A client for :class:`AsyncProgramProvider` that calls a blocking one in a worker thread."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client

    @property
    def shown(self) -> Any:
        return getattr(self._client, "shown", None)

    async def execute(self, command: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 (see AsyncStoreClient)
        import asyncio  # late: sync programs do without

        return await asyncio.to_thread(self._client.execute, command, timeout)

    async def close(self) -> None:
        import asyncio

        close = getattr(self._client, "close", None)
        if close is not None:
            await asyncio.to_thread(close)
