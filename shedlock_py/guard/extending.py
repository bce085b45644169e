"""A task extends its own lease."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from shedlock_py.errors import ConfigurationError, LeaseError, LeaseLostError, hidden_frames
from shedlock_py.events import LeaseLost, LockExtended, ProviderFailed
from shedlock_py.guard.context import ActiveLease, KeepAlive, require_live
from shedlock_py.model.durations import Duration
from shedlock_py.model.lease import Lease
from shedlock_py.settings.emit import emit
from shedlock_py.settings.lookup import as_async_provider, as_provider

__tracebackhide__ = hidden_frames

POLL_SECONDS = 0.005


def extend_lock(lock_at_most_for: Duration) -> Lease:
    """Hold the lock of the running task for ``lock_at_most_for`` from now on.

    :raises NotLocked: not inside a live lease.
    :raises LeaseLostError: another holder has the lock, or may have it.
    :raises ProviderError: the store failed; the lease lasts no longer than before.
    """
    active = require_live()
    provider = as_provider(active.provider)
    with _extending(active) as keep_alive:
        while keep_alive is not None and keep_alive.is_busy(is_async=False):
            time.sleep(POLL_SECONDS)
        _refuse_if_lost(active)
        return _extended(active, provider.extend(active.lease, lock_at_most_for))


async def extend_lock_async(lock_at_most_for: Duration) -> Lease:
    """:func:`extend_lock` for async tasks."""
    import asyncio  # late: other users must not load asyncio

    active = require_live()
    provider = as_async_provider(active.provider)
    with _extending(active) as keep_alive:
        while keep_alive is not None and keep_alive.is_busy(is_async=True):  # noqa: ASYNC110 (a thread may send it)
            await asyncio.sleep(POLL_SECONDS)
        _refuse_if_lost(active)
        return _extended(active, await provider.extend(active.lease, lock_at_most_for))


@contextmanager
def _extending(active: ActiveLease) -> Iterator[KeepAlive | None]:
    """Pause heartbeats while the task extends its lease: a heartbeat might shorten the lease again."""
    keep_alive = active.keep_alive
    if keep_alive is not None:
        keep_alive.pause()
    try:
        yield keep_alive
    except (ConfigurationError, LeaseError):
        raise  # the store has not failed
    except Exception as error:
        emit(ProviderFailed(active.lease.name, "extend", error, active.lease), is_raised=True)
        raise
    finally:
        if keep_alive is not None:
            keep_alive.resume()


def _refuse_if_lost(active: ActiveLease) -> None:
    """Refuse a lease that keep-alive has reported as lost meanwhile: no heartbeat would extend it.

    :raises LeaseLostError: the lease was lost.
    """
    if active.is_loss_reported:
        raise LeaseLostError(f"lock {active.lease.name!r} could not be extended: its lease was lost meanwhile")


def _extended(active: ActiveLease, extended: Lease | None) -> Lease:
    name = active.lease.name
    if extended is None:
        if active.keep_alive is not None:
            active.keep_alive.report_lost()
        else:
            active.is_loss_reported = True
            emit(LeaseLost(name, active.lease, "revoked"))
        raise LeaseLostError(f"lock {name!r} could not be extended: its lease has ended or was taken over")
    _refuse_if_lost(active)  # the reply may be too late
    emit(LockExtended(name, extended))
    return extended
