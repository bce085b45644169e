"""Let racers compete for the locks of one store: for ``shedlock doctor --torture``."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from shedlock_py.errors import ConfigurationError
from shedlock_py.events import logger
from shedlock_py.model.request import LockRequest
from shedlock_py.operators.display import one_line
from shedlock_py.operators.torture import Judge, Reply
from shedlock_py.provider import LockProvider
from shedlock_py.runtime.process import monotonic

RACERS = 16
HOLD, SHORT = 5.0, 1.0
"""Seconds of a lease that is released, and of a lease that is left to expire."""
EXPIRING = 4
"""The number of lock names with leases that expire."""
SHORT_PAUSE, PAUSE, LONG_PAUSE = 0.02, 0.1, 0.5
"""Seconds between two rounds, two other requests, and after an error. The store may be in use."""
EXIT_SECONDS = 10.0
"""How long the racers may take at the end to release their leases, and then the store to let the records be deleted."""
CLOCK = "clock"
CAN_STOP = hasattr(signal, "SIGSTOP")


class RacerProcess:
    """The parent's end of one racer, which carries out one command after the other."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        self._mutex = asyncio.Lock()

    @classmethod
    async def start(cls, store: str, name: str, sleeper: RacerProcess | None = None) -> RacerProcess:
        # The racers find the modules that this process finds. All racers would print the same warnings.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "shedlock_py.operators.racers"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if logger.isEnabledFor(logging.DEBUG) else subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        racer = cls(name, process)
        racer._write({"store": store, "holder": name, "sleeper": sleeper and sleeper.process.pid})
        return racer

    async def ready(self) -> None:
        """Wait until it has opened the store.

        :raises ConfigurationError: it cannot open the store.
        """
        line = await self._line()
        found = json.loads(line) if line else {"error": "its process has ended; --debug shows why"}
        if "error" in found:
            raise ConfigurationError(f"{self.name} cannot open the store: {found['error']}")

    async def ask(self, do: str, **arguments: Any) -> Reply:
        async with self._mutex:
            self._write({"do": do, **arguments})
            line = await self._line()
        if not line:
            await asyncio.sleep(LONG_PAUSE)
            return Reply(self.name, 0.0, 0.0, error=f"the process of {self.name} has ended")
        return Reply(**json.loads(line))

    async def end(self) -> None:
        """Let it release its leases and end."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), EXIT_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()

    def stop(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def _write(self, command: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")

    async def _line(self) -> bytes:
        assert self.process.stdout is not None
        return await self.process.stdout.readline()


class Race:
    """The tasks that let the racers compete. Each task has lock names of its own."""

    def __init__(self, judge: Judge, racers: Sequence[RacerProcess], sleeper: RacerProcess, prefix: str) -> None:
        self._judge = judge
        self._racers = racers
        self._sleeper = sleeper
        self._prefix = prefix

    def tasks(self, *, has_fire_times: bool) -> list[Coroutine[Any, Any, None]]:
        names = [f"{self._prefix}expiry-{number}" for number in range(EXPIRING)]
        return [
            self._rounds(f"{self._prefix}rounds"),
            *([self._fire_times(f"{self._prefix}fire-times")] if has_fire_times else []),
            *map(self._expiry, names),
            *([self._stopped(f"{self._prefix}stopped")] if CAN_STOP else []),
            self._clock(f"{self._prefix}{CLOCK}"),
        ]

    async def _all(self, name: str, **arguments: Any) -> list[Reply]:
        """Let all racers acquire ``name`` at the same moment."""
        arguments |= {"name": name, "seconds": HOLD, "at": monotonic() + 0.005}
        return await asyncio.gather(*(racer.ask("acquire", **arguments) for racer in self._racers))

    def _racer(self, reply: Reply) -> RacerProcess:
        return next(racer for racer in self._racers if racer.name == reply.racer)

    async def _rounds(self, name: str) -> None:
        former: Reply | None = None
        while True:
            replies = await self._all(name)
            lease = self._judge.round(name, replies)
            if lease is not None:
                winner = self._racer(lease)
                self._judge.read(name, lease, await random.choice(self._racers).ask("read", name=name))
                if former is not None:
                    late = await self._racer(former).ask("late_copy", locked_by=former.locked_by, seconds=HOLD)
                    self._judge.late_copy(name, former, lease, late)
                self._judge.kept(name, "an extend", lease, await winner.ask("extend", name=name, seconds=HOLD))
                self._judge.kept(name, "a release", lease, await winner.ask("release", name=name))
                former = lease
                await asyncio.sleep(SHORT_PAUSE)
                continue
            for reply in replies:
                if reply.is_done:
                    await self._racer(reply).ask("release", name=name)
            await asyncio.sleep(LONG_PAUSE)

    async def _fire_times(self, name: str) -> None:
        fire_time = datetime(2024, 1, 1, tzinfo=UTC)  # in the past of every store; the name is new
        while True:
            before, fire_time = fire_time, fire_time + timedelta(seconds=1)
            replies = await self._all(name, fire_time=fire_time.isoformat(), releases=True)
            arguments = {"name": name, "seconds": HOLD, "releases": True}
            again, older = [
                await random.choice(self._racers).ask("acquire", fire_time=moment.isoformat(), **arguments)
                for moment in (fire_time, before)
            ]
            self._judge.fire_time(name, fire_time, [*replies, again], older)
            await asyncio.sleep(SHORT_PAUSE if any(reply.is_done for reply in replies) else LONG_PAUSE)

    async def _expiry(self, name: str) -> None:
        former: Reply | None = None
        while True:
            former = await self._granted(name, SHORT, former)

    async def _granted(self, name: str, seconds: float, former: Reply | None) -> Reply | None:
        """Let racers acquire ``name`` until a racer is granted it. Return that grant, or None after an error.

        :param former: the former grant of that name. It expires without a release. None if it is not known.
        """
        while True:
            reply = await random.choice(self._racers).ask("acquire", name=name, seconds=seconds)
            if not self._judge.good([reply]):
                await asyncio.sleep(LONG_PAUSE)
                return None  # it may have been granted
            is_late = self._judge.attempt(name, SHORT, former, reply)
            if reply.is_done or is_late:
                return reply if reply.is_done else None
            await asyncio.sleep(PAUSE)

    async def _stopped(self, name: str) -> None:
        while True:
            await asyncio.sleep(LONG_PAUSE)
            former = await self._sleeper.ask("acquire", name=name, seconds=SHORT)
            if not self._judge.good([former]) or not former.is_done:
                continue
            self._judge.granted(name, former)
            self._sleeper.stop(signal.SIGSTOP)
            try:
                holder = await self._granted(name, HOLD, former)
            finally:
                self._sleeper.stop(signal.SIGCONT)
            woken = await self._sleeper.ask("woken", name=name, seconds=HOLD)
            if holder is not None:
                self._judge.woken(name, former, holder, woken)
                release = await self._racer(holder).ask("release", name=name)
                self._judge.kept(name, "a release", holder, release)

    async def _clock(self, name: str) -> None:
        while True:
            one, other = random.sample(self._racers, 2)
            self._judge.clock(*[await racer.ask("read", name=name) for racer in (one, other, one)])
            await asyncio.sleep(PAUSE)


def torture(
    provider: LockProvider, store: str, lasts: timedelta, goes_on: Callable[[Judge, timedelta], bool]
) -> tuple[Judge, list[str]]:
    """Try the store for ``lasts``, or until Ctrl-C. Return the judge, and the records that could not be deleted.

    :param goes_on: called once a second with the judge and the time so far. False ends it early.
    :raises ProviderError: the store does not work at all.
    """
    prefix = f"shedlock-torture-{uuid4().hex[:8]}-"
    lease = provider.acquire(LockRequest(f"{prefix}{CLOCK}", SHORT))  # the clock is read with this record
    if lease is not None:
        provider.release(lease)
    programs = getattr(provider, "programs", None)
    judge = Judge(RACERS, getattr(programs, "clock_error", timedelta(0)).total_seconds())
    has_fire_times = getattr(provider, "has_fire_times", True)
    for what in (*([] if has_fire_times else ["fire times"]), *([] if CAN_STOP else ["stopped holders"])):
        del judge.needed[what]
    try:
        asyncio.run(_torture(store, judge, lasts, goes_on, prefix, has_fire_times))
    finally:
        left = _delete(provider, prefix)
    return judge, left


async def _torture(
    store: str,
    judge: Judge,
    lasts: timedelta,
    goes_on: Callable[[Judge, timedelta], bool],
    prefix: str,
    has_fire_times: bool,
) -> None:
    racers: list[RacerProcess] = []
    tasks: list[asyncio.Task[None]] = []
    try:
        for name in ("sleeper", *(f"racer-{number}" for number in range(1, judge.racers + 1))):
            racers.append(await RacerProcess.start(store, name, racers[0] if racers else None))
        for racer in racers:
            await racer.ready()
        race = Race(judge, racers[1:], racers[0], prefix)
        tasks = [asyncio.create_task(each) for each in race.tasks(has_fire_times=has_fire_times)]
        started = monotonic()
        while (passed := timedelta(seconds=monotonic() - started)) < lasts and goes_on(judge, passed):
            left = (lasts - passed).total_seconds()
            done, _ = await asyncio.wait(tasks, timeout=min(1.0, left), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # it never ends, so this raises
    except asyncio.CancelledError:
        pass  # Ctrl-C: report what was seen so far
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(racer.end() for racer in racers))


def _delete(provider: LockProvider, prefix: str) -> list[str]:
    """Delete the records with names that start with ``prefix`` when they are free. Return the names that are left."""
    until = monotonic() + EXIT_SECONDS
    while True:
        try:
            provider.prune(0, prefix)
            left = [record.name for record in provider.records(prefix)]
        except Exception as error:
            left = [f"{prefix}* ({one_line(error)})"]
        if not left or monotonic() > until:
            return left
        time.sleep(LONG_PAUSE)
