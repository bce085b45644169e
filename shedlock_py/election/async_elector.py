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

from shedlock_py.election.base import Callback, CallbackCall, Elector, parse_timeout
from shedlock_py.election.demotion import Demotion, leader_of
from shedlock_py.election.program import PENDING, Command, Do, Election, Wait
from shedlock_py.election.settings import ElectionSettings, Takeover
from shedlock_py.events import logger
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.record import LockRecord
from shedlock_py.provider import AsyncLockProvider, LockProvider, verify_of
from shedlock_py.runtime.asyncio_tools import ABANDON_SECONDS
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.program import drive_async
from shedlock_py.settings.lookup import as_async_provider
from shedlock_py.settings.urls import async_provider_from_text


class AsyncLeaderElector(Elector):
    """:class:`LeaderElector` for asyncio: ``async with AsyncLeaderElector(provider, "scheduler") as elector: …``

    Callbacks may be coroutine functions. Other callbacks are called on the event loop and must be quick. A provider for
    ordinary functions is called in worker threads.
    """

    def __init__(
        self,
        provider: AsyncLockProvider | LockProvider | str,
        name: str,
        *,
        lease_duration: Duration = "15s",
        renew_deadline: Duration | None = None,
        retry_period: Duration | None = None,
        holder: str | None = None,
        takeover: Takeover = "expired",
        on_started_leading: Callback | None = None,
        on_stopped_leading: Callback | None = None,
        on_new_leader: Callable[[str], Any] | None = None,
    ) -> None:
        self._provider = as_async_provider(
            async_provider_from_text(provider) if isinstance(provider, str) else provider
        )
        self._waiters: set[Callable[[], None]] = set()
        settings = ElectionSettings.parse(name, lease_duration, renew_deadline, retry_period, holder, takeover)
        super().__init__(settings, on_started_leading, on_stopped_leading, on_new_leader)

    async def start(self) -> None:
        """See :meth:`LeaderElector.start`. The election runs in a task of the running event loop."""
        if self._is_running():
            raise RuntimeError(f"{self!r} was started already")
        if not self._owner.is_current():  # the parent process's event loops do not run here
            self._waiters = set()
        election = self._create_election()
        self._runner = asyncio.create_task(self._campaign(election), name=f"elector {self.name}")

    async def stop(self, timeout: Duration | None = None) -> bool:  # noqa: ASYNC109 (like LeaderElector; a Duration)
        """See :meth:`LeaderElector.stop`."""
        seconds = parse_timeout(timeout)
        task, election = self._runner, self._election
        if task is None or not self._is_running():  # another thread may be starting it right now
            return True
        self._request("stop")
        if self._is_in_callback():
            return False
        if task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({task}, timeout=seconds)
            return bool(task.done())
        await self._wait_for(lambda: election.is_over, seconds)
        return election.is_over

    def _is_running(self) -> bool:
        task = self._runner  # a task of a closed event loop is never done
        return self._is_here() and not task.done() and not task.get_loop().is_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    async def wait_until_leader(self, timeout: Duration | None = None) -> bool:  # noqa: ASYNC109 (like LeaderElector)
        """See :meth:`LeaderElector.wait_until_leader`."""
        seconds = parse_timeout(timeout)
        if seconds is not None or self._is_here():
            await self._wait_for(self._is_decided, seconds)
        return self.is_leader()

    async def leader(self) -> LockRecord | None:
        """See :meth:`LeaderElector.leader`."""
        return leader_of(await self._provider.record(self.name))

    async def verify(self, connection: object) -> None:
        """See :meth:`LeaderElector.verify`. The provider must be an ``AsyncSqlAlchemyLockProvider``."""
        await verify_of(self._provider)(self._lease_of_leader(), connection)

    async def take_over(self, timeout: Duration | None = None) -> bool:  # noqa: ASYNC109 (like LeaderElector)
        """See :meth:`LeaderElector.take_over`."""
        seconds = parse_timeout(timeout)
        if not self._is_here():
            return False
        if not self.is_leader():
            self._request("take_over")
        try:
            await self._wait_for(self._has_taken_over, seconds)
        finally:  # even if the caller is cancelled: it does not want to lead any more
            self._election.intents.discard("take_over")
        return self.is_leader()

    async def demote(self, cooldown: Duration = "0s") -> bool:
        """See :meth:`LeaderElector.demote`."""
        pause = parse_duration(cooldown, "cooldown", zero=True)
        former = await self.leader()
        if former is None:
            return False
        request = Demotion(former.holder, pause).request(self.name, self._settings.durations.renew_deadline)
        await self._provider.take_over(request, former)
        return True

    # The election's task

    async def _campaign(self, election: Election) -> None:
        try:
            await self._take_part(election)
        except GeneratorExit:  # the event loop was closed, or is the parent's: no caller is left
            raise
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            if election.lease is not None:
                logger.warning("election %r: cancelled before its callbacks returned: the lease expires", self.name)
            self._give_up(election)
            raise
        except BaseException as error:
            self._fail(election, error)
            if not isinstance(error, Exception):
                raise
        finally:
            election.is_over = True
            self._notify_waiters()

    async def _take_part(self, election: Election) -> None:
        """Carry out the program. If the task is cancelled, resign, and wait for that :data:`ABANDON_SECONDS` at most.

        If a signal handler raises ``SystemExit``, ``asyncio.run()`` cancels all tasks at once, so that no ``stop()``
        comes before. If the handler has interrupted this task, the exception is raised here.
        """
        try:
            await drive_async(election.run(), self._execute)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            election.intents.add("stop")
            if (task := asyncio.current_task()) is not None:
                task.uncancel()  # otherwise timeouts in this task do not work before Python 3.11.3
            with suppress(TimeoutError):
                async with asyncio.timeout(ABANDON_SECONDS):
                    await drive_async(election.run(), self._execute)
            raise

    async def _execute(self, command: Command) -> Any:
        self._notify_waiters()
        match command:
            case Wait(until):
                await self._wait_for(lambda: self._is_woken, until - monotonic())
                self._is_woken = False
                return None
            case Do(operation, args, seconds):
                request = asyncio.ensure_future(getattr(self._provider, operation)(*args))
                if seconds is not None:
                    done, _ = await asyncio.wait({request}, timeout=seconds)
                    if not done:  # ignore a late reply; read its exception, or asyncio logs it
                        request.add_done_callback(lambda late: late.cancelled() or late.exception())
                        return PENDING
                return await request

    async def _wait_for(self, condition: Callable[[], bool], seconds: float | None) -> None:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:  # in any thread
            try:
                loop.call_soon_threadsafe(changed.set)
            except RuntimeError:  # the event loop is closed, so no task waits
                self._waiters.discard(wake)

        self._waiters.add(wake)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while not condition():
                        await changed.wait()
                        changed.clear()
        finally:
            self._waiters.discard(wake)

    def _notify_waiters(self) -> None:
        for wake in list(self._waiters):
            wake()

    # Callbacks are called on the event loop. A coroutine gets its own task.

    def _start_call(self, call: CallbackCall) -> None:
        context = copy_context()
        context.run(self._enter_call, call)
        try:
            reply = context.run(call.callback)
            if inspect.isawaitable(reply):
                task = asyncio.get_running_loop().create_task(_awaited(reply), context=context)
                task.add_done_callback(partial(self._task_ended, call))
                return
        except (SystemExit, KeyboardInterrupt):  # they end the program
            self._end_call(call)
            raise
        except BaseException as error:
            self._end_call(call, error)
        else:
            self._end_call(call)

    def _task_ended(self, call: CallbackCall, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            self._end_call(call, task.exception())
        elif task.cancelling():  # by this program: the event loop ends, or on_stopped_leading has ended its work
            is_at_end = self._runner is None or self._runner.done() or self._runner.cancelling()
            is_work = self._election.is_at_work(call.term) and not is_at_end
            self._end_call(call, asyncio.CancelledError("its task was cancelled") if is_work else None)
        else:
            self._end_call(call, asyncio.CancelledError("the awaited operation was cancelled"))


async def _awaited(reply: Any) -> Any:
    return await reply
