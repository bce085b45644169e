"""What to do when a transaction's snapshot is older than the last heartbeat."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

_SERIALIZATION_FAILURE = "40001"  # PostgreSQL
_CHANGED_SINCE_LAST_READ = 1020  # MariaDB with innodb_snapshot_isolation
_WAY_ROUND = (
    "verify() of shedlock_py: the lock record was updated since the snapshot of this transaction was taken, and a "
    "heartbeat is enough for that. Run the transaction at READ COMMITTED "
    '(execution_options(isolation_level="READ COMMITTED")), or guard it without keep_alive and with a '
    "lock_at_most_for that covers it. To run it again helps only if it is shorter than the time between two heartbeats."
)


@contextmanager
def explained_conflicts() -> Iterator[None]:
    """Add the way round to the database's error, which stays as it is: code that runs transactions again expects it."""
    try:
        yield
    except DBAPIError as error:
        original = error.orig
        number = original.args[0] if original is not None and original.args else None
        state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
        if state == _SERIALIZATION_FAILURE or number == _CHANGED_SINCE_LAST_READ:
            error.add_note(_WAY_ROUND)
        raise
