"""The defaults of this process: provider, durations, holder, listeners. Guards look them up at each call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from types import TracebackType
from typing import Any, cast

from shedlock_py.errors import ConfigurationError
from shedlock_py.events import Listener, log_listener
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.request import LockRequest, check_hold_times, checked_lock_name, validate_holder
from shedlock_py.model.text import quoted
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.settings.environment import settings_of
from shedlock_py.settings.off_switch import is_active
from shedlock_py.settings.options import (
    NO_URL,
    WITHOUT_HEARTBEATS,
    check_keep_alive_limit,
    is_async_callable,
    is_async_provider,
    parse_keep_alive,
)
from shedlock_py.settings.urls import async_provider_from_text, provider_from_text, reopening


@dataclass(frozen=True)
class Settings:
    """All defaults of a process. :func:`configure` changes some of them; ``Settings(…).apply()`` sets all at once."""

    provider: LockProvider | AsyncLockProvider | str | None = field(default=None, repr=False)
    async_provider: AsyncLockProvider | str | None = field(default=None, repr=False)
    default_lock_at_most_for: timedelta | None = timedelta(minutes=10)
    default_lock_at_least_for: timedelta = timedelta(0)
    keep_alive: bool | timedelta = False
    holder: str | None = None
    listeners: tuple[Listener, ...] = (log_listener,)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from environment variables. ``Settings.from_env().apply()`` makes them the defaults.

        ``SHEDLOCK_STORE`` (a URL as for :func:`provider_from_url`, or ``"pkg.module:provider_or_factory"``),
        ``SHEDLOCK_LOCK_AT_MOST_FOR`` ("10m"), ``SHEDLOCK_LOCK_AT_LEAST_FOR`` ("0s"), ``SHEDLOCK_KEEP_ALIVE`` (true,
        false or "2h"), ``SHEDLOCK_HOLDER``. A variable that is missing or empty leaves the default of
        :func:`configure`. ``SHEDLOCK_ACTIVE`` needs no call: see :func:`set_active`.

        :param environ: replaces ``os.environ``.
        :raises ConfigurationError: a value that cannot work. The message never quotes a store: it may have a password.
        """
        return cls(**settings_of(environ))

    def apply(self) -> _Restore:
        """Make these settings the defaults of this process. As a context manager, restore the previous ones at the end.

        :raises ConfigurationError: a provider or a listener is of the wrong kind, or a value cannot work.
        """
        return _apply(self)

    def _checked(self) -> Settings:
        """Check these settings, and return them with open providers in place of URLs, each in its own field.

        :raises ConfigurationError: they cannot work.
        """
        keep_alive = parse_keep_alive(self.keep_alive) or False
        _checked_listeners(self.listeners)
        provider, asynchronous = self.provider, self.async_provider
        provider = provider_from_text(provider) if isinstance(provider, str) else provider
        asynchronous = async_provider_from_text(asynchronous) if isinstance(asynchronous, str) else asynchronous
        if asynchronous is not None and not is_async_provider(asynchronous):
            raise ConfigurationError(f"{type(asynchronous).__name__} is not an async provider: configure(provider=…)")
        if provider is not None and is_async_provider(provider):
            if asynchronous is not None:
                raise ConfigurationError(
                    f"{type(provider).__name__} is an async provider, as is async_provider: give one of them, or a "
                    f"sync provider of the same store in its place"
                )
            provider, asynchronous = None, cast(AsyncLockProvider, provider)
        if self.default_lock_at_most_for is not None:
            check_hold_times(self.default_lock_at_most_for, self.default_lock_at_least_for)
            names = ("keep_alive", "default_lock_at_most_for")
            check_keep_alive_limit(keep_alive, self.default_lock_at_most_for, names)
        return replace(self, provider=provider, async_provider=asynchronous, keep_alive=keep_alive)


_DEFAULTS = Settings()


class _Current:
    """The settings of this process. Each change replaces them as a whole, so a reader reads them once."""

    settings = _DEFAULTS


