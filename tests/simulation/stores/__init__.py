"""Model stores: they carry out the real commands of the real programs in memory, at a time that the caller gives.

``sql`` is a real SQLite, ``redis`` runs the real scripts in a real Lua 5.1, ``mongodb`` and ``dynamodb`` interpret the
operators that the commands use, ``cas`` does what etcd, S3 and the Kubernetes API have in common, and ``memory`` is the
store in memory. ``test_model_stores.py`` compares each with the real store, ``cas`` with etcd.

The statements for PostgreSQL and MySQL cannot run here. The contract tries what they decide, on real servers.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from shedlock_py.providers.kit import StorePrograms

NAMES = ("sql", "redis", "mongodb", "cas", "dynamodb", "memory")


class ModelStore(Protocol):
    """The records of one store. It has no clock, no connections and no threads."""

    programs: StorePrograms
    """The real ones. The caller sets their ``clock``, which is the holder's."""

    def execute(self, command: Any, now_us: int) -> Any:
        """The reply to ``command``, carried out alone. Raises what the driver would raise.

        :param now_us: the store's clock, in microseconds since 1970. The store rounds it as the real one does.
        """
        ...

    @property
    def kept_longer(self) -> float:
        """Seconds that it may keep a lease longer than asked, a round trip apart."""
        ...

    def has_changed(self, command: Any, reply: Any) -> bool:
        """Whether ``command`` may have changed a record: not, if it reads, or if its condition did not hold."""
        ...

    def received(self, reply: Any, sent_at: float, received_at: float) -> Any:
        """``reply`` as the client returns it. The moments are of the clock of its process."""
        ...

    def snapshot(self) -> Hashable:
        """All records."""
        ...

    def restore(self, snapshot: Hashable) -> None:
        """Go back to what :meth:`snapshot` returned."""
        ...


def open_store(name: str) -> ModelStore:
    """A new, empty model store: one of :data:`NAMES`."""
    # Late: each needs its driver, and "redis" a Lua.
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
