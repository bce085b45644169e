"""The process-wide defaults: which provider, how long, who we are, who listens. Looked up late, at each call."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from shedlock_py._clock import monotonic
from shedlock_py.durations import Duration, parse_duration
from shedlock_py.errors import ConfigurationError, ProviderNotConfigured
from shedlock_py.events import Event, Listener, log_listener, logger, notify
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.rules import Claim, Lease, LockRequest, check_hold_times, validate_holder

if TYPE_CHECKING:
    from shedlock_py._aio import ThreadedProvider


@dataclass(frozen=True)
class Settings:
    """What :func:`configure` sets."""

    provider: LockProvider | None = None
    async_provider: AsyncLockProvider | None = None
    default_lock_at_most_for: timedelta | None = None
    default_lock_at_least_for: timedelta = timedelta(0)
    keep_alive: bool = False
    holder: str | None = None
    listeners: tuple[Listener, ...] = (log_listener,)


_settings = Settings()


class _Restore:
    """Puts the previous settings back when used as a context manager."""

    def __init__(self, previous: Settings) -> None:
        self._previous = previous

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        global _settings
        _settings = self._previous


def configure(
    provider: LockProvider | str | None = None,
    async_provider: AsyncLockProvider | str | None = None,
    default_lock_at_most_for: Duration | None = "10m",
    default_lock_at_least_for: Duration = "0s",
    keep_alive: bool = False,
    holder: str | None = None,
    listeners: Iterable[Listener] = (),
) -> _Restore:
    """Set the defaults of this process, replacing the former ones as a whole.

    Decorators look them up when the function is called, so ``configure`` may come after them. Used as a context
    manager, it restores the former defaults at the end::

        with configure(provider=InMemoryLockProvider()):
            test_something()

    :param provider: the store, as a provider or a URL (see :func:`provider_from_url`).
    :param async_provider: the store for ``async def`` tasks; without one they use ``provider`` in a worker thread.
    :param default_lock_at_most_for: for locks that do not say; None makes every lock say it itself.
    :param default_lock_at_least_for: likewise.
    :param keep_alive: extend leases, every third of them, until their task ends, where a lock does not say otherwise.
    :param holder: how this process is named in lock records; ``host:pid`` by default.
    :param listeners: called with every event, besides the one that writes to the logger ``shedlock_py``.
    :raises ConfigurationError: for a value that cannot work.
    """
    global _settings
    if isinstance(provider, str):
        provider = provider_from_url(provider)
    if isinstance(async_provider, str):
        async_provider = async_provider_from_url(async_provider)
    if provider is not None and is_async_provider(provider):
        raise ConfigurationError(f"{type(provider).__name__} is an async provider: configure(async_provider=…)")
    if async_provider is not None and not is_async_provider(async_provider):
        raise ConfigurationError(f"{type(async_provider).__name__} is not an async provider: configure(provider=…)")
    at_most = default_lock_at_most_for
    parsed_at_most = None if at_most is None else parse_duration(at_most, "default_lock_at_most_for")
    at_least = parse_duration(default_lock_at_least_for, "default_lock_at_least_for", zero=True)
    if parsed_at_most is not None:
        check_hold_times(parsed_at_most, at_least)
    previous, _settings = (
        _settings,
        Settings(
            provider=provider,
            async_provider=async_provider,
            default_lock_at_most_for=parsed_at_most,
            default_lock_at_least_for=at_least,
            keep_alive=keep_alive,
            holder=None if holder is None else validate_holder(holder),
            listeners=(log_listener, *listeners),
        ),
    )
    return _Restore(previous)


def emit(event: Event) -> None:
    """Tell the configured listeners."""
    notify(_settings.listeners, event)


def lock_request(
    name: str,
    lock_at_most_for: Duration | None = None,
    lock_at_least_for: Duration | None = None,
    fire_time: datetime | None = None,
) -> LockRequest:
    """A request with the configured defaults for what is None.

    :raises ConfigurationError: nobody said how long, or a value cannot work.
    """
    settings = _settings
    at_most = settings.default_lock_at_most_for if lock_at_most_for is None else lock_at_most_for
    if at_most is None and not is_active():
        at_most = "10m"  # nothing is locked, so it does not matter
    if at_most is None:
        raise ConfigurationError(
            f"lock {name!r} has no lock_at_most_for: give it one, or call configure(default_lock_at_most_for='10m')"
        )
    at_least = settings.default_lock_at_least_for if lock_at_least_for is None else lock_at_least_for
    return LockRequest(name, at_most, at_least, holder=settings.holder, fire_time=fire_time)


def is_kept_alive(keep_alive: bool | None) -> bool:
    """What a lock says, or else the default; nothing is kept alive where nothing is locked."""
    return is_active() and (_settings.keep_alive if keep_alive is None else keep_alive)


# Which provider


def configured_providers() -> tuple[object, ...]:
    """Those that :func:`configure` was given: of one store, as the two kinds of functions need it."""
    return tuple(provider for provider in (_settings.provider, _settings.async_provider) if provider is not None)


def resolve_provider(given: object = None, *, lock_name: str) -> LockProvider:
    """The provider for an ordinary function: ``given``, else the configured one.

    :raises ProviderNotConfigured: there is none.
    :raises ConfigurationError: there is only one for async functions.
    """
    if not is_active():
        return cast(LockProvider, _Unlocked())  # has the three methods that guards use
    provider = given if given is not None else _settings.provider
    if provider is None and _settings.async_provider is None:
        raise _not_configured(lock_name, "configure(provider=…)")
    if provider is None or is_async_provider(provider):
        raise ConfigurationError(
            f"lock {lock_name!r} guards an ordinary function, but there is only an async provider: make the function "
            f"'async def', or give a sync provider of the same store with configure(provider=…) or provider=…"
        )
    return cast(LockProvider, provider)


def resolve_async_provider(given: object = None, *, lock_name: str) -> AsyncLockProvider:
    """The provider for an ``async def`` function: ``given``, else the configured one; a sync one in worker threads.

    :raises ProviderNotConfigured: there is none.
    """
    if not is_active():
        return cast(AsyncLockProvider, _AsyncUnlocked())  # has the three methods that guards use
    configured = _settings.provider if _settings.async_provider is None else _settings.async_provider
    provider = configured if given is None else given
    if provider is None:
        raise _not_configured(lock_name, "configure(async_provider=…) or configure(provider=…)")
    return as_async_provider(provider)


def as_provider(provider: object) -> LockProvider:
    """``provider`` for ordinary code.

    :raises ConfigurationError: it is for async code.
    """
    if is_async_provider(provider):
        raise ConfigurationError("the lock is on an async provider: await the async twin, such as extend_lock_async(…)")
    return cast(LockProvider, provider)


def as_async_provider(provider: object) -> AsyncLockProvider:
    """``provider`` for async code: itself, or asked in worker threads."""
    if is_async_provider(provider):
        return cast(AsyncLockProvider, provider)
    return _threaded(cast(LockProvider, provider))


def _not_configured(lock_name: str, call: str) -> ProviderNotConfigured:
    return ProviderNotConfigured(f"no provider for lock {lock_name!r}: call {call} first, or pass provider=…")


def _threaded(provider: LockProvider) -> ThreadedProvider:
    from shedlock_py._aio import ThreadedProvider  # late: loads asyncio

    return ThreadedProvider(provider)


def is_async_provider(provider: object) -> bool:
    """Whether ``provider`` is for async code.

    :raises ConfigurationError: it is no provider at all.
    """
    acquire = getattr(provider, "acquire", None)
    if isinstance(provider, type):
        raise ConfigurationError(f"{provider.__name__} is a class: make a provider of it, as in {provider.__name__}(…)")
    if not callable(acquire) or not callable(getattr(provider, "release", None)):
        raise ConfigurationError(
            f"{type(provider).__name__} is not a lock provider: wrap it in one, such as SqlAlchemyLockProvider(engine)"
        )
    return inspect.iscoroutinefunction(acquire)


def check_provider(provider: object) -> None:
    """:raises ConfigurationError: ``provider`` is neither None nor an object with a provider's methods."""
    if isinstance(provider, str):
        raise ConfigurationError("provider= takes a provider object: provider_from_url(…) makes one from a URL")
    if provider is not None:
        is_async_provider(provider)


