"""``run_once``: a task that runs once per key in the whole fleet, until it has succeeded.

A key is a lock name. The fire time of its run is :data:`~shedlock_py.model.record.ONCE` in every call, so the store
grants it once, even if two processes start at the same moment. The run is over when its lease was released. A task that
raises gives the fire time back. The run of a process that died is recovered, as under ``recover=True``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from shedlock_py.errors import ConfigurationError, ProviderUnreachable, TaskNotDone, hidden_frames
from shedlock_py.events import logger
from shedlock_py.guard.block import AsyncBlock, BaseBlock, Block
from shedlock_py.guard.functions import refuse_other_than_function, refuse_unfinished, refuse_unfinished_function
from shedlock_py.guard.skips import Skipped, gates_of
from shedlock_py.guard.steps import Attempt, Read, SkippedNow, Step
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.lease import MOST_RECOVERIES, Lease
from shedlock_py.model.record import ONCE, LockRecord
from shedlock_py.model.recovery import Acquire, Over, Recover, Watch
from shedlock_py.model.request import LockRequest
from shedlock_py.model.waiting import Waiting
from shedlock_py.provider import AsyncLockProvider, LockProvider, check_store, undo_of
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.program import Program
from shedlock_py.settings.defaults import lock_request
from shedlock_py.settings.off_switch import is_active
from shedlock_py.settings.options import LockOptions, OnLost

__tracebackhide__ = hidden_frames
ProviderT = TypeVar("ProviderT")
_UNFILLED = re.compile(r"\{[^{}]*\}|\$[\w({]")
"""A field of an f-string or a template, or a variable of a shell."""


class OnceOptions(TypedDict, Generic[ProviderT], total=False):
    provider: ProviderT | str | None
    lock_at_most_for: Duration
    on_lost: OnLost


def run_once(
    key: str, task: Callable[[], object], wait: Duration = "5m", **options: Unpack[OnceOptions[LockProvider]]
) -> bool:
    """Run ``task()`` once per key in the whole fleet, until it has succeeded: ``run_once("migrate-v42", migrate)``.

    Return True if this call has run the task, and False if another call has, before or while this call waited. All
    callers return only when it is done. If the task raises, this caller gets the exception, and the next waiting caller
    tries. If its process dies, a waiting caller takes over when the lease ends. So the task must be idempotent: it runs
    again from its beginning. It also runs again if the store was unreachable when it succeeded.

    :param key: names the task and its version. It is also the lock name, 1 to 64 characters: ``shedlock list`` shows it
        as done, and a job must not use the same name. To let it run again: ``shedlock once --forget KEY``.
    :param wait: how long to wait for another replica that runs the task, and for an unreachable store ("5m", seconds,
        ``timedelta``). Zero: do not wait.
    :param options: ``provider``, ``lock_at_most_for`` and ``on_lost``, as for :func:`hold`. The lease lasts
        ``lock_at_most_for``, one minute by default, and is kept alive while the task runs.
    :raises TaskNotDone: the time is over, and the task is not done; or it was begun 16 times and never ended.
    :raises ConfigurationError: a value that cannot work; or ``key`` is the lock name of a job with fire times.
    :raises ProviderError: the store failed, or it was still unreachable when the time was over.
    """
    refuse_other_than_function("run_once", task)
    refuse_unfinished_function(task, "await run_once_async(…)")
    with OnceBlock(key, task, wait, _parsed("run_once", options, is_async=False)) as lease:
        if lease is not None:
            refuse_unfinished(task())
    return lease is not None


async def run_once_async(
    key: str,
    task: Callable[[], Awaitable[object]],
    wait: Duration = "5m",
    **options: Unpack[OnceOptions[AsyncLockProvider | LockProvider]],
) -> bool:
    """:func:`run_once` for async code: ``task()`` is awaited."""
    refuse_other_than_function("run_once_async", task)
    async with AsyncOnceBlock(key, task, wait, _parsed("run_once_async", options)) as lease:
        if lease is not None:
            work = task()
            if not inspect.isawaitable(work):
                raise TypeError(
                    f"{task!r} returned {type(work).__name__}, nothing to await: call run_once({key!r}, …), or in "
                    f"async code run_once_async({key!r}, lambda: asyncio.to_thread(…))"
                )
            refuse_unfinished(await work, was_awaited=True)
    return lease is not None


def _parsed(function: str, given: Any, *, is_async: bool = True) -> LockOptions:
    """Return the options of a call.

    :raises TypeError: an option that only other guards have.
    """
    for name in given:
        if name not in OnceOptions.__annotations__:
            known = ", ".join(OnceOptions.__annotations__)
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}; its options are: wait, {known}")
    options = {"lock_at_most_for": "1m", **given, "keep_alive": True, "fire_time": ONCE, "recover": True}
    return LockOptions.parse(function, options, is_async=is_async)


def refuse_unfilled(key: object) -> None:
    """Refuse a key with an unfilled field: each release would have the same key.

    :raises ConfigurationError: the key has such a field.
    """
    if isinstance(key, str) and (found := _UNFILLED.search(key)):
        raise ConfigurationError(
            f"key {key!r}: nothing fills in {found[0]!r}, so each release would have this key, and only the first one "
            f'would run the task. In Python, write f"…" in front of it. In a shell, put the key in double quotes'
        )


class _Once(BaseBlock):
    """A block with other attempts, and another end for a task that raised."""

    def __init__(self, key: str, task: object, wait: Duration, options: LockOptions) -> None:
        self._wait = parse_duration(wait, "wait", zero=True)
        refuse_unfilled(key)
        request = lock_request(key, options.lock_at_most_for, timedelta(0), ONCE)
        super().__init__(request, LockOptions(**_without_request(options)), gates=gates_of(task))
        self._has_failed = False

    def begin(self) -> LockRequest | None:
        """Return the request.

        :raises ConfigurationError: the running code is inside a lease of that name.
        """
        request = super().begin()
        if self.enclosing_lease is not None:
            raise ConfigurationError(f"run_once({self.name!r}) inside of a lease of that name: give the key its own")
        if request is None:
            raise TaskNotDone(str(self.skip))  # a gate has refused it
        return request

    def attempts(self, request: LockRequest) -> Program[Step, Any, Lease | None]:
        """Read the record again and again, and acquire or recover as soon as possible. Return None if the task is done.

        :raises TaskNotDone: the time is over, or it cannot be known whether the task is done.
        """
        lease: Lease | None
        if not is_active():
            lease = yield Attempt(request)
            return lease
        check_store(self._store, "run_once", "recover", "undo")
        waiting, watch = Waiting(self._wait, self._sent_at), Watch(ONCE, MOST_RECOVERIES)
        is_waiting = False
        while True:
            record: LockRecord | None = None
            failure: ProviderUnreachable | None = None
            try:
                record = yield Read()
                self._replied_at = monotonic()
                lease = None
                match Acquire() if record is None else watch.decide(record):
                    case Acquire():
                        lease = yield Attempt(request)
                    case Recover(expected):
                        lease = yield from self._recover(request, expected)
                    case Over() as over:
                        assert record is not None
                        if self._is_done(over, record):
                            return None
                if lease is not None:
                    return lease
            except ProviderUnreachable as error:
                self._warn_once(error)
                failure = error
            except (TaskNotDone, ConfigurationError):
                raise
            except Exception as error:
                self.failed("acquire", error)
                raise
            pause = waiting.pause(monotonic(), record)
            if pause is None:
                raise self._too_late(record, failure)
            if not is_waiting and failure is None:
                is_waiting = True
                logger.info("run_once(%r): waiting for %s", self.name, record.holder if record else "another replica")
            try:
                yield from self._slept(pause)
            except SkippedNow:
                raise TaskNotDone(str(self.skip)) from None

    def _is_done(self, over: Over, record: LockRecord) -> bool:
        """Return whether the task has succeeded. False: the record will change.

        :raises TaskNotDone: it cannot be known.
        """
        if over.why == "released":
            self.skipped(Skipped(self.name, "already_ran"))
            return True
        if over.why == "later_fire_time":
            raise ConfigurationError(f"run_once({self.name!r}): a job has this lock name; give the key its own")
        if record.is_held:
            return False  # paused
        why = {
            "paused": f"it was {record.holder}, and the record does not say whether it was done before",
            "too_many_recoveries": f"it was begun {MOST_RECOVERIES + 1} times, and its process died each time",
        }.get(over.lost or over.why, "its lock record does not say whether the run has ended")
        self.skipped(Skipped(self.name, "held"))
        raise TaskNotDone(
            f"run_once({self.name!r}) does not run: {why}. To let it run: shedlock once --forget {self.name}"
        )

    def _too_late(self, record: LockRecord | None, failure: Exception | None) -> Exception:
        """Emit the event of the end of the wait, and return its error."""
        if failure is not None:
            self.failed("acquire", failure)
            return failure
        holder = record.holder if record is not None and record.is_held else None
        self.skipped(Skipped(self.name, "held", holder))
        who = "" if holder is None else f"; {holder} runs it"
        if record is not None and record.is_paused:
            who = f"; it is {holder}. To end the pause: shedlock resume {self.name}"
        return TaskNotDone(f"run_once({self.name!r}) was not done within {self._wait}{who}")

    def finish(self, lease: Lease, failure: BaseException | None) -> None:
        self._has_failed = failure is not None and not (isinstance(failure, SystemExit) and not failure.code)
        super().finish(lease, failure)

    def cut_short(self, lease: Lease) -> None:
        """Do nothing: the caller gets the exception, and the fire time is given back."""

    def release_of(self, lease: Lease, store: LockProvider | AsyncLockProvider) -> Callable[[Lease], Any] | None:
        """Undo the lease of a task that raised, so that its fire time can be granted again."""
        release = super().release_of(lease, store)
        return release if release is None or not self._has_failed else undo_of(store)


class OnceBlock(_Once, Block): ...


class AsyncOnceBlock(_Once, AsyncBlock): ...


def _without_request(options: LockOptions) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if name not in ("lock_at_most_for", "fire_time")}
