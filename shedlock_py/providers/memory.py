"""A store in the memory of one process, as strict as real stores: for tests, and for apps with one process."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, Self

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.durations import Duration
from shedlock_py.model.lease import Clock
from shedlock_py.model.text import quoted
from shedlock_py.providers.kit import (
    AsyncProgramProvider,
    Failure,
    ProgramProvider,
    RecordCommand,
    RecordPrograms,
    Records,
    parse_limits,
    split_options,
)
from shedlock_py.runtime.process import PerProcess, monotonic


class MemoryStore:
    """The records of one store, and its clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.epoch = datetime.now(UTC) - timedelta(seconds=clock())
        """The store's time when ``clock`` was 0."""
        self._records = Records()
        self._mutex = PerProcess(threading.Lock)  # in a forked child, nothing would release the parent's lock

    def __reduce__(self) -> NoReturn:
        raise TypeError("a store in memory belongs to its process: a copy in another process would not share its locks")

    def execute(self, command: RecordCommand, _timeout: float | None) -> Any:
        """Execute ``command``, while no other thread uses the records."""
        with self._mutex.get():
            return command(self._records, self.epoch + timedelta(seconds=self.clock()))


class _AsyncClient:
    """Executes commands on an event loop, without waiting."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def execute(self, command: RecordCommand, timeout: float | None) -> Any:  # noqa: ASYNC109 (of the kit's client)
        return self._store.execute(command, timeout)


class MemoryPrograms(RecordPrograms):
    """The programs for one store in memory. It raises no errors."""

    def __init__(self, store: MemoryStore, fire_time_tolerance: Duration | None, history: int | None = None) -> None:
        limits = parse_limits(None, fire_time_tolerance, {}, is_managed=False, history=history)
        super().__init__(clock=store.clock, **limits)
        self.store = store

    def classify(self, error: Exception) -> Failure:
        return Failure.NOT_A_STORE_ERROR


def _store_of(shared_with: object, clock: Clock) -> MemoryStore:
    if shared_with is None:
        return MemoryStore(clock)
    if not isinstance(shared_with, InMemoryLockProvider | AsyncInMemoryLockProvider):
        raise ConfigurationError(
            f"shared_with must be a provider in memory, not {quoted(shared_with)}; to pass a clock, write clock=…"
        )
    store = shared_with.programs.store
    if clock not in (monotonic, store.clock):
        raise ConfigurationError("a shared store keeps the clock that it was made with: leave clock= out")
    return store


def _options_of(url: str) -> dict[str, Any]:
    """Return the constructor's arguments in a ``memory://`` URL. A timeout is accepted, but not needed."""
    rest, options = split_options(url)
    unknown = {option.partition("=")[0] for option in rest.partition("?")[2].split("&")} - {""}
    if unknown:
        raise ConfigurationError(f"store URL: memory:// has no option {', '.join(sorted(unknown))}")
    options.pop("timeout", None)
    return dict(options)


class InMemoryLockProvider(ProgramProvider):
    """A :class:`LockProvider` for one process.

    :param shared_with: another provider, to share its locks. The options are not shared.
    :param clock: monotonic seconds. A :class:`FakeClock` lets tests travel in time.
    :param fire_time_tolerance: how far a fire time may be in the future.
    :param history: the number of runs to keep for each lock name, for :meth:`runs`.
    """

    programs: MemoryPrograms
    is_shared = False
    """Other processes do not see these locks: the command line refuses or warns."""

    def __init__(
        self,
        shared_with: InMemoryLockProvider | None = None,
        *,
        clock: Clock = monotonic,
        fire_time_tolerance: Duration | None = None,
        history: int | None = None,
    ) -> None:
        store = _store_of(shared_with, clock)
        super().__init__(MemoryPrograms(store, fire_time_tolerance, history), store)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return a provider with a new store, and the options in ``memory://?history=50&fire_time_tolerance=1m``."""
        return cls(**_options_of(url))


class AsyncInMemoryLockProvider(AsyncProgramProvider):
    """:class:`InMemoryLockProvider` for asyncio. With ``shared_with``, both see the same locks."""

    programs: MemoryPrograms
    is_shared = False

    def __init__(
        self,
        shared_with: InMemoryLockProvider | None = None,
        *,
        clock: Clock = monotonic,
        fire_time_tolerance: Duration | None = None,
        history: int | None = None,
    ) -> None:
        store = _store_of(shared_with, clock)
        super().__init__(MemoryPrograms(store, fire_time_tolerance, history), _AsyncClient(store))

    @classmethod
    def from_url(cls, url: str) -> Self:
        """See :meth:`InMemoryLockProvider.from_url`."""
        return cls(**_options_of(url))