current = _Current()


def _set(settings: Settings) -> _Restore:
    previous, current.settings = current.settings, settings
    return _Restore(previous)


def _apply(settings: Settings, *, create_schema: bool = False) -> _Restore:
    """Open the URLs of ``settings``, check all of them, and make them the defaults.

    :raises ConfigurationError: they cannot work; nothing is changed.
    :raises ProviderError: the tables cannot be created; nothing is changed.
    """
    with reopening(settings.provider, settings.async_provider):
        checked = settings._checked()
        if create_schema and is_active():
            _create_schema(checked)
    return _set(checked)


class _Restore:
    """Restores the previous settings when used as a context manager."""

    def __init__(self, previous: Settings) -> None:
        self._previous = previous

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _set(self._previous)


class _Unchanged:
    def __repr__(self) -> str:
        return "<unchanged>"


_UNCHANGED: Any = _Unchanged()


def configure(
    provider: LockProvider | AsyncLockProvider | str = _UNCHANGED,
    *,
    async_provider: AsyncLockProvider | str = _UNCHANGED,
    default_lock_at_most_for: Duration | None = _UNCHANGED,
    default_lock_at_least_for: Duration = _UNCHANGED,
    keep_alive: bool | Duration = _UNCHANGED,
    holder: str | None = _UNCHANGED,
    listeners: Iterable[Listener] = _UNCHANGED,
    create_schema: bool = False,
) -> _Restore:
    """Set the defaults of this process: ``configure("postgresql://user@host/db", create_schema=True)``.

    A later call changes only the defaults that it names. :func:`reset` restores the initial defaults. Decorators look
    the defaults up when the function is called, so ``configure`` may come after them. As a context manager, it restores
    the previous defaults at the end::

        with configure(InMemoryLockProvider()):
            test_something()

    :param provider: the store, as a provider or a URL (see :func:`provider_from_url`). It also replaces the
        ``async_provider`` of an earlier call. An async provider (``"postgresql+asyncpg://…"``) serves ``async def``
        tasks only.
    :param async_provider: the same store for ``async def`` tasks. Without it they use ``provider`` in a worker thread.
    :param default_lock_at_most_for: for locks without a ``lock_at_most_for``; initially 10 minutes. None: every lock
        must have its own.
    :param default_lock_at_least_for: for locks without a ``lock_at_least_for``; initially zero.
    :param keep_alive: renew leases, every third of them, until their task ends. A duration such as "2h" limits this
        time. Each lock can have its own option.
    :param holder: the name of this process in lock records; ``host:pid`` by default.
    :param listeners: called with every event. The log always has the events, in the logger ``shedlock_py``.
    :param create_schema: create the tables of the store if they are missing. Safe when ten processes do it at once.
    :raises ConfigurationError: a value that cannot work, such as None for a provider; nothing is changed.
    :raises ProviderError: the tables cannot be created; nothing is changed.
    """
    given: dict[str, Any] = {
        "provider": provider,
        "async_provider": async_provider,
        "default_lock_at_most_for": default_lock_at_most_for,
        "default_lock_at_least_for": default_lock_at_least_for,
        "keep_alive": keep_alive,
        "holder": holder,
        "listeners": listeners,
    }
    return _configure(given, create_schema)


def _configure(given: Mapping[str, Any], create_schema: object = False) -> _Restore:
    changes = {name: _parse(name, value) for name, value in given.items() if value is not _UNCHANGED}
    if "provider" in changes:
        changes.setdefault("async_provider", None)
    if not isinstance(create_schema, bool):
        raise ConfigurationError(f"create_schema must be True or False, not {quoted(create_schema)}")
    return _apply(replace(current.settings, **changes), create_schema=create_schema)


