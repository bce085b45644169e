"""A replica of an application, as a process: it acquires, works, writes with its fencing token, extends and releases.

``python -m tests.faults.worker`` is a fork server: it forks a worker for each line of JSON that it reads. The fork
server has imported everything, so that its workers start in milliseconds. The workers die with the fork server. It
ends when its standard input ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import inspect
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shedlock_py import (
    Lease,
    LockRequest,
    ProviderError,
    current_lease,
    run_once,
    run_once_async,
    try_hold,
    try_hold_async,
)
from shedlock_py.model.lease import MOST_RECOVERIES
from shedlock_py.model.recovery import Acquire, Over, Recover, Wait, Watch
from shedlock_py.settings.urls import import_reference
from tests.faults.history import Logbook
from tests.faults.recording import AsyncOnceProvider, AsyncRecordedProvider, OnceProvider, RecordedProvider

CHECK_SECONDS = 0.02
"""A working worker checks this often whether its lease is still trusted."""


@dataclass(frozen=True)
class Behaviour:
    """The actions of a worker. Durations are seconds; a pair stands for any value between the two."""

    at_most: float = 0.8
    at_least: float = 0.0
    work: tuple[float, float] = (0.0, 0.05)
    pause: tuple[float, float] = (0.0, 0.03)
    """Between two attempts. The "how often" fields below are probabilities from 0 to 1."""
    extends: float = 0.3
    """How often it extends its lease once and goes on working."""
    varies: float = 0.15
    """How often such an extension is shorter or longer than ``at_most``."""
    lengths: tuple[float, float] = (0.3, 1.5)
    """Lengths of these extensions, as parts of ``at_most``."""
    keeps_alive: float = 0.0
    """How often it holds the lock through ``hold(..., keep_alive=True)``."""
    forgets: float = 0.0
    """How often it does not release, as if it had crashed. Not with keep-alive."""
    takes_over: float = 0.0
    """How often it acquires by force."""
    force_releases: float = 0.0
    """How often it force-releases a name, whoever holds it, in place of an attempt."""
    prunes: float = 0.0
    """How often it prunes the records of all free names in place of an attempt."""
    fires_every: float = 0.0
    """If set, it attempts only at multiples of this on its wall clock: these are fire times. If 0, after a pause."""
    skew: float = 0.0
    """Seconds by which its wall clock is ahead."""
    watches: bool = False
    """If a fire time was skipped, it watches the run until the next fire time, and recovers it."""
    runs_once: bool = False
    """It calls ``run_once`` for each name until the call returns, and does nothing afterwards."""
    fails: float = 0.0
    """How often the task of ``run_once`` raises."""
    is_careless: bool = False
    """It goes on working and writing after its lease is no longer trusted. The fencing token must catch this."""


@dataclass(frozen=True)
class Config:
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


class FencedLog:
    """A resource that checks fencing tokens, like a database or a file store that jobs use.

    A file per name holds the greatest token that was accepted. Comparing and writing are one step, under ``flock``,
    which the kernel releases when a process dies. The token is one ``pwrite`` of fixed width, so that a kill leaves no
    half token.
    """

    WIDTH = 20

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory

    def write(self, name: str, token: int) -> bool:
        """Write, unless a greater token has been accepted. Return whether the write was accepted."""
        file = os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            greatest = int(os.pread(file, self.WIDTH, 0) or b"0")
            if token < greatest:
                return False
            os.pwrite(file, f"{token:0{self.WIDTH}d}".encode(), 0)
            return True
        finally:
            os.close(file)


class Worker:
    """The coroutines of a worker with a sync provider never wait, so that :func:`drive` can run them."""

    def __init__(self, config: Config) -> None:
        self.behaviour = config.behaviour
        self.logbook = Logbook(Path(config.history), config.worker)
        self.random = random.Random(config.seed)
        self.is_done = False
        self._fired = 0
        self._config = config
        self._fenced_log = FencedLog(Path(config.fenced_log))

    def open(self) -> Any:
        make: Callable[..., Any] = import_reference(self._config.provider)
        return make(**self._config.arguments)

    def name(self) -> str:
        return self.random.choice(self._config.names)

    def request(self) -> LockRequest:
        behaviour, fire_time = self.behaviour, None
        if behaviour.fires_every:
            fire_time = datetime.fromtimestamp(self._fired * behaviour.fires_every, UTC)
        return LockRequest(self.name(), behaviour.at_most, behaviour.at_least, self._config.worker, fire_time)

    def until_next(self) -> float:
        every = self.behaviour.fires_every
        if not every:
            return self.between(self.behaviour.pause)
        wall_clock = time.time() + self.behaviour.skew
        self._fired = max(self._fired, int(wall_clock // every)) + 1
        return max(0.0, self._fired * every - wall_clock)

    def extension(self) -> float:
        part = self.between(self.behaviour.lengths) if self.happens(self.behaviour.varies) else 1.0
        return self.behaviour.at_most * part

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

    async def run(self) -> None:
        inner, behaviour = self.open(), self.behaviour
        recorded = AsyncRecordedProvider if self._config.is_async else RecordedProvider
        plain, kept = recorded(inner, self.logbook), recorded(inner, self.logbook, keep_alive=True)
        if behaviour.runs_once:
            await self.once(inner)
            return
        while not self.is_done:
            await self.sleep(self.until_next())
            try:
                if self.happens(behaviour.keeps_alive):
                    await self.keeping_alive(kept)
                elif self.happens(behaviour.force_releases):
                    await reply_of(plain.force_release(self.name()))
                elif self.happens(behaviour.prunes):
                    await reply_of(plain.prune(0))
                else:
                    await self.plainly(plain)
            except ProviderError:
                pass  # it is in the history

    async def keeping_alive(self, provider: Any) -> None:
        if self._config.is_async:
            async with try_hold_async(self.request(), provider=provider, keep_alive=True) as lease:
                if lease is not None:
                    await self.work(lease)
        else:
            with try_hold(self.request(), provider=provider, keep_alive=True) as lease:
                if lease is not None:
                    await self.work(lease)

    async def once(self, inner: Any) -> None:
        names = iter(self._config.names)
        name = next(names, None)
        while not self.is_done:
            if name is None:
                await self.sleep(CHECK_SECONDS)
                continue
            try:
                with self.logbook.operation("once", name) as entry:
                    entry.outcome = "ran" if await self.runs_once(inner, name) else "learned"
                name = next(names, None)
            except (ProviderError, TaskFailed):
                pass  # it is in the history

    async def runs_once(self, inner: Any, name: str) -> bool:
        options: dict[str, Any] = {"wait": "1m", "lock_at_most_for": self.behaviour.at_most}
        if self._config.is_async:
            asynchronous = AsyncOnceProvider(inner, self.logbook, keep_alive=True)
            return await run_once_async(name, self.task, provider=asynchronous, **options)
        sync = OnceProvider(inner, self.logbook, keep_alive=True)
        return run_once(name, lambda: drive(self.task()), provider=sync, **options)

    async def task(self) -> None:
        lease = current_lease()
        assert lease is not None
        with self.logbook.operation("task", lease.name, lease) as entry:
            if not await self.work(lease) or self.happens(self.behaviour.fails):
                raise TaskFailed
            entry.outcome = "done"

    async def plainly(self, provider: Any) -> None:
        acquire, request = provider.acquire, self.request()
        if self.happens(self.behaviour.takes_over):
            acquire = provider.take_over
        lease = await reply_of(acquire(request))
        if lease is None and self.behaviour.watches:
            lease = await self.recovered(provider, request)
        if lease is None:
            return
        try:
            extends = await self.work(lease) and self.happens(self.behaviour.extends)
            if extends and await reply_of(provider.extend(lease, self.extension())):
                await self.work(lease)
        finally:
            if not self.happens(self.behaviour.forgets):
                await reply_of(provider.release(lease))

    async def recovered(self, provider: Any, request: LockRequest) -> Lease | None:
        watch = Watch(request.fire_time, max_recoveries=MOST_RECOVERIES, random=self.random.random)
        until = (self._fired + 1) * self.behaviour.fires_every
        while not self.is_done and time.time() + self.behaviour.skew < until:
            lease = None
            match watch.decide(await reply_of(provider.record(request.name))):
                case Wait(seconds):
                    await self.sleep(seconds)
                case Recover(expected):
                    lease = await reply_of(provider.recover(request, expected))
                case Acquire():
                    lease = await reply_of(provider.acquire(request))
                case Over():
                    return None
            if lease is not None:
                return lease  # type: ignore[no-any-return]  # of a provider of any kind
        return None

    async def work(self, lease: Lease) -> bool:
        until = time.monotonic() + self.between(self.behaviour.work)
        while self.may_go_on(lease):
            left = until - time.monotonic()
            if left <= 0:
                self.write(lease)
                return True
            await self.sleep(min(left, CHECK_SECONDS))
        return False

    async def sleep(self, seconds: float) -> None:
        if self._config.is_async:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)  # noqa: ASYNC251 (no event loop runs)


class TaskFailed(Exception):
    """Raised by a task of ``run_once``."""


async def reply_of(reply: Any) -> Any:
    return await reply if inspect.isawaitable(reply) else reply


def drive(work: Coroutine[Any, Any, None]) -> None:
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("a worker with a sync provider waits for an event loop")


def run(config: Config) -> None:
    worker = Worker(config)

    def end(*_: object) -> None:
        worker.is_done = True

    signal.signal(signal.SIGTERM, end)
    logging.disable()  # errors are in the history
    (asyncio.run if config.is_async else drive)(worker.run())


def fork_server() -> None:
    """Print "ready". Then fork a worker for each line, and reply with its process id."""
    import tests.faults.mutants
    import tests.support.stores  # noqa: F401  # whatever workers may ask for is imported once, here

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process, which ends this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the workers
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become_worker(line)
        print(pid, flush=True)


def _become_worker(line: str) -> None:
    try:
        os.close(0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(die_with_parent, signal.SIGKILL)
        run(Config.from_json(line))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)  # no exit handlers: they belong to the parent process


if __name__ == "__main__":
    fork_server()
