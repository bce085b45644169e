"""Processes that acquire locks: workers, cron jobs, and operators who act by force."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from shedlock_py import Lease, LockRequest, ProviderError
from shedlock_py.guard.context import ActiveLease
from shedlock_py.guard.keepalive import STOP_SECONDS, BaseKeepAlive
from shedlock_py.model.lease import MOST_RECOVERIES
from shedlock_py.model.recovery import Acquire, Over, Recover, Wait, Watch
from shedlock_py.runtime.process import OwningProcess
from shedlock_py.runtime.program import drive_async
from tests.faults.history import Operation
from tests.simulation.dice import Dice
from tests.simulation.log import Recorder
from tests.simulation.network import QUICK
from tests.simulation.provider import SimulatedProvider
from tests.simulation.settings import Job
from tests.simulation.world import Cancelled, Process, Signal, Task

EPOCH = datetime(2027, 1, 15, 8, 0, tzinfo=UTC)
"""The wall clock when a simulation begins, and the store's clock."""
CHECKS = 20
"""Number of checks of a lease in the time of one lease."""
_OWNER = OwningProcess()


class Resource:
    """A resource that jobs use. It accepts no fencing token that is smaller than an accepted token."""

    def __init__(self) -> None:
        self.holders: dict[str, int] = {}
        """By lock: the number of the node that acquired it last."""
        self._greatest: dict[str, int] = {}

    def write(self, name: str, token: int) -> bool:
        if token < self._greatest.get(name, 0):
            return False
        self._greatest[name] = token
        return True


