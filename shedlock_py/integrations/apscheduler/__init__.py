"""APScheduler 3.10 and 3.11: N replicas run the same schedule, and each job runs on one of them.

Needs the extra ``apscheduler``. ``executor`` chooses the lock of a job, and hands the job to the inner executor.
``worker`` takes the lock there, right around the job. ``leading`` lets a scheduler work only on the leader.
"""

from shedlock_py.integrations import missing_extra

try:
    import apscheduler  # noqa: F401  # checked before the modules below import it
except ModuleNotFoundError as error:
    raise missing_extra("apscheduler", "apscheduler", error) from error

from shedlock_py.integrations.apscheduler.drain import drain, drain_async
from shedlock_py.integrations.apscheduler.events import EVENT_JOB_SKIPPED, JobSkippedEvent
from shedlock_py.integrations.apscheduler.executor import ShedLockExecutor, install
from shedlock_py.integrations.apscheduler.leading import lead
from shedlock_py.integrations.apscheduler.options import Lock

__all__ = [
    "EVENT_JOB_SKIPPED",
    "JobSkippedEvent",
    "Lock",
    "ShedLockExecutor",
    "drain",
    "drain_async",
    "install",
    "lead",
]
