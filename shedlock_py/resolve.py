"""Which provider a guard uses: its own, or the configured one, looked up at each call."""

from __future__ import annotations

from typing import Any, cast

from shedlock_py._clock import monotonic
from shedlock_py.config import current_settings, is_active
from shedlock_py.durations import Duration
from shedlock_py.errors import ConfigurationError, ProviderNotConfigured
from shedlock_py.lease import Claim, Lease
from shedlock_py.options import is_async_provider
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.request import LockRequest


def configured_providers() -> tuple[object, ...]:
    """The providers that :func:`configure` was given: of one store, for the two kinds of functions."""
    settings = current_settings()
    return tuple(provider for provider in (settings.provider, settings.async_provider) if provider is not None)


def resolve_provider(given: Any, lock_name: str) -> LockProvider:
    """The provider for an ordinary function: ``given``, else the configured one.

    :raises ProviderNotConfigured: there is none.
    :raises ConfigurationError: there is only one for async functions.
    """
    if not is_active():
        return cast(LockProvider, _Unlocked())  # has the three methods that guards use
    settings = current_settings()
    if given is None and settings.provider is not None:
        return settings.provider
    if given is None and settings.async_provider is None:
        raise _not_configured(lock_name, "configure(provider=…)")
    if given is None or is_async_provider(given):
        raise ConfigurationError(
            f"lock {lock_name!r} guards an ordinary function, but there is only an async provider: make the function "
            f"'async def', or give a sync provider of the same store with configure(provider=…) or provider=…"
        )
    return cast(LockProvider, given)


def resolve_async_provider(given: object, lock_name: str) -> AsyncLockProvider:
    """The provider for an ``async def`` function: ``given``, else the configured one; a sync one in worker threads.

    :raises ProviderNotConfigured: there is none.
    """
    if not is_active():
        return cast(AsyncLockProvider, _AsyncUnlocked())  # has the three methods that guards use
    settings = current_settings()
    if given is None:
        given = settings.provider if settings.async_provider is None else settings.async_provider
    if given is None:
        raise _not_configured(lock_name, "configure(async_provider=…) or configure(provider=…)")
    return as_async_provider(given)


def as_provider(provider: object) -> LockProvider:
    """``provider`` for ordinary code.

    :raises ConfigurationError: it is for async code.
    """
    if is_async_provider(provider):
        raise ConfigurationError("the lock is on an async provider: await the async twin, such as extend_lock_async(…)")
    return cast(LockProvider, provider)


def as_async_provider(provider: object) -> AsyncLockProvider:
    """``provider`` for async code: itself, or called in worker threads."""
    if is_async_provider(provider):
        return cast(AsyncLockProvider, provider)
    from shedlock_py._aio import ThreadedProvider  # late: loads asyncio

    return ThreadedProvider(cast(LockProvider, provider))


def _not_configured(lock_name: str, call: str) -> ProviderNotConfigured:
    return ProviderNotConfigured(f"no provider for lock {lock_name!r}: call {call} first, or pass provider=…")


class _Unlocked:
    """Grants everything and remembers nothing: for :func:`set_active`."""

    def acquire(self, request: LockRequest) -> Lease | None:
        return Claim(request, monotonic).granted(None)

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return lease.begin_extension(lock_at_most_for).granted()

    def release(self, lease: Lease) -> bool:
        lease.end()
        return True


class _AsyncUnlocked:
    """:class:`_Unlocked` for async code."""

    async def acquire(self, request: LockRequest) -> Lease | None:
        return _Unlocked().acquire(request)

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return _Unlocked().extend(lease, lock_at_most_for)

    async def release(self, lease: Lease) -> bool:
        return _Unlocked().release(lease)
