"""Virtual time, the processes, and the coroutines that they run.

One heap of events decides the next step. Coroutines are ordinary Python coroutines. They wait for a :class:`Signal`,
and the world resumes them. No event loop and no thread takes part, so one seed has one course of events.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from random import Random
from typing import Any

from shedlock_py import ProviderError
from tests.simulation.dice import Dice, seed_of
from tests.simulation.log import EventLog

MICROSECOND = 1e-6
"""Timers are late, never early."""


class Cancelled(BaseException):
    """Raised when the caller of an operation gives up, as by a signal handler or a time limit of the job."""


class World:
    """Virtual time. ``now`` is seconds since the simulation began."""

    def __init__(self, seed: int, log: EventLog) -> None:
        self.seed = seed
        self.now = 0.0
        self.events = 0
        self.log = log
        self._heap: list[tuple[float, int, Process | None, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0

    def at(self, when: float, callback: Callable[..., object], *args: Any, process: Process | None = None) -> None:
        """Call ``callback`` at that moment, unless ``process`` has died. If it is paused, call it when it goes on.

        A past moment means now: a process that was paused may name a past moment.
        """
        when = max(when, self.now)
        self._number += 1
        life = 0 if process is None else process.life
        heappush(self._heap, (when, self._number, process, life, callback, args))

    def run_until(self, end: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end:
            when, _, process, life, callback, args = heappop(heap)
            if process is not None:
                if process.life != life:
                    continue
                if process.stands_until > when:
                    self._number += 1
                    heappush(heap, (process.stands_until, self._number, process, life, callback, args))
                    continue
            self.now = when
            self.events += 1
            callback(*args)
        self.now = end


class Signal:
    """An event that a coroutine waits for. It comes once, with a value or with an error."""

    __slots__ = ("also", "error", "is_done", "task", "value")

    def __init__(self) -> None:
        self.task: Task | None = None
        self.also: Signal | None = None
        """A second signal that comes with this signal, without its value."""
        self.is_done = False
        self.value: Any = None
        self.error: BaseException | None = None

    def __await__(self) -> Generator[Signal, None, Any]:
        if not self.is_done:
            yield self
        if self.error is not None:
            raise self.error
        return self.value

    def set(self, value: Any = None) -> None:
        if not self.is_done:
            self.is_done, self.value = True, value
            if self.task is not None:
                self.task.resume()
            if self.also is not None:
                self.also.set()

    def fail(self, error: BaseException) -> None:
        if not self.is_done:
            self.error = error
            self.set()


class Task:
    """A coroutine of a process."""

    __slots__ = ("coroutine", "ended", "process", "waits_for")

    def __init__(self, process: Process, coroutine: Coroutine[Signal, None, Any]) -> None:
        self.process = process
        self.coroutine = coroutine
        self.ended = Signal()
        """Comes with the result."""
        self.waits_for: Signal | None = None

    def resume(self, error: BaseException | None = None) -> None:
        """Run until the next signal that has not come yet."""
        ended = self.ended
        if ended.is_done:
            return
        self.waits_for = None
        try:
            signal = self.coroutine.send(None) if error is None else self.coroutine.throw(error)
        except StopIteration as stop:
            self.process.tasks.pop(self, None)
            ended.set(stop.value)
        except (Exception, Cancelled) as raised:
            self.process.tasks.pop(self, None)
            is_watched = ended.task is not None or ended.also is not None
            if not is_watched and not isinstance(raised, ProviderError | Cancelled):
                raise  # a fault of the simulation, or of the library
            ended.fail(raised)
        else:
            self.waits_for = signal
            signal.task = self

    def interrupt(self, error: BaseException) -> None:
        """Raise ``error`` where the coroutine waits; its signal comes too late."""
        signal = self.waits_for
        if signal is not None:
            signal.task, signal.is_done = None, True
            self.resume(error)


class Process:
    """A process on a machine with its own clock. It can die, and start again as a new process."""

    def __init__(self, world: World, number: int, name: str) -> None:
        self.world = world
        self.number = number
        self.machine = name
        self.name = name
        """The name of this process in the history. A restarted process has a new name."""
        self.life = 0
        """The number of processes so far."""
        self.is_alive = True
        self.stands_until = 0.0
        self.doom: Callable[[], object] | None = None
        """Called soon after the next request was sent."""
        self.tasks: dict[Task, None] = {}
        self.seed = seed_of(world.seed, name)
        self.random = Random(self.seed)
        self._rate = 1.0
        self._offset = self.random.uniform(1e3, 1e6)
        self._steps = 0
        self._claims = 0

    # The machine's monotonic clock

    def set_rate(self, rate: float) -> None:
        """Set how fast the clock runs. Call it before anything happens."""
        self._rate = rate

    def clock(self) -> float:
        return self._offset + self.world.now * self._rate

    def to_world(self, moment: float) -> float:
        """Return the virtual time when this clock shows ``moment``."""
        return (moment - self._offset) / self._rate

    def call_at(self, moment: float, callback: Callable[..., object], *args: Any) -> None:
        """Call ``callback`` when this clock shows ``moment``."""
        when = max(self.world.now, self.to_world(moment)) + MICROSECOND
        self.world.at(when, callback, *args, process=self)

    async def sleep(self, seconds: float) -> None:
        signal = Signal()
        self.call_at(self.clock() + seconds, signal.set)
        await signal

    # Coroutines

    def spawn(self, coroutine: Coroutine[Signal, None, Any]) -> Task:
        """Run ``coroutine`` as a task of this process, now."""
        task = Task(self, coroutine)
        self.tasks[task] = None
        task.resume()
        return task

    async def first(self, signal: Signal, seconds: float) -> bool:
        """Wait for ``signal``, ``seconds`` at most. Return whether it came in time."""
        if not signal.is_done:
            signal.also = either = Signal()
            self.call_at(self.clock() + seconds, either.set)
            await either
        return signal.is_done

    # Life

    def pause(self, seconds: float) -> None:
        self.stands_until = max(self.stands_until, self.world.now + seconds)

    def die(self) -> None:
        """End all tasks. Requests that are under way never find this process again."""
        self.is_alive = False
        self.life += 1
        self.doom = None
        self.stands_until = 0.0
        tasks, self.tasks = list(self.tasks), {}
        for task in tasks:
            task.ended.is_done = True
            task.coroutine.close()

    def revive(self) -> None:
        self.is_alive = True
        self.name = f"{self.machine}.{self.life}"

    # Random numbers

    def dice(self) -> Dice:
        """Return the dice for the next step of this process."""
        self._steps += 1
        return Dice(self.seed, self._steps)

    def new_claim_id(self) -> str:
        self._claims += 1
        return f"{self.seed:016x}{self._claims:016x}"
