"""The in-memory store, at a given time."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import timedelta
from typing import Any

from shedlock_py.providers.kit import RecordCommand, Records, StorePrograms
from shedlock_py.providers.memory import MemoryPrograms, MemoryStore
from shedlock_py.testing import FakeClock
from tests.simulation.stores.times import EPOCH, ExactTime


class MemoryModelStore(ExactTime):
    """Runs the commands on its own records: :class:`MemoryStore` would read a clock."""

    def __init__(self) -> None:
        self.programs: StorePrograms = MemoryPrograms(MemoryStore(FakeClock()), None)
        self._records = Records()

    def execute(self, command: RecordCommand, now_us: int) -> Any:
        return command(self._records, EPOCH + timedelta(microseconds=now_us))

    def snapshot(self) -> Hashable:
        return tuple(sorted(self._records.by_name.items())), self._records.last_token

    def restore(self, snapshot: Hashable) -> None:
        made_above: Any = snapshot
        items, last_token = made_above
        self._records = Records(dict(items), last_token)
