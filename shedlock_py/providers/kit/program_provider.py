"""The sync and the async provider, made of :class:`StorePrograms` and a client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from shedlock_py.errors import ProviderError, hidden_frames
from shedlock_py.events import logger
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.lease import Lease
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import LockRequest, validate_name, validate_prefix
from shedlock_py.model.run import Run
from shedlock_py.provider import AsyncLockProvider, Check, LockProvider
from shedlock_py.providers.kit import locking
from shedlock_py.providers.kit.failures import TimedOut
from shedlock_py.providers.kit.operation import Undo, carry_out
from shedlock_py.providers.kit.options import DEFAULT_TIMEOUT
from shedlock_py.providers.kit.pausing import Pausing, resume
from shedlock_py.providers.kit.reading import read_recent_runs, read_runs
from shedlock_py.providers.kit.store_clients import AsyncStoreClient, StoreClient
from shedlock_py.providers.kit.store_programs import StorePrograms
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.program import Program, drive, drive_async
from shedlock_py.runtime.threads import WorkerPool, finish_at_exit

__tracebackhide__ = hidden_frames
T = TypeVar("T")

HISTORY_SECONDS = 1.0
"""The longest wait for the reply to a command that only writes history."""
_UNDO_WORKERS = 4
_NO_TIME_LEFT = "its earlier requests"


class _BaseProvider:
    programs: StorePrograms
    _client: Any

    def __repr__(self) -> str:
        shown = getattr(self._client, "shown", None)
        return object.__repr__(self) if shown is None else f"<{type(self).__name__} {shown}>"

    def _pruned(self, unused_for: Duration, prefix: str) -> Program[Any, Any, int]:
        return self.programs.prune(parse_duration(unused_for, "unused_for", zero=True), validate_prefix(prefix))

    def _is_all_said(self, error: ProviderError) -> bool:
        return isinstance(error.__cause__, Exception) and self.programs.is_all_said(error.__cause__)

    def _seconds_for(self, command: Any, until: float | None) -> float | None:
        seconds = None if until is None else max(0.0, until - monotonic())
        if isinstance(command, Undo):
            return seconds
        if seconds == 0:
            raise TimedOut(_NO_TIME_LEFT, sent=False)
        if getattr(command, "is_history", False):
            return HISTORY_SECONDS if seconds is None else min(seconds, HISTORY_SECONDS)
        return seconds


class ProgramProvider(_BaseProvider, LockProvider):
    """A :class:`LockProvider` from programs and a client."""

    def __init__(self, programs: StorePrograms, client: StoreClient) -> None:
        self.programs = programs
        self._client = client
        self._undo_workers = WorkerPool(_UNDO_WORKERS, "shedlock-undo")

    def acquire(self, request: LockRequest) -> Lease | None:
        return self._drive(locking.acquire(self.programs, request))

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return self._drive(locking.extend(self.programs, lease, lock_at_most_for))

    def release(self, lease: Lease) -> bool:
        return self._drive(locking.release(self.programs, lease))

    def undo(self, lease: Lease) -> bool:
        """Give back an unused acquisition: free the lock at once, without minimum hold.

        Its fire time can be granted again. Return False if the lease had ended.
        """
        return self._drive(locking.undo(self.programs, lease))

    def record(self, name: str) -> LockRecord | None:
        return self._drive(self.programs.record(validate_name(name)), "record", name)

    def records(self, prefix: str = "") -> list[LockRecord]:
        return _by_name(self._drive(self.programs.records(validate_prefix(prefix)), "records"), prefix)

    def runs(self, name: str, limit: int = 50) -> list[Run]:
        """Return the newest ``limit`` runs of ``name``, newest first.

        :raises ConfigurationError: this provider keeps no history: open it with ``history``.
        """
        return self._drive(read_runs(self.programs, validate_name(name), limit), "runs", name)

    def recent_runs(self, names: Iterable[str], limit: int = 10) -> dict[str, list[Run]]:
        """Return :meth:`runs` of each of ``names`` in few requests, to show many jobs.

        Pass at most a few hundred names. Runs with odd values are left out, with a warning. A cluster or a quorum needs
        one request for each name.
        """
        return self._drive(read_recent_runs(self.programs, map(validate_name, names), limit), "recent_runs")

    def force_release(self, name: str, expected: LockRecord | None = None) -> bool:
        return self._drive(self.programs.force_release(validate_name(name), expected))

    def forget_fire_time(self, name: str, expected: LockRecord | None = None) -> bool:
        """Forget the newest fire time that was granted for ``name``. After that, any fire time can be granted again.

        For operators, after a replica with a wrong clock has run. A fire time that is granted meanwhile stays. Return
        False if the record had no fire time.

        :param expected: the record that the operator saw. Forget only the fire time in it.
        """
        return self._drive(self.programs.forget_fire_time(validate_name(name), expected), "forget_fire_time", name)

    def pause(
        self,
        name: str,
        for_: Duration,
        reason: str = "",
        wait: Duration | None = None,
        by: str | None = None,
        expected: LockRecord | None = None,
    ) -> LockRecord:
        """Keep ``name`` from all jobs on all replicas for ``for_``. The jobs skip it, like a lock that is held.

        An operator holds the lock, so a pause survives restarts and ends by itself. A running job keeps its lock.

        :param reason: for people to read; a long reason is cut off.
        :param wait: how long to try again, about once a second, while a job has the lock.
        :param by: who pauses the lock; ``user@host`` of this process by default.
        :param expected: the record of the pause to replace.
        :returns: the record. If a job still has the lock, ``is_paused`` is False and ``holder`` names the job's holder.
        :raises ProviderError: the lock is already paused, and not by ``expected``.
        """
        pausing = Pausing(self.programs, name, for_, reason, wait, by, expected)
        while True:
            record = self._drive(pausing.attempt())
            seconds = pausing.seconds_until_next()
            if seconds is None:
                return record
            time.sleep(seconds)

    def resume(self, name: str, expected: LockRecord | None = None) -> bool:
        """End the pause of ``name``, so that the next job gets the lock. Return False if ``name`` is not paused.

        :param expected: the record that the operator saw. End only this pause.
        """
        return self._drive(resume(self.programs, validate_name(name), expected))

    def take_over(self, request: LockRequest, expected: LockRecord | None = None) -> Lease:
        return self._drive(locking.take_over(self.programs, request, expected))

    def recover(self, request: LockRequest, expected: LockRecord) -> Lease | None:
        """Claim the fire time of a run that never ended, if the store still has exactly its record ``expected``.

        Return None if the record has changed.

        :raises ConfigurationError: ``expected`` is held or was released, or does not say whether it was released.
        """
        return self._drive(locking.recover(self.programs, request, expected))

    def prune(self, unused_for: Duration, prefix: str = "") -> int:
        return self._drive(self._pruned(unused_for, prefix), "prune")

    def create_schema(self) -> None:
        return self._drive(self.programs.create_schema(), "create_schema")

    def checks(self) -> list[Check]:
        """What the store says of its settings and of this user's rights: see :class:`Check`. Writes nothing."""
        return self._drive(self.programs.checks(), "checks")

    def close(self) -> None:
        """Close the connections that the provider has opened. A user-supplied client stays open."""
        if hasattr(self._client, "close"):
            self._client.close()

    def _drive(self, program: Program[Any, Any, T], operation: str = "", lock_name: str | None = None) -> T:
        """Carry ``program`` out with this provider's client, within its time limit.

        :param operation: for errors. Given for a program that creates no :class:`Operation` itself.
        """
        if operation:
            program = carry_out(self.programs, operation, lock_name, program)
        timeout = self.programs.timeout
        until = None if timeout is None else monotonic() + timeout

        def execute(command: Any) -> Any:
            seconds = self._seconds_for(command, until)
            if isinstance(command, Undo):
                return self._undo_in_background(command, seconds)
            return self._client.execute(command, seconds)

        try:
            return drive(program, execute)
        except ProviderError as error:
            if self._is_all_said(error):
                raise error.with_traceback(None) from None
            raise

    def _undo_in_background(self, command: Undo, seconds: float | None) -> None:
        """Undo in another thread. The caller waits only as long as its own operation may take."""
        from concurrent.futures import Future, wait  # imported late: needed only after a failure

        useful_until = monotonic() + command.useful_for

        def undo() -> None:
            try:
                if monotonic() < useful_until:  # it may have waited for a thread
                    self._drive(command.program)
            except Exception as error:
                # The lease ends by itself, lock_at_most_for after the grant.
                logger.debug("could not undo: %s", error)

        try:
            future: Future[None] = self._undo_workers.submit(undo)
        except RuntimeError:  # no thread can be started
            return
        finish_at_exit(future)  # after Ctrl-C, the process may end before the undo does
        wait([future], DEFAULT_TIMEOUT.total_seconds() if seconds is None else seconds)