class Worker:
    """Runs a job on a node, again and again."""

    def __init__(
        self,
        process: Process,
        provider: SimulatedProvider,
        recorder: Recorder,
        resource: Resource,
        job: Job,
        remaining: Callable[[str], float],
    ) -> None:
        """:param remaining: for how long the store holds a lock at this moment."""
        self.remaining = remaining
        self.process = process
        self.provider = provider
        self.recorder = recorder
        self.resource = resource
        self.job = job
        self.is_stopping = False
        self.gives_up = False
        """Whether the caller of the next acquire or recover gives up in the middle."""
        self.task: Task | None = None
        self._request = LockRequest(job.name, job.at_most, job.at_least, process.machine)
        self._skew = process.random.uniform(-20, 20)
        self._fired = int((process.world.now + self._skew) // job.fires_every) if job.fires_every else 0

    async def run(self) -> None:
        while not self.is_stopping:
            dice = self.process.dice()
            try:
                await (self._cron(dice) if self.job.fires_every else self._plain(dice))
            except ProviderError:
                pass  # the error is in the history
            except Cancelled:
                pass

    async def _plain(self, dice: Dice) -> None:
        await self._wait_for_a_chance(dice)
        keeps_alive = dice() < 0.5
        lease = await self._acquire(self._request, dice, keeps_alive=keeps_alive)
        if lease is not None:
            await (self._kept_alive if keeps_alive else self._held)(lease, dice)

    async def _wait_for_a_chance(self, dice: Dice) -> None:
        """Wait for a random time; or until just after the end of the lease by the store's clock, when faults show."""
        seconds, at_expiry, delay = self.job.at_most * dice() * 1.2, dice() < 0.4, 0.03 * dice() ** 3
        remaining = self.remaining(self.job.name) if at_expiry else 0.0
        if 0 < remaining < 3 * self.job.at_most:
            await self.process.sleep(remaining + delay)
        else:
            await self.process.sleep(seconds)

    async def _cron(self, dice: Dice) -> None:
        """Wait for the next fire time by a wrong clock, and run the job for it."""
        every, process = self.job.fires_every, self.process
        wall_clock = process.world.now + self._skew
        if dice() < 0.5:
            self._fired = max(self._fired, int(wall_clock // every) - 1)  # fire times in between were missed
        self._fired += 1
        await process.sleep(max(0.0, self._fired * every - wall_clock) + 0.5 * dice())
        fire_time = EPOCH + timedelta(seconds=self._fired * every)
        request = LockRequest(self.job.name, self.job.at_most, self.job.at_least, process.machine, fire_time)
        lease = await self._acquire(request, dice, keeps_alive=False)
        if self.job.recovers:
            lease = lease or await self._recovered(request, (self._fired + 1) * every - self._skew, dice)
            if lease is not None:
                await self._held(lease, dice)
        elif lease is not None:
            await self._released_after(self._work(lease, dice, 3 * dice() * dice(), is_careless=False), lease)

    async def _recovered(self, request: LockRequest, until: float, dice: Dice) -> Lease | None:
        """Watch the run of a fire time that was skipped, until the next fire time.

        All replicas read at the same moment. Some take a living holder for dead, and some are stopped before they
        claim: the store must decide.
        """
        process, provider, lease = self.process, self.provider, None
        watch = Watch(request.fire_time, max_recoveries=MOST_RECOVERIES, random=lambda: 0.0)
        while lease is None and process.world.now < until and not self.is_stopping:
            record = await provider.record(request.name)
            if record is not None and record.is_held and dice() < 0.3:
                record = replace(record, read_at=record.lock_until)
            match watch.decide(record):
                case Wait(seconds):
                    await process.sleep(min(seconds, max(0.0, until - process.world.now)))
                case Recover(expected):
                    if dice() < 0.3:
                        await process.sleep(self.job.at_most * dice())
                    self._give_up(dice)
                    lease = await provider.recover(request, expected)
                case Acquire():
                    lease = await self._acquire(request, dice, keeps_alive=False)
                case Over():
                    break
        if lease is not None:
            self.resource.holders[request.name] = process.number
        return lease

    async def _acquire(self, request: LockRequest, dice: Dice, *, keeps_alive: bool) -> Lease | None:
        if not self.job.recovers or dice() < 0.5:
            self._give_up(dice)
        acquire = self.provider.acquire if self.process.number % 2 else self.provider.acquire_shielded
        lease = await acquire(request, keep_alive=keeps_alive)
        if lease is not None:
            self.resource.holders[request.name] = self.process.number
        return lease

    def _give_up(self, dice: Dice) -> None:
        """If this is due, make the caller give up in the middle of its next operation."""
        if self.gives_up and self.task is not None:
            self.gives_up = False
            self.process.call_at(self.process.clock() + QUICK * dice(), self.task.interrupt, Cancelled())

    async def _held(self, lease: Lease, dice: Dice) -> None:
        at_most, is_careless = self.job.at_most, dice() < 0.2
        seconds, forgets = at_most * 1.4 * dice() * dice(), dice() < 0.05
        work = self._work(lease, dice, seconds, is_careless=is_careless)
        if forgets:
            await work  # as if it had crashed
        else:
            await self._released_after(work, lease)

    async def _work(self, lease: Lease, dice: Dice, seconds: float, *, is_careless: bool) -> None:
        is_done, is_late = await self._toil(lease, seconds, is_careless), dice() < 0.2
        # A late task extends a lease that may have ended.
        while dice() < self.job.extends and (is_done or is_late):
            part = 1.0 if dice() < 0.5 else 0.2 + 1.3 * dice() ** 2
            if not await self.provider.extend(lease, round(self.job.at_most * part, 3)):
                return
            is_done = await self._toil(lease, seconds * dice(), is_careless)

    async def _kept_alive(self, lease: Lease, dice: Dice) -> None:
        seconds = self.job.at_most * 4 * dice() * dice()
        alive = SimulatedKeepAlive(self.process, self.provider, lease)
        alive.start()
        error = await _error_of(self._extending(alive, lease, seconds, dice))
        await alive.stop()
        await self.provider.release(lease)
        if error is not None:
            raise error

    async def _extending(self, alive: SimulatedKeepAlive, lease: Lease, seconds: float, dice: Dice) -> None:
        """Work, and perhaps extend the lease in between, like ``extend_lock_async``."""
        is_careless, extends = dice() < 0.2, dice() < 0.2
        if not await self._toil(lease, seconds, is_careless) or not extends:
            return
        alive.pause()
        try:
            while alive.is_busy(is_async=True):
                await self.process.sleep(0.1)
            if alive.is_loss_reported():
                return
            extended = await self.provider.extend(lease, round(self.job.at_most * (0.3 + 1.2 * dice()), 3))
        finally:
            alive.resume()
        if extended is None:
            alive.report_lost()
        else:
            await self._toil(lease, seconds, is_careless)

    async def _released_after(self, work: Coroutine[Signal, None, object], lease: Lease) -> None:
        error = await _error_of(work)
        await self.provider.release(lease)
        if error is not None:
            raise error

    async def _toil(self, lease: Lease, seconds: float, is_careless: bool) -> bool:
        """Work for so long, and write. Return False if the lease is not trusted any more."""
        process = self.process
        until, step = process.clock() + seconds, self.job.at_most / CHECKS
        while self._may_go_on(lease) or is_careless:
            left = until - process.clock()
            if left <= 0:
                self._write(lease)
                return True
            await process.sleep(min(left, step))
        return False

    def _may_go_on(self, lease: Lease) -> bool:
        process = self.process
        is_trusted = lease.is_trusted()
        self._note("check", lease, "trusted" if is_trusted else "untrusted", process.to_world(lease.trusted_until))
        return is_trusted

    def _write(self, lease: Lease) -> None:
        is_accepted = self.resource.write(lease.name, lease.fencing_token or 0)
        self._note("write", lease, "done" if is_accepted else "refused", self.process.to_world(lease.trusted_until))

    def _note(self, kind: str, lease: Lease, outcome: str, trusted: float) -> None:
        """Record an event that takes no time."""
        now, process = self.process.world.now, self.process
        self.recorder.note(
            Operation(
                process.name, kind, lease.name, now, now, outcome, lease.claim_id, lease.fencing_token,
                trusted_before=trusted, trusted_until=trusted,
            )
        )  # fmt: skip


class SimulatedKeepAlive(BaseKeepAlive):
    """The real decisions of keep-alive, in virtual time, as in the threads of ``ThreadKeepAlive``."""

    def __init__(self, process: Process, provider: SimulatedProvider, lease: Lease) -> None:
        active = ActiveLease(lease, provider, _OWNER)
        super().__init__(active, True, "continue", random=process.random.random)
        self._process = process
        self._provider = provider
        self._scheduled = 0
        self._idle: Signal | None = None

    def is_loss_reported(self) -> bool:
        return self._active.is_loss_reported

    def start(self) -> None:
        self._schedule()

    async def stop(self) -> None:
        """The task has ended: send no more heartbeats, and wait for the last heartbeat."""
        self._is_over = True
        self._scheduled += 1
        if self._in_flight:
            self._idle = Signal()
            await self._process.first(self._idle, STOP_SECONDS)
        self._report()

    def _schedule(self) -> None:
        if not self._is_over:
            self._scheduled += 1
            self._process.call_at(self._process.clock() + self._sleeps_for(), self._timer, self._scheduled)

    def _timer(self, number: int) -> None:
        if number == self._scheduled:
            self.wake()

    def _start_heartbeat(self) -> None:
        self._process.spawn(self._send_heartbeat())

    async def _send_heartbeat(self) -> None:
        await drive_async(self._heartbeat(), lambda lock_for: self._provider.extend(self._lease, lock_for))
        if self._idle is not None and not self._in_flight:
            self._idle.set()
        self._schedule()
        self._report()

    def _start_report(self) -> None:
        self._report()

    def _must_raise(self, error: BaseException) -> bool:
        return isinstance(error, Cancelled | GeneratorExit)


async def _error_of(work: Coroutine[Signal, None, object]) -> BaseException | None:
    """Run ``work``, and return the error that ended it."""
    try:
        await work
    except (ProviderError, Cancelled) as error:
        return error
    return None
