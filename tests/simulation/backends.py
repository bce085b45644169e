"""The stores of the simulation. They carry out the commands of real programs, at a time that the world sets."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, Protocol

from shedlock_py.providers.kit import Failure, RecordCommand, RecordPrograms, Records, StorePrograms
from tests.simulation.network import NetworkError
from tests.simulation.stores.times import ExactTime
from tests.simulation.world import Process

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Backend(Protocol):
    """A store, such as a model store of ``tests.simulation.stores``."""

    programs: StorePrograms

    @property
    def kept_longer(self) -> float: ...

    def execute(self, command: Any, now_us: int) -> Any: ...

    def has_changed(self, command: Any, reply: Any) -> bool: ...

    def received(self, reply: Any, sent_at: float, received_at: float) -> Any: ...


class MemoryBackend(ExactTime):
    """The programs of the in-memory store."""

    def __init__(self) -> None:
        self.programs: StorePrograms = _MemoryPrograms()
        self._records = Records()

    def execute(self, command: RecordCommand, now_us: int) -> Any:
        return command(self._records, _EPOCH + timedelta(microseconds=now_us))


class _MemoryPrograms(RecordPrograms):
    def classify(self, error: Exception) -> Failure:
        return Failure.NOT_A_STORE_ERROR


def open_backend(name: str) -> Backend:
    """Open the store with that name: "memory", or a model store."""
    if name == "memory":
        return MemoryBackend()
    stores = import_module("tests.simulation.stores")  # late: these need their drivers
    opened: Backend = stores.open_store(name)
    return opened


def programs_of(backend: Backend, process: Process) -> StorePrograms:
    """Return the store's programs with the clock and the claim ids of ``process``."""
    programs = copy.copy(backend.programs)
    programs.clock = process.clock
    programs.new_claim_id = process.new_claim_id
    setattr(programs, "classify", _with_network_errors(programs.classify))  # noqa: B010 (mypy: a method, of this copy)
    return programs


def _with_network_errors(classify: Callable[[Exception], Failure]) -> Callable[[Exception], Failure]:
    return lambda error: error.failure if isinstance(error, NetworkError) else classify(error)
