"""Stores and workers with clocks that a scenario sets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.clocks import Clock
from tests.faults.fleet import ForkServer
from tests.support.availability import private_server
from tests.support.stores import STORES, Store


@dataclass
class ClockedStore:
    store: Store
    clocks: list[Clock]
    """The clocks of the servers, or the clock of the workers if the store is a file."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment that gives workers the store's clock, if the store uses the workers' clock."""

    def set(self, offset: float) -> None:
        for clock in self.clocks:
            clock.set(offset)


@contextmanager
def clocked(
    name: str, *, is_async: bool = False, servers: int = 3, environment: Mapping[str, str] | None = None
) -> Iterator[ClockedStore]:
    """A private store; a quorum has ``servers`` servers. ``environment`` is for servers, or for a file's workers."""
    with ExitStack() as stack:
        process = STORES[name].process
        if process is None:
            clock = stack.enter_context(Clock())
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="shedlock-faults-"))
            found = ClockedStore(
                STORES[name].store(Path(directory)), [clock], {**clock.environment, **(environment or {})}
            )
        else:
            clocks = [stack.enter_context(Clock()) for _ in range(servers if name == "quorum" else 1)]
            started = []
            for clock in clocks:

                def with_clock(clock: Clock = clock) -> Any:
                    server = process()
                    server.environment.update({**clock.environment, **(environment or {})})
                    return server

                started.append(stack.enter_context(private_server(name, with_clock)))
            found = ClockedStore(STORES[name].store(started if name == "quorum" else started[0]), clocks)
        found.store.is_async = is_async
        yield found


@contextmanager
def worker_clocks(number: int, *environments: Mapping[str, str]) -> Iterator[list[tuple[Clock, ForkServer]]]:
    """Yield clocks for workers, and fork servers of such workers. The environments are used in rotation."""
    with ExitStack() as stack:
        found = []
        for index in range(number):
            clock = stack.enter_context(Clock())
            more = environments[index % len(environments)] if environments else {}
            fork_server = stack.enter_context(closing(ForkServer({**clock.environment, **more})))
            found.append((clock, fork_server))
        yield found
