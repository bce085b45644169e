"""What a store must be able to do: the one page for authors of providers.

A provider is an adapter to one store. It keeps one lock record per name, compares times only on the store's clock,
and executes each operation below in one atomic step. Each is idempotent per claim id: a driver that repeats a request
whose reply was lost does no harm. ``shedlock_py.testing.contract`` is the definition in tests.

Errors: :class:`ProviderUnreachable` when the store did not reply, :class:`ProviderError` when it replied with an
error, both ``from`` the driver's. Never None or False in place of an error, nor an error in place of those.

A provider may also have these, which are looked up by name where they are used; ``providers.kit`` has most of them:

- ``undo(lease)`` gives an unused acquisition back: free at once, and its fire time can be granted again.
- ``recover(request, expected)`` claims the fire time of a run that never ended, if the store still has exactly the
  record ``expected``. None: it has another one.
- ``forget_fire_time(name, expected=None)`` lets any fire time of ``name`` be granted again.
- ``pause(name, for_, …)`` and ``resume(name, expected=None)`` are for operators: see
  :class:`~shedlock_py.model.record.Pause`.
- ``runs(name, limit)`` and ``recent_runs(names, limit)`` read run history.
- ``checks()`` says how the store is set up: see :class:`Check`. ``check_conditions()`` tries whether it refuses a
  write whose condition does not hold.
- ``create_table_sql()`` is the SQL of the tables, where the store has tables.
- ``close()`` closes the connections that the provider has opened.
- ``has_fire_times = False``: the store keeps no fire times, so a request with one is refused.
- ``is_shared = False``: the locks are those of one process only.
- ``waits_for``: a text for messages, if requests wait for a connection.
- ``sync_provider`` or ``async_provider``: of an adapter, the provider that it calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from shedlock_py.errors import ConfigurationError, ProviderError
from shedlock_py.model.durations import Duration
from shedlock_py.model.lease import Lease
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import LockRequest


@runtime_checkable
class LockProvider(Protocol):
    """A store, for ordinary functions. Safe to use from many threads."""

    def acquire(self, request: LockRequest) -> Lease | None:
        """One attempt, never waits for the lock. None: held elsewhere, or the fire time is not newer (a skip)."""

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        """Hold for ``lock_at_most_for`` from now on, and return the same lease. None: it is lost or was released.

        In the built-in stores a lease counts as released once its release has begun, even if that fails.
        """

    def release(self, lease: Lease) -> bool:
        """Release exactly this acquisition; others get it once ``lock_at_least_for`` is over. False: it had ended."""

    # For people and tools. After an operator has read a record, the lease can end and another replica can acquire the
    # lock. With ``expected``, the record that was read, the store acts only if it still has that acquisition, in one
    # atomic step. Without it, the provider reads the record itself.

    def record(self, name: str) -> LockRecord | None:
        """The lock record of ``name``, held or free. None: never acquired, or pruned."""

    def records(self, prefix: str = "") -> list[LockRecord]:
        """All lock records whose names start with ``prefix`` (no wildcards), by name."""

    def force_release(self, name: str, expected: LockRecord | None = None) -> bool:
        """Free ``name``, also if it is held; the holder finds its lease lost.

        A key of ``run_once`` that is held is given back: the next caller runs its task. False: it was not held, or not
        by ``expected`` any more.
        """

    def take_over(self, request: LockRequest, expected: LockRecord | None = None) -> Lease:
        """Acquire by force; a present holder loses its lease at once. ``fire_time`` is noted, not compared.

        :raises ProviderError: the store has another record than ``expected`` by now.
        """

    def prune(self, unused_for: Duration) -> int:
        """Delete the records that are free and were last held longer than ``unused_for`` ago; returns how many."""

    def create_schema(self) -> None:
        """Create what the store needs, if it is missing. Idempotent; safe when ten processes start at once."""


@runtime_checkable
class AsyncLockProvider(Protocol):
    """A store, for asyncio. The operations are those of :class:`LockProvider`."""

    async def acquire(self, request: LockRequest) -> Lease | None: ...
    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None: ...
    async def release(self, lease: Lease) -> bool: ...
    async def record(self, name: str) -> LockRecord | None: ...
    async def records(self, prefix: str = "") -> list[LockRecord]: ...
    async def force_release(self, name: str, expected: LockRecord | None = None) -> bool: ...
    async def take_over(self, request: LockRequest, expected: LockRecord | None = None) -> Lease: ...
    async def prune(self, unused_for: Duration) -> int: ...
    async def create_schema(self) -> None: ...


Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Check:
    """What was found out about a store, for ``shedlock doctor`` and the page.

    A provider may have a method ``checks()``, which returns a list of them: what the store itself says of its settings
    and of the rights of this user, as far as it matters to locks. It writes nothing. What the store does not say, or
    not to this user, is "ok" with the message "not known: …".
    """

    check: str
    status: Status
    """"failed": locks do not work, or guard nothing. "warning": a fault of the store may give a held lock away."""
    message: str
    hint: str | None = None
    """What to do about it."""
    seconds: float | None = None
    """What was measured, where something was."""

    def __str__(self) -> str:
        return f"{self.message} — {self.hint}" if self.hint else self.message


def can(provider: object, method: str) -> bool:
    """Whether ``provider`` has that method, of those that it need not have."""
    return getattr(provider, method, None) is not None


def waits_for(provider: object) -> str | None:
    """Return the name of the connection that requests of ``provider`` wait for."""
    what: str | None = getattr(getattr(provider, "sync_provider", provider), "waits_for", None)
    return what


def check_store(store: object, what: str, *methods: str) -> None:
    """:raises ConfigurationError: the store lacks methods that a provider need not have, and that ``what`` calls."""
    provider = getattr(store, "sync_provider", store)
    for method in methods:
        if not can(provider, method):
            raise ConfigurationError(f"{what} needs a provider with the method {method}: {type(provider).__name__}")


def require_file(provider: object) -> None:
    """Refuse a provider whose SQLite file is missing: the first request would create the file of a mistyped path.

    :raises ProviderError: the file is missing.
    """
    missing_file: Callable[[], str | None] | None = getattr(provider, "_missing_file", None)
    if missing_file is not None and (path := missing_file()) is not None:
        raise ProviderError(
            f"there is no SQLite file {path}",
            operation="open",
            hint="is the path right? To create the file: shedlock schema --create",
        )


def recover_of(provider: LockProvider | AsyncLockProvider) -> Callable[[LockRequest, LockRecord], Any]:
    """``provider.recover``, which claims the fire time of a run that never ended.

    :raises ConfigurationError: the provider cannot recover runs.
    """
    check_store(provider, "recover=True", "recover")
    recover: Callable[[LockRequest, LockRecord], Any] = getattr(provider, "recover")  # noqa: B009 (not of the protocol)
    return recover


def undo_of(provider: LockProvider | AsyncLockProvider) -> Callable[[Lease], Any]:
    """``provider.undo``, which gives an unused acquisition back; ``release`` if the provider cannot undo."""
    undo: Callable[[Lease], Any] = getattr(provider, "undo", None) or provider.release
    return undo
