"""Model stores: they run the real commands of the real programs in memory, at a time that the caller sets.

``sql`` is a real SQLite. ``redis`` runs the real scripts in a real Lua 5.1. ``mongodb`` and ``dynamodb`` interpret the
operators of the commands. ``cas`` has the common features of etcd, S3 and the Kubernetes API. ``memory`` is the
in-memory store. ``test_model_stores.py`` compares each model with the real store, and ``cas`` with etcd.

The statements for PostgreSQL and MySQL cannot run here. The contract tests them on real servers.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from shedlock_py.providers.kit import StorePrograms

NAMES = ("sql", "redis", "mongodb", "cas", "dynamodb", "memory")


class ModelStore(Protocol):
    """The records of one store. It has no clock, no connections and no threads."""

    programs: StorePrograms
    """The real programs. The caller sets their ``clock``, which is the holder's clock."""

    def execute(self, command: Any, now_us: int) -> Any:
        """Run ``command`` alone and return the reply. Raises the errors of the driver.

        :param now_us: the store's clock, in microseconds since 1970. The store rounds it like the real store.
        """
        ...

    @property
    def kept_longer(self) -> float:
        """Seconds that it may keep a lease longer than requested, apart from a round trip."""
        ...

    def has_changed(self, command: Any, reply: Any) -> bool:
        """Whether ``command`` may have changed a record: not if it reads, or if its condition did not hold."""
        ...

    def received(self, reply: Any, sent_at: float, received_at: float) -> Any:
        """Return ``reply`` as the client returns it. The moments are by the clock of its process."""
        ...

    def snapshot(self) -> Hashable:
        """All records."""
        ...

    def restore(self, snapshot: Hashable) -> None:
        """Go back to a :meth:`snapshot`."""
        ...


def open_store(name: str) -> ModelStore:
    """Open a new, empty model store: one of :data:`NAMES`."""
    # Late: each model needs its driver, and "redis" needs Lua.
    match name:
        case "sql":
            from tests.simulation.stores.sql import SqlModelStore

            return SqlModelStore()
        case "redis":
            from tests.simulation.stores.redis import RedisModelStore

            return RedisModelStore()
        case "mongodb":
            from tests.simulation.stores.mongodb import MongoModelStore

            return MongoModelStore()
        case "cas":
            from tests.simulation.stores.cas import CasModelStore

            return CasModelStore()
        case "dynamodb":
            from tests.simulation.stores.dynamodb import DynamoDBModelStore

            return DynamoDBModelStore()
        case "memory":
            from tests.simulation.stores.memory import MemoryModelStore

            return MemoryModelStore()
    raise ValueError(name)
