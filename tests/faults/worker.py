"""A replica of an application, as a process: it acquires, works, writes with its fencing token, extends, releases, …

    python -m tests.faults.worker CONFIG.json    one worker, until SIGTERM
    python -m tests.faults.worker                a nursery: forks a worker for each line of JSON that it reads

A nursery has imported everything once, so that its workers start in milliseconds; they die with it, and it dies when
its standard input ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shedlock_py import Lease, LockRequest, ProviderError, hold, hold_async
from shedlock_py.stores import import_reference
from tests.faults.fenced_log import FencedLog
from tests.faults.history import Logbook
from tests.faults.recording import AsyncRecordedProvider, RecordedProvider

CHECK_SECONDS = 0.02
"""While it works, a worker asks its lease this often whether it may go on."""


@dataclass(frozen=True)
class Behaviour:
    """What a worker does. Durations are seconds; of a pair, any value between the two."""

    at_most: float = 0.8
    at_least: float = 0.0
    work: tuple[float, float] = (0.0, 0.05)
    pause: tuple[float, float] = (0.0, 0.03)
    """Between two attempts."""
    extends: float = 0.3
    """How often it extends its lease once and goes on working; from 0 to 1, as the others."""
    keeps_alive: float = 0.0
    """How often it holds the lock through ``hold(..., keep_alive=True)``."""
    forgets: float = 0.0
    """How often it does not release, as if it had crashed; not when it keeps alive."""
    is_careless: bool = False
    """Goes on working, and writes, when its lease is not trusted any more; the fencing token is to catch it."""


@dataclass(frozen=True)
class Config:
    """All that a worker is told."""

    worker: str
    history: str
    fenced_log: str
    names: list[str]
    seed: int
    is_async: bool
    provider: str
    """``pkg.module:function``, called with ``arguments``."""
    arguments: dict[str, Any] = field(default_factory=dict)
    behaviour: Behaviour = field(default_factory=Behaviour)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Config:
        facts = json.loads(text)
        return cls(**{**facts, "behaviour": Behaviour(**facts["behaviour"])})


class Worker:
    """What is the same for both kinds; neither waits here, but for the fenced log."""

    def __init__(self, config: Config) -> None:
        self.behaviour = config.behaviour
        self.logbook = Logbook(Path(config.history), config.worker)
        self.random = random.Random(config.seed)
        self.is_done = False
        self._config = config
        self._fenced_log = FencedLog(Path(config.fenced_log))

    def open(self) -> Any:
        make: Callable[..., Any] = import_reference(self._config.provider)
        return make(**self._config.arguments)

    def request(self) -> LockRequest:
        name = self.random.choice(self._config.names)
        return LockRequest(name, self.behaviour.at_most, self.behaviour.at_least, holder=self._config.worker)

    def happens(self, how_often: float) -> bool:
        return self.random.random() < how_often

    def between(self, bounds: tuple[float, float]) -> float:
        return self.random.uniform(*bounds)

    def may_go_on(self, lease: Lease) -> bool:
        with self.logbook.operation("check", lease.name, lease) as entry:
            is_trusted = lease.is_trusted()
            entry.outcome = "trusted" if is_trusted else "untrusted"
        return is_trusted or self.behaviour.is_careless

    def write(self, lease: Lease) -> None:
        with self.logbook.operation("write", lease.name, lease) as entry:
            accepted = self._fenced_log.write(lease.name, lease.fencing_token or 0)
            entry.outcome = "done" if accepted else "refused"


class SyncWorker(Worker):
    def run(self) -> None:
        inner = self.open()
        plain = RecordedProvider(inner, self.logbook)
        kept = RecordedProvider(inner, self.logbook, keep_alive=True)
        while not self.is_done:
            try:
                if self.happens(self.behaviour.keeps_alive):
                    with hold(self.request(), provider=kept, keep_alive=True) as lease:
                        if lease is not None:
                            self.work(lease)
                else:
                    self.plainly(plain)
            except ProviderError:
                pass  # it is in the history
            time.sleep(self.between(self.behaviour.pause))

    def plainly(self, provider: RecordedProvider) -> None:
        lease = provider.acquire(self.request())
        if lease is None:
            return
        try:
            is_ours = self.work(lease)
            if is_ours and self.happens(self.behaviour.extends) and provider.extend(lease, self.behaviour.at_most):
                self.work(lease)
        finally:
            if not self.happens(self.behaviour.forgets):
                provider.release(lease)

    def work(self, lease: Lease) -> bool:
        until = time.monotonic() + self.between(self.behaviour.work)
        while self.may_go_on(lease):
            left = until - time.monotonic()
            if left <= 0:
                self.write(lease)
                return True
            time.sleep(min(left, CHECK_SECONDS))
        return False


class AsyncWorker(Worker):
    async def run(self) -> None:
        inner = self.open()
        plain = AsyncRecordedProvider(inner, self.logbook)
        kept = AsyncRecordedProvider(inner, self.logbook, keep_alive=True)
        while not self.is_done:
            try:
                if self.happens(self.behaviour.keeps_alive):
                    async with hold_async(self.request(), provider=kept, keep_alive=True) as lease:
                        if lease is not None:
                            await self.work(lease)
                else:
                    await self.plainly(plain)
            except ProviderError:
                pass  # it is in the history
            await asyncio.sleep(self.between(self.behaviour.pause))

    async def plainly(self, provider: AsyncRecordedProvider) -> None:
        lease = await provider.acquire(self.request())
        if lease is None:
            return
        try:
            is_ours = await self.work(lease)
            extends = is_ours and self.happens(self.behaviour.extends)
            if extends and await provider.extend(lease, self.behaviour.at_most):
                await self.work(lease)
        finally:
            if not self.happens(self.behaviour.forgets):
                await provider.release(lease)

    async def work(self, lease: Lease) -> bool:
        until = time.monotonic() + self.between(self.behaviour.work)
        while self.may_go_on(lease):
            left = until - time.monotonic()
            if left <= 0:
                self.write(lease)
                return True
            await asyncio.sleep(min(left, CHECK_SECONDS))
        return False


def run(config: Config) -> None:
    """One worker, until SIGTERM; its last lease is released in order."""
    worker = AsyncWorker(config) if config.is_async else SyncWorker(config)

    def end(*_: object) -> None:
        worker.is_done = True

    signal.signal(signal.SIGTERM, end)
    logging.disable()  # what goes wrong is in the history
    if isinstance(worker, AsyncWorker):
        asyncio.run(worker.run())
    else:
        worker.run()


def nursery() -> None:
    """Fork a worker for each line, and answer with its process id."""
    import tests.faults.planted
    import tests.faults.stores  # noqa: F401  # whatever workers may ask for is imported once, here

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for our parent, who ends us
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the dead
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become_worker(line)
        print(pid, flush=True)


def _become_worker(line: str) -> None:
    code = 1
    try:
        os.close(0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(die_with_parent, signal.SIGKILL)
        run(Config.from_json(line))
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(Config.from_json(Path(sys.argv[1]).read_text()))
    else:
        nursery()
