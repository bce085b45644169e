"""Find the provider of a guard: its own, or the configured provider. A guard looks it up at each call."""

from __future__ import annotations

import os
from typing import Any, cast

from shedlock_py.errors import ConfigurationError, ProviderNotConfigured
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.settings.defaults import current, is_configured
from shedlock_py.settings.off_switch import ASYNC_UNLOCKED, UNLOCKED, is_active
from shedlock_py.settings.options import is_async_provider
from shedlock_py.settings.urls import async_provider_from_url, opened_providers, provider_from_text


def configured_providers(given: object = None) -> tuple[object, ...]:
    """Return the provider of a guard, or without ``given`` the configured providers of the store.

    Opens no URL: no lease can be held on a provider that was not made yet.
    """
    if given is not None:
        return (opened_providers(given) or (given,)) if isinstance(given, str) else (given,)
    settings = current.settings
    return tuple(provider for provider in (settings.provider, settings.async_provider) if provider is not None)


def why_no_provider() -> str:
    """Return the reason why this process lacks a configured provider, and the cure."""
    if os.environ.get("SHEDLOCK_STORE", "").strip():
        return "SHEDLOCK_STORE is set, but nothing has read it: call Settings.from_env().apply() at start-up"
    found = "configure() was called without a store" if is_configured() else "configure() was not called"
    return f"{found} in this process: call configure('postgresql://user@host/db') at start-up, or pass provider=…"


def _no_provider(lock_name: str) -> ProviderNotConfigured:
    return ProviderNotConfigured(f"no provider for lock {lock_name!r}: {why_no_provider()}")


def resolve_provider(given: Any, lock_name: str) -> LockProvider:
    """Return the provider for an ordinary function: ``given``, or else the configured provider.

    :raises ProviderNotConfigured: no provider was given or configured.
    :raises ConfigurationError: the only provider is for async functions.
    """
    if not is_active():
        return cast(LockProvider, UNLOCKED)
    settings = current.settings  # once: another thread may call configure() meanwhile
    if given is None and settings.provider is not None:
        return cast(LockProvider, settings.provider)
    if given is None and settings.async_provider is None:
        raise _no_provider(lock_name)
    if isinstance(given, str):
        given = provider_from_text(given)
    if given is None or is_async_provider(given):
        raise ConfigurationError(
            f"lock {lock_name!r} guards an ordinary function, but there is only an async provider: make the function "
            f"'async def', or in async code write 'async with hold_async(…)', or give the same store for ordinary "
            f"functions, too: configure('postgresql://…', async_provider=…), or provider='postgresql://…' for this lock"
        )
    return cast(LockProvider, given)


def resolve_async_provider(given: object, lock_name: str) -> AsyncLockProvider:
    """Return the provider for an ``async def`` function: ``given``, or else the configured provider.

    A sync provider is called in worker threads.

    :raises ProviderNotConfigured: no provider was given or configured.
    """
    if not is_active():
        return cast(AsyncLockProvider, ASYNC_UNLOCKED)
    if given is None:
        settings = current.settings
        given = settings.provider if settings.async_provider is None else settings.async_provider
    if given is None:
        raise _no_provider(lock_name)
    if isinstance(given, str):
        given = provider_from_text(given)
    return as_async_provider(given)


def as_provider(provider: object) -> LockProvider:
    """Return ``provider`` for ordinary code.

    :raises ConfigurationError: it is for async code.
    """
    if is_async_provider(provider):
        raise ConfigurationError("the lock is on an async provider: await the async twin, such as extend_lock_async(…)")
    return cast(LockProvider, provider)


def as_async_provider(provider: object) -> AsyncLockProvider:
    """Return ``provider`` for async code. A sync provider is called in worker threads."""
    if is_async_provider(provider):
        return cast(AsyncLockProvider, provider)
    from shedlock_py.runtime.asyncio_tools import ThreadedProvider  # late: loads asyncio

    return ThreadedProvider(cast(LockProvider, provider))


def sync_provider(text: str) -> Any:
    """Return the provider of a URL or of a reference, for ordinary code.

    An async provider gets an event loop in a thread. It is used if the URL has no sync provider.
    """
    try:
        provider = provider_from_text(text)
    except ConfigurationError as error:
        if "://" not in text:
            raise
        try:
            provider = async_provider_from_url(text)
        except ConfigurationError:
            raise error from None
    if not is_async_provider(provider):
        return provider
    from shedlock_py.runtime.blocking import OnOwnLoop  # late: loads asyncio

    return OnOwnLoop(lambda: provider)