# Providers from URLs. The scheme picks the module, which is imported only then.

_SQL = ("shedlock_py.providers.sqlalchemy", "SqlAlchemyLockProvider", "sqlalchemy")
_REDIS = ("shedlock_py.providers.redis", "RedisLockProvider", "redis")
_REDIS_QUORUM = ("shedlock_py.providers.redis", "RedisQuorumLockProvider", "redis")
_MONGODB = ("shedlock_py.providers.mongodb", "MongoLockProvider", "mongodb")
_SCHEMES = {
    "memory": ("shedlock_py.providers.memory", "InMemoryLockProvider", ""),
    **dict.fromkeys(("sqlite", "postgresql", "postgres", "mysql", "mariadb"), _SQL),
    **dict.fromkeys(("redis", "rediss", "unix"), _REDIS),
    **dict.fromkeys(("redis+quorum", "rediss+quorum"), _REDIS_QUORUM),
    **dict.fromkeys(("mongodb", "mongodb+srv"), _MONGODB),
}
_DRIVERS_IN_SCHEME = _SQL  # SQLAlchemy's way to name one: postgresql+psycopg

ENTRY_POINTS = {"": "shedlock_py.providers", "Async": "shedlock_py.async_providers"}
"""The entry-point groups in which other packages offer providers: the name is the scheme, the value takes the URL."""