class AsyncProgramProvider(_BaseProvider, AsyncLockProvider):
    """An :class:`AsyncLockProvider` made of programs and a client.

    Cancelling the caller does not interrupt an operation: the operation continues in its own task. So an extension
    cannot overtake a release, and drivers do not lose connections. If the caller of an acquire was cancelled, the
    acquisition is undone.
    """

    def __init__(self, programs: StorePrograms, client: AsyncStoreClient) -> None:
        self.programs = programs
        self._client = client

    async def acquire(self, request: LockRequest) -> Lease | None:
        return await self._drive(locking.acquire(self.programs, request), when_abandoned=self.undo)

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return await self._drive(locking.extend(self.programs, lease, lock_at_most_for))

    async def release(self, lease: Lease) -> bool:
        return await self._drive(locking.release(self.programs, lease))

    async def undo(self, lease: Lease) -> bool:
        """See :meth:`ProgramProvider.undo`."""
        return await self._drive(locking.undo(self.programs, lease))

    async def record(self, name: str) -> LockRecord | None:
        return await self._drive(self.programs.record(validate_name(name)), "record", name)

    async def records(self, prefix: str = "") -> list[LockRecord]:
        return _by_name(await self._drive(self.programs.records(validate_prefix(prefix)), "records"), prefix)

    async def runs(self, name: str, limit: int = 50) -> list[Run]:
        """See :meth:`ProgramProvider.runs`."""
        return await self._drive(read_runs(self.programs, validate_name(name), limit), "runs", name)

    async def recent_runs(self, names: Iterable[str], limit: int = 10) -> dict[str, list[Run]]:
        """See :meth:`ProgramProvider.recent_runs`."""
        return await self._drive(read_recent_runs(self.programs, map(validate_name, names), limit), "recent_runs")

    async def force_release(self, name: str, expected: LockRecord | None = None) -> bool:
        return await self._drive(self.programs.force_release(validate_name(name), expected))

    async def forget_fire_time(self, name: str, expected: LockRecord | None = None) -> bool:
        """See :meth:`ProgramProvider.forget_fire_time`."""
        return await self._drive(
            self.programs.forget_fire_time(validate_name(name), expected), "forget_fire_time", name
        )

    async def pause(
        self,
        name: str,
        for_: Duration,
        reason: str = "",
        wait: Duration | None = None,
        by: str | None = None,
        expected: LockRecord | None = None,
    ) -> LockRecord:
        """See :meth:`ProgramProvider.pause`. If the caller is cancelled, the lock is not paused."""
        import asyncio

        pausing = Pausing(self.programs, name, for_, reason, wait, by, expected)

        async def undo(_: object) -> None:
            if pausing.granted is not None:
                await self.undo(pausing.granted)

        while True:
            record = await self._drive(pausing.attempt(), when_abandoned=undo)
            seconds = pausing.seconds_until_next()
            if seconds is None:
                return record
            await asyncio.sleep(seconds)

    async def resume(self, name: str, expected: LockRecord | None = None) -> bool:
        """See :meth:`ProgramProvider.resume`."""
        return await self._drive(resume(self.programs, validate_name(name), expected))

    async def take_over(self, request: LockRequest, expected: LockRecord | None = None) -> Lease:
        # If the caller is cancelled, the lease is left to expire: the former holder may still trust its own.
        return await self._drive(locking.take_over(self.programs, request, expected))

    async def recover(self, request: LockRequest, expected: LockRecord) -> Lease | None:
        return await self._drive(locking.recover(self.programs, request, expected))

    async def prune(self, unused_for: Duration, prefix: str = "") -> int:
        return await self._drive(self._pruned(unused_for, prefix), "prune")

    async def create_schema(self) -> None:
        return await self._drive(self.programs.create_schema(), "create_schema")

    async def checks(self) -> list[Check]:
        """See :meth:`ProgramProvider.checks`."""
        return await self._drive(self.programs.checks(), "checks")

    async def close(self) -> None:
        """Close the connections that this event loop opened. A user-supplied client stays open."""
        if hasattr(self._client, "close"):
            await self._client.close()

    async def _drive(
        self,
        program: Program[Any, Any, T],
        operation: str = "",
        lock_name: str | None = None,
        *,
        when_abandoned: Callable[[Lease], Any] | None = None,
    ) -> T:
        """See :meth:`ProgramProvider._drive`. The caller's cancellation does not interrupt it.

        :param when_abandoned: called with the lease if the program returns one after the caller was cancelled.
        """
        from shedlock_py.runtime.asyncio_tools import shielded  # imported late: loads asyncio

        if operation:
            program = carry_out(self.programs, operation, lock_name, program)
        try:
            return await shielded(self._drive_unshielded(program), when_abandoned)
        except ProviderError as error:
            if self._is_all_said(error):
                raise error.with_traceback(None) from None
            raise

    async def _drive_unshielded(self, program: Program[Any, Any, T]) -> T:
        timeout = self.programs.timeout
        until = None if timeout is None else monotonic() + timeout

        async def execute(command: Any) -> Any:
            seconds = self._seconds_for(command, until)
            if isinstance(command, Undo):
                return await self._undo_in_background(command, seconds)
            return await self._client.execute(command, seconds)

        return await drive_async(program, execute)

    async def _undo_in_background(self, command: Undo, seconds: float | None) -> None:
        """Undo in another task. The caller waits only as long as its own operation may take."""
        import asyncio

        from shedlock_py.runtime.asyncio_tools import start_task

        async def undo() -> None:
            try:
                await self._drive_unshielded(command.program)
            except Exception as error:
                # The lease ends by itself, lock_at_most_for after the grant.
                logger.debug("could not undo: %s", error)

        await asyncio.wait(
            {start_task(undo())}, timeout=DEFAULT_TIMEOUT.total_seconds() if seconds is None else seconds
        )


def _by_name(records: list[LockRecord], prefix: str) -> list[LockRecord]:
    """Filter by prefix, because a store may ignore case or match the prefix as a pattern, and sort by name."""
    return sorted((record for record in records if record.name.startswith(prefix)), key=lambda record: record.name)
