"""Nodes that call ``run_once`` for one key after another: its real decisions, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar
from unittest.mock import patch

from shedlock_py import Lease, ProviderError, TaskNotDone
from shedlock_py.guard import block, once
from shedlock_py.guard.steps import Attempt, Sleep, Step
from shedlock_py.model.record import ONCE
from shedlock_py.model.recovery import Watch
from shedlock_py.model.waiting import Waiting
from shedlock_py.runtime.program import drive_async
from shedlock_py.settings.options import LockOptions
from tests.faults.history import Operation
from tests.simulation.dice import Dice
from tests.simulation.schedule import EVERY_NODE
from tests.simulation.settings import PERIOD
from tests.simulation.workers import SimulatedKeepAlive, Worker
from tests.simulation.world import Cancelled, Process

WAIT, ENOUGH = 5.0, 1.5
"""Periods: how long a call waits; and how long it may take until it is done once no fault happens any more."""
RAISES = 0.5
"""Probability that a task raises in its first run for a key on one node."""


class TaskFailed(Exception):
    """Raised by a task."""


class Current:
    """The process that makes a decision: its clock, and its random numbers."""

    process: ClassVar[Process]

    @staticmethod
    def clock() -> float:
        return Current.process.clock()

    @staticmethod
    def random() -> float:
        return Current.process.random.random()


@contextmanager
def in_virtual_time() -> Iterator[None]:
    """Give ``run_once`` the clock and the random numbers of the current process while the block runs."""
    with ExitStack() as stack:
        for module in (once, block):
            stack.enter_context(patch.object(module, "monotonic", Current.clock))
        for decides in (Waiting, Watch):
            with_dice = partial(decides, random=Current.random)
            stack.enter_context(patch.object(once, decides.__name__, with_dice))
        yield


class OnceCall(once._Once):
    """A call of ``run_once``, with the steps of ``AsyncBlock``."""

    def __init__(self, worker: OnceWorker, key: str, wait: float) -> None:
        self._worker = worker
        self._process = worker.process
        at_most = timedelta(seconds=worker.job.at_most)
        options = LockOptions.parse(
            "run_once",
            {"lock_at_most_for": at_most, "keep_alive": True, "fire_time": ONCE, "recover": True},
        )
        super().__init__(key, None, wait, options)

    async def run(self, task: Callable[[Lease], Any]) -> bool:
        """Return whether this call has run the task."""
        process, provider = self._process, self._worker.provider
        Current.process = process
        request = self.begin()
        assert request is not None
        self._store: Any = provider
        self._sent_at = process.clock()
        lease: Lease | None = await drive_async(self.attempts(request), self._execute)
        if lease is None:
            return False
        self._worker.resource.holders[self._worker.job.name] = process.number
        if not lease.is_trusted():  # granted too late: like BaseBlock.start()
            self._is_unused = True
            await self._ended(lease, None)
            raise TaskFailed("granted too late")
        alive = SimulatedKeepAlive(process, provider, lease)
        alive.start()
        failure: BaseException | None = None
        try:
            await task(lease)
        except (ProviderError, Cancelled, TaskFailed) as error:
            failure = error
        await alive.stop()
        await self._ended(lease, failure)
        if failure is not None:
            raise failure
        return True

    async def _execute(self, step: Step) -> Any:
        process, worker = self._process, self._worker
        try:
            match step:
                case Attempt(request, None):
                    return await worker.provider.acquire(request, keep_alive=True)
                case Attempt():
                    return await step.sent_to(self._store)
                case Sleep(seconds):
                    return await process.sleep(seconds * worker.job.fires_every / PERIOD)  # times the pace
            began, record = process.world.now, await worker.provider.record(self.name)
            worker.recorder.note(Operation(process.name, "record", self.name, began, process.world.now, "done"))
            return record
        finally:
            Current.process = process

    async def _ended(self, lease: Lease, failure: BaseException | None) -> None:
        """Release the lease, or undo it."""
        self.finish(lease, failure)
        release = self.release_of(lease, self._store)
        if release is not None:
            with suppress(ProviderError):  # the error is in the history
                await release(lease)


class OnceWorker(Worker):
    """Calls ``run_once`` on one node: for each period a new key, repeatedly until it is done."""

    _key = -1
    """The number of the newest key."""
    _is_done = False
    _may_raise = False

    async def _cron(self, dice: Dice) -> None:
        every, world = self.job.fires_every, self.process.world
        number = max(self._key + self._is_done, int(world.now // every))
        begins = every * (number + 0.1 * dice())
        if world.now < begins:
            await self.process.sleep(begins - world.now)
        if self._key < number:
            self._key, self._may_raise = number, dice() < RAISES
        self._is_done = False
        self._is_done = await self._is_called(f"{self.job.name}-{number}", dice)
        if not self._is_done:
            await self.process.sleep(dice())

    async def _is_called(self, key: str, dice: Dice) -> bool:
        """Return whether the key is done."""
        world, job, provider = self.process.world, self.job, self.provider

        async def task(lease: Lease) -> None:
            raises, self._may_raise = self._may_raise, False
            outcome = "error"
            try:
                seconds = job.at_most * (0.3 if raises else 2.5) * dice()
                if raises:
                    await self.process.sleep(seconds)
                    raise TaskFailed("as it was to")
                if not await self._toil(lease, seconds, dice() < 0.2):
                    raise TaskFailed("the lease was lost")
                outcome = "done"
            finally:
                if self.process.is_alive:
                    self._note("task", lease, outcome, self.process.to_world(lease.trusted_until))

        began, outcome, error = world.now, "error", ""
        number = self.recorder.begin(Operation(self.process.name, "once", key, began))
        has_died = False
        try:
            outcome = "ran" if await OnceCall(self, key, WAIT * job.fires_every).run(task) else "learned"
        except GeneratorExit:
            has_died = True
            raise
        except Cancelled:
            outcome = "cancelled"
            raise
        except TaskNotDone as failure:
            error = f"TaskNotDone: {failure}"
            if provider.is_calm(EVERY_NODE, max(began, world.now - ENOUGH * job.fires_every), world.now):
                outcome = "stuck"
        except TaskFailed as failure:
            outcome, error = "raised", str(failure)
        except ProviderError as failure:
            error = str(failure)
        finally:
            if not has_died:
                self.recorder.end(number, world.now, outcome, error=error)
                world.log.counts[f"once {outcome}"] += 1
                world.log.add(world.now, self.process.name, "run_once {}: {} {}", key, outcome, error)
        return outcome in ("ran", "learned")