def _parse(name: str, value: Any) -> Any:
    match name:
        case "provider" | "async_provider" if value is None:
            raise ConfigurationError(f"{name} is None. {NO_URL}")
        case "default_lock_at_most_for":
            return None if value is None else parse_duration(value, name)
        case "default_lock_at_least_for":
            return parse_duration(value, name, zero=True)
        case "holder":
            return None if value is None else validate_holder(value)
        case "listeners":
            return (log_listener, *_checked_listeners(value))
    return value


def _create_schema(settings: Settings) -> None:
    if settings.provider is not None:
        cast(LockProvider, settings.provider).create_schema()
    elif settings.async_provider is not None:
        raise ConfigurationError(
            "create_schema=True cannot await an async provider: await provider.create_schema() at start-up instead"
        )
    else:
        raise ConfigurationError(
            "create_schema=True needs the store: configure('postgresql://user@host/db', create_schema=True)"
        )


def reset() -> _Restore:
    """Restore the initial defaults: no provider, 10 minutes, no listeners except the log.

    Undoes every :func:`configure`. As a context manager, it restores the previous defaults at the end.
    """
    return _set(_DEFAULTS)


def _checked_listeners(listeners: object) -> list[Listener]:
    if not isinstance(listeners, Iterable):
        raise ConfigurationError(f"listeners={quoted(listeners)} is not a list: listeners=[…]")
    found = list(listeners)
    for listener in found:
        if isinstance(listener, type):
            raise ConfigurationError(f"listener {listener.__name__} is a class: make one, as in {listener.__name__}()")
        if not callable(listener) or is_async_callable(listener):
            raise ConfigurationError(f"listener {quoted(listener)} is not an ordinary function that takes an event")
    return found


def lock_request(
    name: str,
    lock_at_most_for: Duration | None = None,
    lock_at_least_for: Duration | None = None,
    fire_time: datetime | None = None,
    template: str | None = None,
) -> LockRequest:
    """Return a request. The configured defaults replace missing arguments.

    :raises ConfigurationError: no ``lock_at_most_for``, or a value that cannot work.
    """
    settings = current.settings
    at_most = settings.default_lock_at_most_for if lock_at_most_for is None else lock_at_most_for
    if at_most is None and not is_active():
        at_most = "10m"  # nothing is locked, so it does not matter
    if at_most is None:
        checked_lock_name(name)
        raise ConfigurationError(
            f"lock {name!r} has no lock_at_most_for: give it one, or call configure(default_lock_at_most_for='10m')"
        )
    at_least = settings.default_lock_at_least_for if lock_at_least_for is None else lock_at_least_for
    if fire_time is None:
        with suppress(TypeError):  # a value that is not hashable is refused below
            return _checked_request(name, at_most, at_least, settings.holder, template, os.getpid())
    return LockRequest(name, at_most, at_least, settings.holder, fire_time, template)


@lru_cache(maxsize=1024, typed=True)
def _checked_request(
    name: str, at_most: Duration, at_least: Duration, holder: str | None, template: str | None, _process: int
) -> LockRequest:
    """:param _process: the default holder names it, so a forked child gets its own request."""
    return LockRequest(name, at_most, at_least, holder, template=template)


def keep_alive_in_use(keep_alive: bool | timedelta | None) -> bool | timedelta:
    """Return the option of a lock, or else the default. Without locking, nothing is kept alive.

    A duration is how long after the start of a run its heartbeats end.
    """
    chosen = current.settings.keep_alive if keep_alive is None else keep_alive
    return chosen if chosen and is_active() else False


def check_kept_alive(what: str, keep_alive: bool | timedelta | None) -> None:
    """Check that a guard with ``recover=True`` has heartbeats. The error names the lock or job ``what``.

    :raises ConfigurationError: no heartbeats.
    """
    if is_active() and not keep_alive_in_use(keep_alive):
        raise ConfigurationError(
            f"{what}: recover=True needs keep_alive=True, here or in configure(): {WITHOUT_HEARTBEATS}"
        )


def is_configured() -> bool:
    """Return whether :func:`configure` was called, so that the defaults are known."""
    return current.settings is not _DEFAULTS
