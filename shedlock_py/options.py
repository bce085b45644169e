"""The options of a guard: what they are called, and what is refused.

An option stands in two places here, :class:`LockOptions` and its twin for callers, and is spelled out once for people,
on ``scheduler_lock``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from reprlib import repr as short_repr
from typing import Any, Generic, TypedDict, TypeVar

from shedlock_py.durations import Duration, parse_duration
from shedlock_py.errors import ConfigurationError
from shedlock_py.events import LeaseLost
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.request import LockRequest, check_hold_times
from shedlock_py.urls import checked_text, provider_from_text

OnLost = str | Callable[[LeaseLost], Any]
"""What happens when a lease is lost while its task runs: "continue", "cancel" (async only), or a callable."""

ProviderT = TypeVar("ProviderT")


class KeywordOptions(TypedDict, Generic[ProviderT], total=False):
    """The options of every guard that callers pass as keywords. ``ProviderT``: the kind of provider it takes."""

    provider: ProviderT | str | None
    keep_alive: bool | None
    on_lost: OnLost
    expected_every: Duration | None


class GuardOptions(KeywordOptions[ProviderT], Generic[ProviderT], total=False):
    """:class:`KeywordOptions`, and the durations, which ``scheduler_lock`` takes as positional arguments, too."""

    lock_at_most_for: Duration | None
    lock_at_least_for: Duration | None


@dataclass(frozen=True)
class LockOptions:
    """The options of one guard, parsed and checked. None: the default of :func:`configure` at that time."""

    lock_at_most_for: timedelta | None = None
    lock_at_least_for: timedelta | None = None
    provider: LockProvider | AsyncLockProvider | str | None = field(default=None, repr=False)
    """A URL, perhaps with a password, is opened at the first use."""
    keep_alive: bool | None = None
    on_lost: OnLost = "continue"
    expected_every: timedelta | None = None

    @classmethod
    def parse(cls, function: str, given: Mapping[str, Any], *, is_async: bool = True) -> LockOptions:
        """The options that a caller passed to ``function``.

        :param is_async: whether it guards async code, in which ``on_lost`` can do more.
        :raises TypeError: there is no such option.
        :raises ConfigurationError: a value that cannot work.
        """
        names = [each.name for each in fields(cls)]
        for name in given:
            if name not in names:
                known = ", ".join(names)
                raise TypeError(f"{function}() got an unexpected keyword argument {name!r}; its options are: {known}")
        at_most, at_least = given.get("lock_at_most_for"), given.get("lock_at_least_for")
        if at_most is not None:
            at_most = parse_duration(at_most, "lock_at_most_for")
        if at_least is not None:
            at_least = parse_duration(at_least, "lock_at_least_for", zero=True)
        if at_most is not None:
            check_hold_times(at_most, at_least or timedelta(0))
        every = given.get("expected_every")
        if every is not None:
            every = parse_duration(every, "expected_every")
        parsed = {"lock_at_most_for": at_most, "lock_at_least_for": at_least, "expected_every": every}
        options = cls(**{**given, **parsed, "provider": check_provider(given.get("provider"))})
        check_keep_alive(options.keep_alive)
        check_on_lost(options.on_lost, is_async=is_async)
        return options

    def with_next_run(self, request: LockRequest) -> LockRequest:
        """``request``, which says when the next run is expected, if these options do: history keeps it with the run.

        By the clock of this replica, as the fire times of a scheduler are. No lock depends on it.
        """
        if self.expected_every is None:
            return request
        return replace(request, next_fire_time=datetime.now(UTC) + self.expected_every)


def check_keep_alive(keep_alive: object) -> None:
    """:raises ConfigurationError: ``keep_alive`` is neither a bool nor None; "no" would be true."""
    if keep_alive is not None and not isinstance(keep_alive, bool):
        raise ConfigurationError(f"keep_alive must be True or False, not {short_repr(keep_alive)}")


def is_async_callable(found: object) -> bool:
    """Whether a call of it must be awaited: a coroutine function, or an object whose ``__call__`` is one."""
    return inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(getattr(type(found), "__call__", None))  # noqa: B004 (not "is it callable")


def check_on_lost(on_lost: OnLost, *, is_async: bool) -> None:
    """:raises ConfigurationError: ``on_lost`` cannot be done, or not to an ordinary function."""
    if on_lost == "continue":
        return
    if on_lost == "cancel" and not is_async:
        raise ConfigurationError(
            "on_lost='cancel' needs an async task: Python cannot stop a thread. Give a callable that stops the task, "
            "or let the task check lease.is_trusted()"
        )
    if is_async_callable(on_lost) and not is_async:
        raise ConfigurationError("on_lost is a coroutine function, but the guarded task is an ordinary one")
    if on_lost != "cancel" and not callable(on_lost):
        raise ConfigurationError(f"on_lost must be 'continue', 'cancel' or a callable, not {on_lost!r}")


def check_provider(provider: Any) -> Any:
    """Check the option ``provider`` of a guard, and strip a URL. Does not open the URL.

    :raises ConfigurationError: ``provider`` is not None, a provider, a URL or a reference.
    """
    if isinstance(provider, str):
        return checked_text(provider)
    if provider is not None:
        is_async_provider(provider)
    return provider


def required_provider(provider: Any) -> Any:
    """Return ``provider``, opened if it is a URL or a reference. One text gives one provider in this process.

    :raises ConfigurationError: ``provider`` is None or another object.
    """
    provider = provider_from_text(provider) if isinstance(provider, str) else provider
    is_async_provider(provider)
    return provider


def is_async_provider(provider: Any) -> bool:
    """Whether ``provider`` is for async code.

    :raises ConfigurationError: it is no provider at all.
    """
    if provider is None:
        raise ConfigurationError(f"the provider is None. {NO_URL}")
    if isinstance(provider, type):
        raise ConfigurationError(f"{provider.__name__} is a class: make a provider of it, as in {provider.__name__}(…)")
    package = type(provider).__module__.partition(".")[0]
    has_methods = callable(getattr(provider, "acquire", None)) and callable(getattr(provider, "release", None))
    if not has_methods or package in _CURES:
        cure = _CURES.get(package, "wrap it in one, such as SqlAlchemyLockProvider(engine)")
        origin = f", but of the package {package}" if package in _CURES else ""
        raise ConfigurationError(f"{type(provider).__name__} is not a lock provider{origin}: {cure}")
    return inspect.iscoroutinefunction(provider.acquire)


NO_URL = "Is the environment variable of its URL set? Give a provider, or a URL as in 'postgresql://user@host/db'"
_CURES = {
    "redis": "wrap the client: RedisLockProvider(client), AsyncRedisLockProvider(client) for a redis.asyncio one",
    "sqlalchemy": "wrap the engine: SqlAlchemyLockProvider(engine), AsyncSqlAlchemyLockProvider(engine)",
    "pymongo": "wrap the database: MongoLockProvider(client['name']), AsyncMongoLockProvider(client['name'])",
    "pathlib": "a SQLite file is given as a URL, such as 'sqlite:///locks.db'",
    **dict.fromkeys(
        ("psycopg", "psycopg2", "pymysql", "MySQLdb", "sqlite3", "asyncpg", "aiosqlite", "aiomysql", "asyncmy"),
        "give a URL or an SQLAlchemy engine instead of a connection: provider_from_url('postgresql://…')",
    ),
    **dict.fromkeys(
        ("apscheduler", "flask_apscheduler", "django_apscheduler"),
        "the provider is the store of the locks, as provider_from_url(…) makes it; "
        "a scheduler gets them with shedlock_py.integrations.apscheduler.install(scheduler, provider)",
    ),
    **dict.fromkeys(
        ("_thread", "threading", "asyncio", "multiprocessing"),
        "such a lock is for the threads or tasks of one process; a store that all replicas share is needed",
    ),
}
"""What to do with objects of other packages that are passed as a provider; some have methods of the same names."""
