"""A TCP feed for the leader only: connect when leading, disconnect as soon as leadership ends.

python examples/08_leader_only_feed.py

Two nodes here are two electors of one process, so that one script shows both; in production each node is a process.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from shedlock_py import AsyncLeaderElector, LockProvider, provider_from_url


class Consumer:
    """Reads the feed while its node leads. Fail closed: check the leadership before each line."""

    def __init__(self, name: str, provider: LockProvider, port: int) -> None:
        self.name = name
        self.port = port
        self.lines = 0
        self.elector = AsyncLeaderElector(
            provider,
            "feed",
            lease_duration="3s",
            renew_deadline="2s",
            retry_period="500ms",
            holder=name,
            on_started_leading=self.consume,  # runs while this node leads; the node resigns when it returns
        )

    async def consume(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        print(f"{self.name}: connected, term {self.elector.term}")
        while self.elector.is_leader():
            line = await reader.readline()
            if not line or not self.elector.is_leader():
                break
            self.lines += 1
        writer.close()
        await writer.wait_closed()
        print(f"{self.name}: disconnected")


async def main() -> None:
    connected: list[asyncio.StreamWriter] = []
    most_at_once = 0

    async def feed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal most_at_once
        connected.append(writer)
        most_at_once = max(most_at_once, len(connected))
        try:
            while not reader.at_eof():
                writer.write(b"a tick\n")
                await writer.drain()
                await asyncio.sleep(0.02)
        except ConnectionError:
            pass
        finally:
            connected.remove(writer)
            writer.close()

    with tempfile.TemporaryDirectory() as directory:
        provider = provider_from_url(f"sqlite:///{Path(directory) / 'locks.db'}")
        provider.create_schema()
        server = await asyncio.start_server(feed, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        first, second = Consumer("node-1", provider, port), Consumer("node-2", provider, port)

        await first.elector.start()
        await first.elector.wait_until_leader("10s")
        await second.elector.start()
        while first.lines < 10:  # noqa: ASYNC110 (a script)
            await asyncio.sleep(0.01)
        await first.elector.stop()  # waits until it has disconnected, and only then resigns

        await second.elector.wait_until_leader("10s")
        while second.lines < 10:  # noqa: ASYNC110 (likewise)
            await asyncio.sleep(0.01)
        await second.elector.stop()
        server.close()
        while connected:  # noqa: ASYNC110 (likewise)
            await asyncio.sleep(0.01)
        print("consumers at once, at most:", most_at_once)


if __name__ == "__main__":
    asyncio.run(main())
