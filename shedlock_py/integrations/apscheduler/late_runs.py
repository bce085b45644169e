"""Late runs: runs that begin later than their fire time.

A worker never waits. It returns a :class:`Later` for a run that could not begin. :class:`LateRuns` has an entry for
each job and fire time: a :class:`_Retry` if the store was unreachable, a :class:`_Watched` if the run goes on elsewhere
and ``recover`` is on. An entry waits in the timer of the process, and then gives the run to the inner executor again. A
run that is given up is a ``RunMissed``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import RLock
from typing import Any

from apscheduler.events import EVENT_ALL_JOBS_REMOVED, EVENT_JOB_REMOVED, EVENT_JOBSTORE_REMOVED
from apscheduler.executors.base import MaxInstancesReachedError
from apscheduler.schedulers.base import STATE_PAUSED

from shedlock_py import ProviderFailed
from shedlock_py.errors import ConfigurationError
from shedlock_py.events import MissReason
from shedlock_py.integrations.apscheduler.events import Later, RunResult
from shedlock_py.integrations.apscheduler.fire_times import is_last_fire_time, next_fire_time_of
from shedlock_py.integrations.apscheduler.lock_names import JobKey
from shedlock_py.integrations.apscheduler.worker import JobProxy, LateKind
from shedlock_py.model.record import LockRecord
from shedlock_py.model.recovery import Acquire, Over, Recover, Wait, Watch
from shedlock_py.model.waiting import random_share
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.threads import WorkerPool, timer, worker_pool
from shedlock_py.settings.emit import emit
from shedlock_py.settings.options import is_async_provider

FIRST_PAUSE = 1.0
"""Seconds: the longest pause after the first attempt. Each further pause is up to twice as long."""
LONGEST_PAUSE = 10.0
SHORTEST_RETRY = timedelta(minutes=1)
"""The shortest time of retries, unless the next fire time is sooner."""
SCHEDULER_PAUSE = 1.0
"""Seconds between two checks of a due run whether the scheduler is still paused."""
_NOT_READ = datetime.min.replace(tzinfo=UTC)
"""The fire time of a run whose record was not read yet."""


class LateRuns:
    """The late runs of one executor, from its start to its shutdown. For any thread."""

    def __init__(self, scheduler: Any, inner: Any, logger: logging.Logger, within: timedelta | None) -> None:
        self.scheduler = scheduler
        self.logger = logger
        self.within = within
        self._inner = inner
        self._is_closed = False
        self._pool = WorkerPool(2, "shedlock-late-runs")
        self._loop_call = _loop_call(scheduler)
        self._loop = _loop_of(scheduler)
        self._mutex = RLock()
        self._entries: dict[tuple[JobKey, datetime], _Entry] = {}
        self._running: Counter[JobKey] = Counter()
        """Late runs in the inner executor."""
        self._kept: dict[JobKey, JobProxy] = {}
        """Runs on time that wait for a late run of the same job."""
        scheduler.add_listener(self._on_removal, EVENT_JOB_REMOVED | EVENT_ALL_JOBS_REMOVED | EVENT_JOBSTORE_REMOVED)

    # Called by the executor

    def keeps(self, proxy: JobProxy) -> bool:
        """Return whether a late run of this job still runs here. If so, submit ``proxy`` when the late run ends."""
        with self._mutex:
            if not self._running[proxy.key] or self._is_closed:
                return False
            older = self._kept.get(proxy.key)
            self._kept[proxy.key] = proxy
        self.logger.info('Job "%s" runs late, so its run of %s begins when it ends', proxy, proxy.run_times[-1])
        if older is not None:
            self.call(partial(older.all_missed, "no_room"))  # this thread holds the locks of the scheduler
        return True

    def submit_soon(self, proxy: JobProxy) -> None:
        """Submit a run that is to be caught up, and so is late from the start."""
        submit = partial(self._submit_caught_up, proxy)
        if self._loop_call is None:
            submit()
        else:
            self._loop_call(submit)

    def watch_last_run(self, proxy: JobProxy) -> None:
        """Read the record of a job once, at the start, and watch its last run if that has not ended."""
        assert not isinstance(proxy.lock, Exception | None)
        self._add(Later(proxy, _NOT_READ, proxy.lock), _LastRun)

    def watch(self, later: Later) -> None:
        """Watch the run of ``later.record``, which goes on elsewhere."""
        self._add(later, _Watched)

    def ended(self, result: RunResult) -> None:
        """Handle the result of a worker, after the events of its runs."""
        if result.is_late:
            unfinished = {later.run_time for later in result.later}
            with self._mutex:
                for run_time in result.run_times:
                    if run_time not in unfinished:
                        self._entries.pop((result.key, run_time), None)
        for later in result.later:
            self._add(later, _Retry if later.record is None else _Watched)
        if result.is_late:
            self._late_run_ended(result.key)

    def died(self, job_id: str) -> None:
        """Handle a run without a result: its worker process was killed."""
        with self._mutex:
            keys = [key for key in self._running if key[1] == job_id]
            for entry in list(self._entries.values()):
                if entry.is_submitted and entry.key[0] in keys:
                    self.remove(entry)
        for key in keys:
            self._late_run_ended(key)

    def close(self) -> None:
        """Give up the runs that have not begun, because the executor shuts down."""
        self.scheduler.remove_listener(self._on_removal)
        with self._mutex:
            self._is_closed = True
            entries = [entry for entry in self._entries.values() if not entry.is_submitted]
            kept = list(self._kept.values())
            self._entries.clear()
            self._kept.clear()
        for entry in entries:
            timer().cancel(entry.due)
            entry.give_up("cancelled")
        for proxy in kept:
            proxy.all_missed("cancelled")

    # Called by the entries

    def has(self, entry: _Entry) -> bool:
        with self._mutex:
            return self._entries.get(entry.key) is entry

    def take(self, entry: _Entry) -> bool:
        """Note that the inner executor gets the run. Return False if the run was given up."""
        with self._mutex:
            entry.is_submitted = self.has(entry)
            return entry.is_submitted

    def remove(self, entry: _Entry) -> bool:
        """Remove an entry, and return whether it was there."""
        with self._mutex:
            return self.has(entry) and self._entries.pop(entry.key) is entry

    def call(self, function: Callable[[], object]) -> None:
        """Call ``function`` in a thread or event loop that may submit jobs to the inner executor, not in the timer."""
        try:
            if self._loop_call is None:
                self._pool.submit(partial(self._logged, function))
            else:
                self._loop_call(function)
        except RuntimeError:  # the event loop is closed, or the system refuses a thread
            if not self._is_closed:
                self.logger.exception("late runs have ended: the executor cannot be called any more")
                self.close()
            self._logged(function)  # the function reports that its run is lost

    def submit(self, proxy: JobProxy) -> None:
        """Submit a late run to the inner executor.

        :raises MaxInstancesReachedError: all instances of the job run.
        """
        proxy = replace(proxy, submitted_at=datetime.now(UTC))
        with self._mutex:
            self._running[proxy.key] += 1
        try:
            self._inner.submit_job(proxy, proxy.run_times[-1:])
        except BaseException:
            self._late_run_ended(proxy.key)
            raise

    def read(self, entry: _Reader) -> None:
        """Read the record for ``entry``, and give it the result, in any thread."""
        self._pool.submit(partial(self._logged, partial(self._read, entry)))

    def is_paused(self) -> bool:
        """Return whether the scheduler is paused."""
        return bool(self.scheduler.state == STATE_PAUSED)

    # Private

    def _add(self, later: Later, kind: type[_Entry]) -> None:
        key = (later.proxy.key, later.run_time)
        with self._mutex:
            is_closed = self._is_closed
            entry = self._entries.get(key)
            if entry is None or (kind is _Watched and not isinstance(entry, _Watched)):
                entry = kind(self, later)
                if not is_closed:
                    self._entries[key] = entry
        if is_closed:
            entry.later = later
            entry.give_up("cancelled")
        else:
            entry.again(later)

    def _submit_caught_up(self, proxy: JobProxy) -> None:
        try:
            self.submit(proxy)
        except MaxInstancesReachedError:
            self.logger.warning('Job "%s" runs, so its run of %s is not caught up', proxy, proxy.run_times[-1])
        except Exception:
            if not self._is_closed:
                self.logger.exception('the last run of job "%s" cannot be caught up', proxy)

    def _late_run_ended(self, key: JobKey) -> None:
        with self._mutex:
            if self._running[key] > 1:
                self._running[key] -= 1
                return
            del self._running[key]
            kept = self._kept.pop(key, None)
        if kept is not None:
            self.call(partial(self._submit_kept, kept))

    def _submit_kept(self, proxy: JobProxy) -> None:
        kept = replace(proxy, late="kept", submitted_at=datetime.now(UTC))
        try:
            self._inner.submit_job(kept, kept.run_times[-1:])
        except Exception as error:
            if not (isinstance(error, MaxInstancesReachedError) or self._is_closed):
                self.logger.exception('Error submitting job "%s"', proxy)
            proxy.all_missed("cancelled" if self._is_closed else "no_room")

    def _read(self, entry: _Reader) -> None:
        name = entry.later.request.name
        future: Future[LockRecord | None]
        try:
            provider = entry.later.proxy.store(name)
            if is_async_provider(provider):
                future = _read_async(provider, name, self._loop)
            else:
                future = worker_pool(provider, "requests").submit(partial(provider.record, name))
        except ConfigurationError as error:  # at the start, before any run has needed the provider
            if self.remove(entry):
                self.logger.warning('runs of job "%s" are not recovered here: %s', entry.later.proxy.job.id, error)
            return
        except Exception:
            if self.remove(entry):
                self.logger.exception('the run of job "%s" that goes on elsewhere cannot be watched', entry.later.proxy)
            return
        future.add_done_callback(partial(self._has_read, entry))

    def _has_read(self, entry: _Reader, future: Future[LockRecord | None]) -> None:
        if future.cancelled():
            return  # the event loop has ended
        error = future.exception()
        if error is None:
            entry.decide(future.result())
            return
        if isinstance(error, Exception) and self.has(entry) and not entry.has_warned:
            entry.has_warned = True
            emit(ProviderFailed(entry.later.request.name, "record", error))
        entry.wait(entry.next_pause())

    def _logged(self, function: Callable[[], object]) -> None:
        try:
            function()
        except Exception:
            self.logger.exception("a late run has failed")

    def _on_removal(self, event: Any) -> None:
        """Drop the runs of jobs that the application has removed."""
        job_id, store = getattr(event, "job_id", None), getattr(event, "jobstore", getattr(event, "alias", None))
        with self._mutex:
            entries = [
                entry
                for (key, _), entry in self._entries.items()
                # APScheduler itself removes a job when it submits the last run.
                if store in (None, key[0]) and job_id in (None, key[1]) and entry.following is not None
            ]
            for entry in entries:
                self.remove(entry)
            for key in [key for key in self._kept if store in (None, key[0]) and job_id in (None, key[1])]:
                if job_id is None or next_fire_time_of(self._kept[key].job.trigger, self._kept[key].run_times[-1]):
                    del self._kept[key]
        for entry in entries:
            timer().cancel(entry.due)


class _Entry:
    """A fire time of a job that will or may run late."""

    def __init__(self, runs: LateRuns, later: Later) -> None:
        self.runs = runs
        self.later = later
        self.key = (later.proxy.key, later.run_time)
        self.following = None
        if later.run_time is not _NOT_READ:
            self.following = next_fire_time_of(later.proxy.job.trigger, later.run_time)
        self.is_submitted = False
        """The inner executor has the run."""
        self._longest_pause = FIRST_PAUSE

    def again(self, later: Later) -> None:
        """Handle a run that was not granted."""
        raise NotImplementedError

    def due(self) -> None:
        """Handle the call of the timer."""
        raise NotImplementedError

    def give_up(self, reason: MissReason) -> None:
        """Give up the run."""

    def wait(self, seconds: float) -> None:
        if self.runs.has(self):
            timer().schedule(self.due, monotonic() + seconds)

    def next_pause(self) -> float:
        pause = self._longest_pause * (1 + random_share()) / 2
        self._longest_pause = min(self._longest_pause * 2, LONGEST_PAUSE)
        return pause

    def begin(self, late: LateKind, expected: LockRecord | None = None) -> None:
        """Give the run to the inner executor, if the scheduler is not paused."""
        if self.runs.is_paused():
            self.wait(SCHEDULER_PAUSE)
            return
        later = self.later
        proxy = replace(
            later.proxy,
            run_times=[later.run_time],
            lock=later.request,
            late=late,
            expected=expected,
            is_catch_up=later.proxy.is_catch_up and late == "retry",  # a watched run was granted, so it was not missed
        )
        self.runs.call(partial(self._submit, proxy))

    def _submit(self, proxy: JobProxy) -> None:
        if not self.runs.take(self):
            return
        try:
            self.runs.submit(proxy)
        except MaxInstancesReachedError:
            self.is_submitted = False
            self.wait(self.next_pause())
        except Exception:
            self.runs.remove(self)
            self.runs.logger.exception('Error submitting job "%s"', proxy)
            self.give_up("cancelled")


def retry_until(
    run_time: datetime, following: datetime | None, misfire_grace_time: int | None, within: timedelta | None
) -> datetime | None:
    """Return until when a run is tried again, or None for ever: it may be late by any time, and no run follows."""
    ends = [] if following is None else [following]
    if misfire_grace_time is not None:
        ends.append(run_time + max(SHORTEST_RETRY, timedelta(seconds=misfire_grace_time), within or timedelta(0)))
    return min(ends, default=None)


class _Retry(_Entry):
    """A run that is tried again until it is too late, because the store was unreachable."""

    def __init__(self, runs: LateRuns, later: Later) -> None:
        super().__init__(runs, later)
        self.until = retry_until(later.run_time, self.following, later.proxy.job.misfire_grace_time, runs.within)
        self._has_warned = False

    def again(self, later: Later) -> None:
        self.later, self.is_submitted = later, False
        pause, left = self.next_pause(), self._left()
        if left <= 0:
            self._end()
            return
        if not self._has_warned:
            self._has_warned = True
            until = "until it is shut down" if self.until is None else f"until {self.until}"
            message = 'Run of job "%s" (scheduled at %s) is tried again %s, because its store is unreachable: %s'
            self.runs.logger.warning(message, later.proxy, later.run_time, until, later.error)
        self.wait(min(pause, left))

    def due(self) -> None:
        if self._left() <= 0:
            self._end()
        else:
            self.begin("retry")

    def _left(self) -> float:
        return LONGEST_PAUSE if self.until is None else (self.until - datetime.now(UTC)).total_seconds()

    def _end(self) -> None:
        if self.runs.remove(self):
            self.runs.call(partial(self.give_up, "unreachable"))  # listeners may be slow

    def give_up(self, reason: MissReason) -> None:
        proxy, run_time, error = self.later.proxy, self.later.run_time, self.later.error
        assert error is not None
        if not proxy.is_catch_up:  # a run to catch up may have run on time
            late = datetime.now(UTC) - run_time
            proxy.missed(run_time, reason, f"tried for {late.total_seconds():.0f} s: {error}")
        self.runs.scheduler._dispatch_event(proxy.not_run(run_time, error))


class _Reader(_Entry):
    """An entry that reads the lock record."""

    has_warned = False
    """An event has reported the first failed read."""

    def due(self) -> None:
        self.runs.read(self)

    def decide(self, record: LockRecord | None) -> None:
        """Decide by the record."""
        raise NotImplementedError


class _Watched(_Reader):
    """A run that goes on elsewhere. The entry watches its lease, to recover the run if it never ends."""

    def __init__(self, runs: LateRuns, later: Later) -> None:
        super().__init__(runs, later)
        self._watch = Watch(later.request.fire_time, later.proxy.max_recoveries)
        self._next: Recover | Acquire | None = None
        """The decision to begin the run, if any."""

    def again(self, later: Later) -> None:
        self.later, self.is_submitted, self._next = later, False, None
        if later.record is None:
            self.wait(self.next_pause())
        else:
            self.decide(later.record)

    def due(self) -> None:
        if self._next is None:
            super().due()
        else:
            self._begin_next()

    def give_up(self, reason: MissReason) -> None:
        if self._next is not None:
            self.later.proxy.missed(self.later.run_time, reason)

    def decide(self, record: LockRecord | None) -> None:
        match self._watch.decide(record):
            case Wait(seconds):
                self.wait(seconds)
            case Recover() | Acquire() as decision:
                self._next = decision
                self._begin_next()
            case Over(lost=None):
                self.runs.remove(self)
            case Over(lost=reason):
                if self.runs.remove(self):
                    self.runs.call(partial(self.later.proxy.missed, self.later.run_time, reason))

    def _begin_next(self) -> None:
        self.begin("watched", self._next.expected if isinstance(self._next, Recover) else None)


class _LastRun(_Reader):
    """The last run of a job before the start of this process. It is watched if it has not ended."""

    def again(self, later: Later) -> None:
        self.due()

    def decide(self, record: LockRecord | None) -> None:
        if not self.runs.remove(self) or record is None or record.is_released is not False:
            return
        proxy, request, last = self.later.proxy, self.later.request, record.last_fire_time
        if last is None:
            return
        if request.fire_time is None:
            is_last = is_last_fire_time(proxy.job.trigger, last, datetime.now(UTC))
        else:  # the decorator gives the fire time
            is_last = last == request.fire_time
        if is_last:
            later = Later(proxy, last, replace(request, fire_time=last), record=record)
            self.runs.watch(later)


def _read_async(provider: Any, name: str, loop: Any) -> Future[LockRecord | None]:
    reading = provider.record(name)
    try:
        return asyncio.run_coroutine_threadsafe(reading, loop)
    except RuntimeError:  # the loop is closed
        reading.close()
        raise


def _loop_of(scheduler: Any) -> Any:
    """Return the event loop of an asyncio or Tornado scheduler, or None: other schedulers never await jobs."""
    ioloop = getattr(scheduler, "_ioloop", None)
    return getattr(scheduler, "_eventloop", None) if ioloop is None else getattr(ioloop, "asyncio_loop", None)


def _loop_call(scheduler: Any) -> Callable[[Callable[[], object]], object] | None:
    """Return how to call a function where ``scheduler`` submits jobs, or None if any thread may submit them."""
    call: Callable[[Callable[[], object]], object] | None = None
    if (loop := getattr(scheduler, "_eventloop", None)) is not None:
        call = loop.call_soon_threadsafe
    elif (ioloop := getattr(scheduler, "_ioloop", None)) is not None:
        call = ioloop.add_callback
    elif (reactor := getattr(scheduler, "_reactor", None)) is not None:
        call = reactor.callFromThread
    elif type(scheduler).__name__ == "GeventScheduler":
        from gevent import get_hub  # the scheduler has loaded it

        call = get_hub().loop.run_callback_threadsafe
    return call
