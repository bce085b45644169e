"""Run N copies of your app. Each scheduled job still runs once.

::

    from shedlock_py import configure, scheduler_lock

    configure("postgresql://user@host/db", create_schema=True)

    @scheduler_lock("nightly-report", lock_at_most_for="30m", lock_at_least_for="1m")
    def nightly_report(): ...
"""

from importlib import import_module
from typing import TYPE_CHECKING

from shedlock_py.errors import (
    ConfigurationError,
    LeaseError,
    LeaseLostError,
    NotLocked,
    ProviderError,
    ProviderNotConfigured,
    ProviderUnreachable,
    ShedLockError,
    TaskNotDone,
)
from shedlock_py.events import (
    ElectionEvent,
    Event,
    LeaderChanged,
    LeadershipStarted,
    LeadershipStopped,
    LeaseLost,
    Listener,
    LockAcquired,
    LockEvent,
    LockExtended,
    LockReleased,
    LockSkipped,
    OperatorActed,
    ProviderFailed,
    RunMissed,
    RunRecovered,
    TaskFinished,
)
from shedlock_py.guard.context import assert_locked, current_lease
from shedlock_py.guard.decorator import scheduler_lock
from shedlock_py.guard.extending import extend_lock, extend_lock_async
from shedlock_py.guard.functions import Executed, attempt, attempt_async, hold, hold_async, try_hold, try_hold_async
from shedlock_py.guard.shutdown import is_shutting_down, release_on_sigterm
from shedlock_py.guard.skips import LockNotAcquired, Skipped
from shedlock_py.model.lease import Lease
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import LockRequest
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.runtime.versions import __version__ as __version__
from shedlock_py.settings.defaults import Settings, configure, reset
from shedlock_py.settings.off_switch import set_active
from shedlock_py.settings.urls import async_provider_from_url, provider_from_url

# Names that few programs need are imported at their first use. Type checkers see plain imports: with __getattr__ they
# would accept misspelt names.
if TYPE_CHECKING:
    from shedlock_py.election.async_elector import AsyncLeaderElector
    from shedlock_py.election.base import leader_only
    from shedlock_py.election.elector import LeaderElector
    from shedlock_py.guard.once import run_once, run_once_async
    from shedlock_py.operators.startup import check, check_async
    from shedlock_py.providers.memory import AsyncInMemoryLockProvider, InMemoryLockProvider
else:
    _LAZY = {
        "AsyncLeaderElector": "shedlock_py.election.async_elector",
        "LeaderElector": "shedlock_py.election.elector",
        "leader_only": "shedlock_py.election.base",
        **dict.fromkeys(("AsyncInMemoryLockProvider", "InMemoryLockProvider"), "shedlock_py.providers.memory"),
        **dict.fromkeys(("check", "check_async"), "shedlock_py.operators.startup"),
        **dict.fromkeys(("run_once", "run_once_async"), "shedlock_py.guard.once"),
    }

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(import_module(_LAZY[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted(__all__)


__all__ = [
    "AsyncInMemoryLockProvider",
    "AsyncLeaderElector",
    "AsyncLockProvider",
    "ConfigurationError",
    "ElectionEvent",
    "Event",
    "Executed",
    "InMemoryLockProvider",
    "LeaderChanged",
    "LeaderElector",
    "LeadershipStarted",
    "LeadershipStopped",
    "Lease",
    "LeaseError",
    "LeaseLost",
    "LeaseLostError",
    "Listener",
    "LockAcquired",
    "LockEvent",
    "LockExtended",
    "LockNotAcquired",
    "LockProvider",
    "LockRecord",
    "LockReleased",
    "LockRequest",
    "LockSkipped",
    "NotLocked",
    "OperatorActed",
    "ProviderError",
    "ProviderFailed",
    "ProviderNotConfigured",
    "ProviderUnreachable",
    "RunMissed",
    "RunRecovered",
    "Settings",
    "ShedLockError",
    "Skipped",
    "TaskFinished",
    "TaskNotDone",
    "assert_locked",
    "async_provider_from_url",
    "attempt",
    "attempt_async",
    "check",
    "check_async",
    "configure",
    "current_lease",
    "extend_lock",
    "extend_lock_async",
    "hold",
    "hold_async",
    "is_shutting_down",
    "leader_only",
    "provider_from_url",
    "release_on_sigterm",
    "reset",
    "run_once",
    "run_once_async",
    "scheduler_lock",
    "set_active",
    "try_hold",
    "try_hold_async",
]
