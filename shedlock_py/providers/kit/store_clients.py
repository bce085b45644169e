"""Clients carry out the commands of a store, one at a time."""

from __future__ import annotations

from typing import Any, Protocol


class StoreClient(Protocol):
    """Carries out a command for :class:`ProgramProvider`.

    It may also have ``close()``, and ``shown``, which the provider's ``repr`` shows.
    """

    def execute(self, command: Any, timeout: float | None, /) -> Any:
        """Return the reply.

        :param timeout: in seconds. If None, the user's client sets the limit.
        :raises TimedOut: the store did not reply in time.
        """


class AsyncStoreClient(Protocol):
    """Carries out a command for :class:`AsyncProgramProvider`, on any event loop.

    Its ``close()`` is a coroutine. Cancelling a caller does not cancel ``execute``, but the end of the event loop does.
    """

    async def execute(self, command: Any, timeout: float | None, /) -> Any:  # noqa: ASYNC109 (the operation's time left)
        """See :class:`StoreClient`."""


class ThreadedClient:
    """A client for :class:`AsyncProgramProvider` that calls a blocking client in a worker thread."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client

    @property
    def shown(self) -> Any:
        return getattr(self._client, "shown", None)

    async def execute(self, command: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 (see AsyncStoreClient)
        import asyncio  # imported late: sync programs do not need asyncio

        return await asyncio.to_thread(self._client.execute, command, timeout)

    async def close(self) -> None:
        import asyncio

        close = getattr(self._client, "close", None)
        if close is not None:
            await asyncio.to_thread(close)
