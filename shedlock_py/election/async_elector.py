"""The elector for asyncio."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, Self

from shedlock_py._clock import monotonic
from shedlock_py._program import run_async
from shedlock_py.config import as_async_provider
from shedlock_py.durations import Duration, parse_duration
from shedlock_py.election.base import Elector, moment_of, parse_timeout
from shedlock_py.election.callbacks import Callback, CallbackCall, Callbacks
from shedlock_py.election.commands import PENDING, Command, Do, Wait
from shedlock_py.election.demotion import leader_of
from shedlock_py.election.program import Election
from shedlock_py.election.settings import ElectionSettings
from shedlock_py.events import logger
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.record import LockRecord
from shedlock_py.urls import async_provider_from_url


class AsyncLeaderElector(Elector):
    """:class:`LeaderElector` for asyncio: ``async with AsyncLeaderElector(provider, "scheduler") as elector: …``

    Callbacks may be coroutine functions; others are called on the event loop and must be quick. A provider for ordinary
    functions is called in worker threads.
    """

    def __init__(
        self,
        provider: AsyncLockProvider | LockProvider | str,
        name: str,
        *,
        lease_duration: Duration = "15s",
        renew_deadline: Duration = "10s",
        retry_period: Duration = "2s",
        holder: str | None = None,
        takeover: str = "expired",
        on_started_leading: Callback | None = None,
        on_stopped_leading: Callback | None = None,
        on_new_leader: Callable[[str], Any] | None = None,
    ) -> None:
        self._provider = as_async_provider(async_provider_from_url(provider) if isinstance(provider, str) else provider)
        self._task: asyncio.Task[None] | None = None
        self._woken: _Signal | None = None
        self._waiters: set[_Signal] = set()
        settings = ElectionSettings.parse(name, lease_duration, renew_deadline, retry_period, holder, takeover)
        callbacks = _TaskCallbacks(name, self._wake, on_started_leading, on_stopped_leading, on_new_leader)
        super().__init__(settings, callbacks)

    async def start(self) -> None:
        """See :meth:`LeaderElector.start`; in a task of the running event loop."""
        if self._takes_part():
            raise RuntimeError(f"{self!r} was started already")
        if not self._owner.is_current():  # the event loops of the parent process do not run here
            self._waiters = set()
        self._woken = _Signal()
        election = self._prepare_start()
        self._task = asyncio.create_task(self._campaign(election), name=f"elector {self.name}")

    async def stop(self, timeout: Duration | None = None) -> bool:  # noqa: ASYNC109 (as LeaderElector; a Duration)
        """See :meth:`LeaderElector.stop`."""
        until = moment_of(timeout)
        task, election = self._task, self._election
        if task is None or not self._takes_part():
            return True
        self._request("stop")
        if self._callbacks.include_current_code():
            return False
        if task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({task}, timeout=parse_timeout(timeout))
            return task.done()
        await self._wait_for(lambda: election.is_over, until)
        return election.is_over

    def _takes_part(self) -> bool:
        task = self._task
        if task is None or not self._is_here():
            return False
        return not task.done() and not task.get_loop().is_closed()  # a task of a closed event loop is never done

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    async def wait_until_leader(self, timeout: Duration | None = None) -> bool:  # noqa: ASYNC109 (likewise)
        """See :meth:`LeaderElector.wait_until_leader`."""
        until = moment_of(timeout)
        if until is not None or self._is_here():
            await self._wait_for(self._is_decided, until)
        return self.is_leader()

    async def leader(self) -> LockRecord | None:
        """See :meth:`LeaderElector.leader`."""
        return leader_of(await self._provider.record(self.name))

    async def take_over(self, timeout: Duration | None = None) -> bool:  # noqa: ASYNC109 (likewise)
        """See :meth:`LeaderElector.take_over`."""
        until = moment_of(timeout)
        if not self._is_here():
            return False
        if not self.is_leader():
            self._request("take_over")
        await self._wait_for(self._has_taken_over, until)
        self._election.intents.discard("take_over")
        return self.is_leader()

    async def demote(self, cooldown: Duration = "0s") -> bool:
        """See :meth:`LeaderElector.demote`."""
        pause = parse_duration(cooldown, "cooldown", zero=True)
        former = await self.leader()
        if former is None:
            return False
        await self._provider.take_over(self._demotion(former, pause))
        return True

    # The election's task

    async def _campaign(self, election: Election) -> None:
        try:
            await run_async(election.run(), self._execute)
        except GeneratorExit:  # its event loop was closed, or is the parent's
            election.abandon()
            raise
        except asyncio.CancelledError:
            if election.lease is not None:
                logger.warning("election %r: cancelled, and not stopped: the lease has to expire", self.name)
            self._give_up(election)
            raise
        except BaseException as error:
            self._fail(election, error)
            if not isinstance(error, Exception):
                raise
        finally:
            election.is_over = True
            self._notify_waiters()

    async def _execute(self, command: Command) -> Any:
        match command:
            case Wait(until):
                assert self._woken is not None
                return await self._woken.wait(until)
            case Do(operation, args, seconds):
                request = asyncio.ensure_future(getattr(self._provider, operation)(*args))
                if seconds is not None:
                    done, _ = await asyncio.wait({request}, timeout=seconds)
                    if not done:  # a late reply is ignored; read its exception, or asyncio logs that nothing did
                        request.add_done_callback(lambda late: late.cancelled() or late.exception())
                        return PENDING
                return await request

    async def _wait_for(self, condition: Callable[[], bool], until: float | None) -> None:
        signal = _Signal()
        self._waiters.add(signal)
        try:
            while not condition() and (until is None or monotonic() < until):
                await signal.wait(until)
        finally:
            self._waiters.discard(signal)

    def _wake(self) -> None:
        if self._woken is not None:
            self._woken.set()
        self._notify_waiters()

    def _notify_waiters(self) -> None:
        for waiter in list(self._waiters):
            waiter.set()


class _Signal:
    """An :class:`asyncio.Event` of the running event loop that any thread can set."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        with suppress(RuntimeError):  # the event loop is closed, so that no task waits
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, until: float | None) -> None:
        """Wait for the signal, until that moment, and clear it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if until is None else max(0.0, until - monotonic())):
                await self._event.wait()
        self._event.clear()


class _TaskCallbacks(Callbacks):
    """Callbacks that are called on the event loop. A coroutine gets a task of its own."""

    def _call(self, callbacks: list[Callback]) -> None:
        for callback in callbacks:
            self._start(self._begin(callback))

    def _start(self, call: CallbackCall) -> None:
        context = copy_context()
        context.run(self._enter, call)
        try:
            reply = context.run(call.callback)
            if inspect.isawaitable(reply):
                work = reply if inspect.iscoroutine(reply) else _awaited(reply)
                task = asyncio.get_running_loop().create_task(work, context=context)
                task.add_done_callback(partial(self._task_ended, call))
                return
        except Exception as error:
            self._end(call, error)
        except BaseException:  # sys.exit() ends the program
            self._end(call)
            raise
        else:
            self._end(call)

    def _task_ended(self, call: CallbackCall, task: asyncio.Task[Any]) -> None:
        self._end(call, None if task.cancelled() else task.exception())


async def _awaited(reply: Any) -> Any:
    return await reply
