"""Keep-alive: heartbeats extend a lease while its task runs, and a loss is reported at once. For threads."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta

from shedlock_py._clock import monotonic
from shedlock_py._program import run
from shedlock_py._timers import RETRY_SECONDS, timer, worker_pool
from shedlock_py.context import ActiveLease
from shedlock_py.errors import LeaseLostError, as_exception
from shedlock_py.events import LeaseLost, logger
from shedlock_py.heartbeat import STOP_SECONDS, BaseKeepAlive
from shedlock_py.lease import Lease
from shedlock_py.options import OnLost
from shedlock_py.provider import AsyncLockProvider, LockProvider


@contextmanager
def kept_alive(active: ActiveLease, store: LockProvider, keep_alive: bool, on_lost: OnLost) -> Iterator[None]:
    """Keep the lease alive, or only watch it, while the block runs. Afterwards no heartbeat is in flight.

    :raises RuntimeError: the system refuses a thread, so nothing would keep the lease alive.
    """
    keeper = ThreadKeepAlive(active, store, keep_alive, on_lost)
    active.keep_alive = keeper
    try:
        keeper.start()
        yield
    finally:
        active.ended_at = monotonic()
        keeper.stop()


class ThreadKeepAlive(BaseKeepAlive):
    """Keeps a lease alive for ordinary code."""

    def __init__(self, active: ActiveLease, store: LockProvider, keep_alive: bool, on_lost: OnLost) -> None:
        super().__init__(active, keep_alive, on_lost)
        self._store = store
        self._pool = worker_pool(store, "heartbeats") if keep_alive else None
        self._is_reserved = False

    def start(self) -> None:
        if self._pool is not None:
            self._is_reserved = True
            self._pool.reserve()
        try:
            timer().schedule(self.wake, self._plan.wakes_at())
        except RuntimeError as error:
            name = self._plan.lease.name
            raise RuntimeError(
                f"lock {name!r}: the task does not run, because nothing would watch it: {error}"
            ) from error

    def _start_heartbeat(self) -> None:
        assert self._pool is not None
        self._pool.submit(self._heartbeat)

    def _heartbeat(self) -> None:
        try:
            run(self._plan.heartbeat(), self._extend)
            self._schedule()
            self._report()
        except BaseException:
            logger.exception("a heartbeat of lock %r failed unexpectedly", self._plan.lease.name)

    def _extend(self, lock_for: timedelta) -> Lease | None:
        lease = self._plan.lease
        try:
            return self._store.extend(lease, lock_for)
        except Exception:
            raise
        except BaseException as error:  # a hook of the driver may call sys.exit()
            raise as_exception(error, "extend", lease.name) from error

    def _schedule(self) -> None:
        with self._plan.changed, suppress(RuntimeError):  # if no thread starts, the callback stays scheduled
            if not self._plan.is_over:
                timer().schedule(self.wake, self._plan.wakes_at())

    def _start_report(self) -> None:
        try:
            threading.Thread(target=self._report, name="shedlock-on-lost", daemon=True).start()
        except RuntimeError:
            timer().schedule(self.wake, monotonic() + RETRY_SECONDS)

    def _react(self, lost: LeaseLost) -> None:
        self._call_on_lost(lost)

    def stop(self) -> None:
        if not self._owner.is_current():
            return  # a forked child leaves the block; the lease and its heartbeats are its parent's
        plan = self._plan
        try:
            with plan.changed:
                plan.is_over = True
                timer().cancel(self.wake)
                # A heartbeat after the release would prolong a minimum hold.
                plan.changed.wait_for(lambda: not plan.in_flight, STOP_SECONDS)
        finally:
            if self._pool is not None and self._is_reserved:  # Ctrl-C may come before the reservation
                self._is_reserved = False
                self._pool.unreserve()
        self._report()


@asynccontextmanager
async def kept_alive_async(
    active: ActiveLease, store: AsyncLockProvider, keep_alive: bool, on_lost: OnLost
) -> AsyncIterator[None]:
    """:func:`kept_alive` for async tasks. With "cancel", a lost lease becomes a ``LeaseLostError`` out of the block."""
    from shedlock_py.async_keepalive import TaskKeepAlive  # late: loads asyncio

    keeper = TaskKeepAlive(active, store, keep_alive, on_lost)
    active.keep_alive = keeper
    keeper.start()
    try:
        yield
    except BaseException as error:
        if keeper.takes_back_its_cancellation(error):
            raise LeaseLostError(f"lock {active.lease.name!r} was lost while its task ran") from error
        raise
    finally:
        active.ended_at = monotonic()
        await keeper.stop()