def provider_from_url(url: str) -> LockProvider:
    """A provider for the store at ``url``; nothing is connected yet.

    ``sqlite:///locks.db``, ``postgresql://user@host/db``, ``mysql://…``, ``mariadb://…`` (a driver may be named as
    SQLAlchemy does: ``postgresql+psycopg://…``), ``redis://…``, ``rediss://…``, ``unix:///path/to/redis.sock``,
    ``redis+quorum://host1,host2,host3``, ``mongodb://host/db``, ``memory://``, and the schemes that installed packages
    offer in the entry-point group ``shedlock_py.providers``.

    :raises ConfigurationError: an unknown scheme, or a package that is missing (with the ``pip install`` line).
    """
    provider: LockProvider = _from_url(url, "")
    return provider


def async_provider_from_url(url: str) -> AsyncLockProvider:
    """:func:`provider_from_url` for asyncio: picks an async driver where the URL names none.

    Other packages offer theirs in the entry-point group ``shedlock_py.async_providers``.
    """
    provider: AsyncLockProvider = _from_url(url, "Async")
    return provider


def _from_url(url: str, prefix: str) -> Any:
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    known = _SCHEMES.get(scheme)
    if known is None and _SCHEMES.get(scheme.partition("+")[0]) is _DRIVERS_IN_SCHEME:
        known = _DRIVERS_IN_SCHEME
    if known is None:
        return _from_another_package(url, scheme, ENTRY_POINTS[prefix])
    module, name, extra = known
    try:
        provider_class = getattr(import_module(module), prefix + name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"a store at {scheme}:// needs the package {error.name!r}: pip install 'shedlock_py[{extra}]'"
        ) from error
    return provider_class() if scheme == "memory" else provider_class(url)


def _from_another_package(url: str, scheme: str, group: str) -> Any:
    from importlib.metadata import entry_points  # late: slow, and needed by few

    offered = entry_points(group=group)
    if scheme not in offered.names:
        what = f"unknown scheme {scheme!r}" if scheme else "not a URL"
        known = ", ".join(f"{known}://" for known in (*_SCHEMES, *sorted(offered.names)))
        raise ConfigurationError(f"store URL: {what}; known are {known}")
    entry_point = offered[scheme]
    try:
        make_provider = entry_point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the provider for {scheme}:// that {entry_point.value!r} names cannot be loaded: {error}"
        ) from error
    return make_provider(url)


# Running without locks

_active: bool | None = None
_warned = False


def set_active(active: bool | None) -> None:
    """Switch locking off (False) or on (True) for this process; None: as ``SHEDLOCK_ACTIVE`` says (``0`` is off).

    Off, every task runs, without a lock and without asking the store: for a developer's machine, never for
    production. One warning is logged.
    """
    global _active, _warned
    _active, _warned = active, False


def is_active() -> bool:
    """Whether locks are taken at all."""
    global _warned
    if _active is None:
        active = os.environ.get("SHEDLOCK_ACTIVE", "1").strip().lower() not in ("0", "false", "no", "off")
    else:
        active = _active
    if not active and not _warned:
        _warned = True
        why = "set_active(False)" if _active is False else "SHEDLOCK_ACTIVE"
        logger.warning("LOCKING IS SWITCHED OFF by %s: every replica runs every task", why)
    return active


class _Unlocked:
    """Grants everything, remembers nothing."""

    def acquire(self, request: LockRequest) -> Lease | None:
        return Claim(request, monotonic).granted(None)

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return lease.begin_extension(lock_at_most_for).granted()

    def release(self, lease: Lease) -> bool:
        lease.end()
        return True


class _AsyncUnlocked:
    """Grants everything, remembers nothing."""

    async def acquire(self, request: LockRequest) -> Lease | None:
        return Claim(request, monotonic).granted(None)

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return lease.begin_extension(lock_at_most_for).granted()

    async def release(self, lease: Lease) -> bool:
        lease.end()
        return True
