"""The interface of a store: the one page for authors of providers.

A provider is an adapter to one store. It keeps one lock record per name, compares times only on the store's clock, and
executes each operation below in one atomic step. Each operation is idempotent per claim id, so a driver may repeat a
request if the reply was lost. ``shedlock_py.testing.contract`` is the definition in tests.

Errors: raise :class:`ProviderUnreachable` if the store did not reply, and :class:`ProviderError` if it replied with an
error, both ``from`` the driver's error. Never return None or False in place of an error, and never raise an error in
place of None or False.

A provider may also have these attributes. Callers look them up by name; ``providers.kit`` has most of them:

- ``undo(lease)`` gives an unused acquisition back: the lock is free at once, and its fire time can be granted again.
- ``recover(request, expected)`` claims the fire time of a run that never ended. It returns None if the store no longer
  has exactly the record ``expected``.
- ``forget_fire_time(name, expected=None)`` lets any fire time of ``name`` be granted again.
- ``pause(name, for_, …)`` and ``resume(name, expected=None)`` are for operators: see
  :class:`~shedlock_py.model.record.Pause`.
- ``runs(name, limit)`` and ``recent_runs(names, limit)`` read run history.
- ``checks()`` reports how the store is set up: see :class:`Check`. ``check_conditions()`` tests that the store refuses
  a conditional write if the condition is false.
- ``create_table_sql()`` returns the SQL of the tables, if the store has tables.
- ``verify(lease, connection)`` checks a lease in a transaction of the application, in the database of the locks.
- ``close()`` closes the connections that the provider has opened.
- ``has_fire_times = False``: the store keeps no fire times, so a request with a fire time is refused.
- ``is_shared = False``: only one process has the locks.
- ``waits_for``: a text for messages, if requests wait for a connection.
- ``sync_provider`` or ``async_provider``: the provider that an adapter calls.
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
        """Try once, without waiting for the lock. None: the lock is held, or the fire time is not newer (a skip)."""

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        """Hold for ``lock_at_most_for`` from now on, and return the same lease. None: it was lost or released.

        In the built-in stores a lease counts as released once its release has begun, even if that fails.
        """

    def release(self, lease: Lease) -> bool:
        """Release exactly this acquisition. Return False if it had ended.

        Other holders can acquire the lock once ``lock_at_least_for`` is over.
        """

    # The operations below are for people and tools. After an operator has read a record, the lease can end and another
    # replica can acquire the lock. With ``expected``, the record that was read, the store acts only if it still has
    # that acquisition, in one atomic step. Without ``expected``, the provider reads the record itself.

    def record(self, name: str) -> LockRecord | None:
        """Return the lock record of ``name``, held or free. None: it was never acquired, or was pruned."""

    def records(self, prefix: str = "") -> list[LockRecord]:
        """Return all lock records whose names start with ``prefix`` (no wildcards), sorted by name."""

    def force_release(self, name: str, expected: LockRecord | None = None) -> bool:
        """Free ``name`` even while it is held; the holder finds its lease lost.

        A held key of ``run_once`` is given back: the next caller runs its task. Return False if the lock was not held,
        or no longer by ``expected``.
        """

    def take_over(self, request: LockRequest, expected: LockRecord | None = None) -> Lease:
        """Acquire by force; a present holder loses its lease at once. ``fire_time`` is recorded, but not compared.

        :raises ProviderError: the store no longer has the record ``expected``.
        """

    def prune(self, unused_for: Duration, prefix: str = "") -> int:
        """Delete the free records that were last held longer than ``unused_for`` ago, and return their number.

        With ``prefix``, delete only records whose names start with it (no wildcards).
        """

    def create_schema(self) -> None:
        """Create missing tables or indexes. Idempotent; safe when ten processes start at once."""


@runtime_checkable
class AsyncLockProvider(Protocol):
    """A store, for asyncio. Its operations are documented in :class:`LockProvider`."""

    async def acquire(self, request: LockRequest) -> Lease | None: ...
    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None: ...
    async def release(self, lease: Lease) -> bool: ...
    async def record(self, name: str) -> LockRecord | None: ...
    async def records(self, prefix: str = "") -> list[LockRecord]: ...
    async def force_release(self, name: str, expected: LockRecord | None = None) -> bool: ...
    async def take_over(self, request: LockRequest, expected: LockRecord | None = None) -> Lease: ...
    async def prune(self, unused_for: Duration, prefix: str = "") -> int: ...
    async def create_schema(self) -> None: ...


Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Check:
    """A finding about a store, for ``shedlock doctor`` and the page.

    A provider may have a method ``checks()``, which returns a list of checks. It reads the store's settings and this
    user's rights, as far as they matter to locks, and writes nothing. If the store does not tell a value, or not to
    this user, the check is "ok" with the message "not known: …".
    """

    check: str
    status: Status
    """"failed": locks do not work, or guard nothing. "warning": a fault of the store may give a held lock away."""
    message: str
    hint: str | None = None
    """How to mend it."""
    seconds: float | None = None
    """The measured value, if the check measures time."""

    def __str__(self) -> str:
        return f"{self.message} — {self.hint}" if self.hint else self.message


def can(provider: object, method: str) -> bool:
    """Return whether ``provider`` has the optional method ``method``."""
    return getattr(provider, method, None) is not None


def waits_for(provider: object) -> str | None:
    """Return the name of the connection that requests of ``provider`` wait for."""
    what: str | None = getattr(getattr(provider, "sync_provider", provider), "waits_for", None)
    return what


def check_store(store: object, what: str, *methods: str) -> None:
    """Check that a store has the optional methods that ``what`` calls.

    :raises ConfigurationError: the store lacks a method.
    """
    provider = getattr(store, "sync_provider", store)
    for method in methods:
        if not can(provider, method):
            raise ConfigurationError(f"{what} needs a provider with the method {method}: {type(provider).__name__}")


def require_file(provider: object) -> None:
    """Refuse a provider if its SQLite file is missing: the first request would create the file of a mistyped path.

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
    """Return ``provider.recover``, which claims the fire time of a run that never ended.

    :raises ConfigurationError: the provider cannot recover runs.
    """
    check_store(provider, "recover=True", "recover")
    recover: Callable[[LockRequest, LockRecord], Any] = getattr(provider, "recover")  # noqa: B009 (not in the protocol)
    return recover


def undo_of(provider: LockProvider | AsyncLockProvider) -> Callable[[Lease], Any]:
    """Return ``provider.undo``, which gives an unused acquisition back; ``release`` if the provider cannot undo."""
    undo: Callable[[Lease], Any] = getattr(provider, "undo", None) or provider.release
    return undo


def verify_of(provider: LockProvider | AsyncLockProvider) -> Callable[[Lease, object], Any]:
    """Return ``provider.verify``, which checks a lease in a transaction of the application.

    :raises ConfigurationError: the provider cannot do that.
    """
    verify: Callable[[Lease, object], Any] | None = getattr(provider, "verify", None)
    if verify is None:
        used = type(getattr(provider, "sync_provider", provider)).__name__
        raise ConfigurationError(
            f"verify() needs locks in a SQL database: SqlAlchemyLockProvider, for asyncio AsyncSqlAlchemyLockProvider; "
            f"this is {used}. With another store, write the fencing token with your data and refuse older tokens"
        )
    return verify
