"""A compare-and-swap store, like etcd, S3 and the Kubernetes API: versioned records, and the time by ``Date``."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from shedlock_py.providers.cas import CasCommand, CasPrograms, CasReply, Delete, Entry, List, Read, Write
from shedlock_py.providers.kit import StorePrograms
from tests.simulation.stores.times import CLOCK_ERROR, TimeByDate


class CasModelStore(TimeByDate):
    """A store with only the features that :class:`CasPrograms` require.

    The clients of the three stores write records differently, but programs cannot see the difference.
    """

    def __init__(self, ahead: float = CLOCK_ERROR) -> None:
        super().__init__(ahead)
        self.programs: StorePrograms = CasPrograms()
        self._entries: dict[str, Entry] = {}
        self._version = 0

    def execute(self, command: CasCommand, now_us: int) -> CasReply:
        return CasReply(self._value_of(command), self.date(now_us))

    def has_changed(self, command: CasCommand, reply: CasReply) -> bool:
        match command:
            case Write(_, if_version):
                return reply.value is not None and if_version is not None  # the first write of a record grants nothing
            case Delete():
                return bool(reply.value)
        return False

    def _value_of(self, command: CasCommand) -> Any:
        match command:
            case Read(name):
                return self._entries.get(name)
            case List(prefix):
                return [entry for name, entry in self._entries.items() if name.startswith(prefix)]
            case Write(record, if_version, is_free):
                if self._version_of(record.name) != if_version:
                    return None
                self._version += 1
                self._entries[record.name] = Entry(record, self._version, is_free)
                return self._version
            case Delete(name, if_version):
                return self._version_of(name) == if_version and self._entries.pop(name, None) is not None

    def _version_of(self, name: str) -> int | None:
        entry = self._entries.get(name)
        return None if entry is None else entry.version

    def snapshot(self) -> Hashable:
        return tuple(sorted((name, entry) for name, entry in self._entries.items())), self._version

    def restore(self, snapshot: Hashable) -> None:
        made_above: Any = snapshot
        items, self._version = made_above
        self._entries = dict(items)
