"""The options of a guard: their names and their checks.

An option is in two places here, :class:`LockOptions` and its twin for callers. ``scheduler_lock`` documents it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Literal, TypedDict, TypeVar, cast

from shedlock_py.errors import ConfigurationError
from shedlock_py.events import LeaseLost
from shedlock_py.model.booleans import boolean_of
from shedlock_py.model.durations import Duration, is_duration, parse_duration
from shedlock_py.model.lease import MOST_RECOVERIES
from shedlock_py.model.recovery import DEFAULT_MOST_RECOVERIES
from shedlock_py.model.request import LockRequest, check_hold_times, in_utc
from shedlock_py.model.slots import current_slot, slot_of
from shedlock_py.model.text import quoted
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.settings.urls import checked_text, provider_from_text

OnLost = Literal["continue", "cancel"] | Callable[[LeaseLost], Any]
"""The reaction if a lease is lost while its task runs: "continue", "cancel" (async only), or a callable."""

ProviderT = TypeVar("ProviderT")


class KeywordOptions(TypedDict, Generic[ProviderT], total=False):
    """The options of every guard that callers pass as keywords. ``ProviderT`` is the guard's kind of provider."""

    once_per: Duration | None
    provider: ProviderT | str | None
    keep_alive: bool | Duration | None
    on_lost: OnLost
    expected_every: Duration | None
    recover: bool
    max_recoveries: int


class GuardOptions(KeywordOptions[ProviderT], Generic[ProviderT], total=False):
    """:class:`KeywordOptions`, and the durations, which are also positional arguments of ``scheduler_lock``."""

    lock_at_most_for: Duration | None
    lock_at_least_for: Duration | None
    fire_time: datetime | None
    wait: Duration | None


@dataclass(frozen=True)
class LockOptions:
    """The options of one guard, parsed and checked. None: the default of :func:`configure` at that time."""

    lock_at_most_for: timedelta | None = None
    lock_at_least_for: timedelta | None = None
    provider: LockProvider | AsyncLockProvider | str | None = field(default=None, repr=False)
    """A URL, perhaps with a password, is opened at the first use."""
    keep_alive: bool | timedelta | None = None
    """A duration: heartbeats end so long after the start of the run."""
    on_lost: OnLost = "continue"
    expected_every: timedelta | None = None
    once_per: timedelta | None = None
    fire_time: datetime | Callable[..., datetime] | None = None
    """For a decorated function, a function of the call's arguments."""
    wait: timedelta | None = None
    recover: bool = False
    max_recoveries: int = DEFAULT_MOST_RECOVERIES

    @classmethod
    def parse(cls, function: str, given: Mapping[str, Any], *, is_async: bool = True) -> LockOptions:
        """Return the options that a caller passed to ``function``.

        :param is_async: whether it guards async code, where ``on_lost`` can do more.
        :raises TypeError: an unknown option.
        :raises ConfigurationError: a value that cannot work.
        """
        names = [each.name for each in fields(cls)]
        for name in given:
            if name not in names:
                known = ", ".join(names)
                raise TypeError(f"{function}() got an unexpected keyword argument {name!r}; its options are: {known}")
        parsed = {**given, "provider": check_provider(given.get("provider"))}
        for name, may_be_zero in _DURATIONS.items():
            if given.get(name) is not None:
                parsed[name] = parse_duration(given[name], name, zero=may_be_zero)
        parsed["keep_alive"] = parse_keep_alive(given.get("keep_alive"))
        options = cls(**parsed)
        if options.lock_at_most_for is not None:
            check_hold_times(options.lock_at_most_for, options.lock_at_least_for or timedelta(0))
            check_keep_alive_limit(options.keep_alive, options.lock_at_most_for)
        check_fire_time(options.fire_time, of_decorator=function == "scheduler_lock")
        check_on_lost(options.on_lost, is_async=is_async)
        check_recovery(options.recover, options.max_recoveries)
        if options.recover and options.keep_alive is False:
            raise ConfigurationError(f"recover=True needs keep_alive=True: {WITHOUT_HEARTBEATS}")
        return options

    @property
    def gives_fire_time(self) -> bool:
        """Whether a run has a fire time by ``once_per`` or ``fire_time``."""
        return self.once_per is not None or self.fire_time is not None

    def for_a_run(self, request: LockRequest, fire_time: object = None) -> LockRequest:
        """Return ``request`` for a run that begins now, with its fire time and its next expected time.

        Both use this replica's clock, like the fire times of a scheduler.

        :param fire_time: the fire time of this call, if these options have a function for it.
        :raises ConfigurationError: ``fire_time`` is not an aware datetime.
        """
        if self.once_per is None and self.fire_time is None and self.expected_every is None:
            return request
        now, more = datetime.now(UTC), dict[str, Any]()
        given = self.fire_time if fire_time is None else fire_time
        if given is not None:
            moment = in_utc(given, "fire_time")
            more["fire_time"] = moment if self.once_per is None else slot_of(moment, self.once_per)
        elif self.once_per is not None:
            more["fire_time"] = current_slot(now, self.once_per)
        if self.expected_every is not None:
            more["next_fire_time"] = now + self.expected_every
        return replace(request, **more)

    def fire_time_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        """Return the fire time of one call of the decorated function, if these options have a function for it.

        :raises ConfigurationError: the function's result is not an aware datetime.
        """
        if not callable(self.fire_time):
            return None
        return in_utc(self.fire_time(*args, **kwargs), "the result of the function fire_time=")


_DURATIONS = {
    "lock_at_most_for": False,
    "lock_at_least_for": True,
    "expected_every": False,
    "once_per": False,
    "wait": True,
}
"""The options that are durations, and whether the option may be zero."""


def check_fire_time(fire_time: object, *, of_decorator: bool) -> None:
    """Check the option ``fire_time``.

    :raises ConfigurationError: it is not a moment, or, for a decorator, not a function.
    """
    if fire_time is None:
        return
    if not of_decorator:
        in_utc(fire_time, "fire_time")
    elif not callable(fire_time):
        raise ConfigurationError(
            f"fire_time of a decorator must be a function of the call's arguments, such as "
            f"fire_time=lambda message: message.sent_at, not {quoted(fire_time)}: each call has its own"
        )


def parse_keep_alive(keep_alive: Any) -> bool | timedelta | None:
    """Return the option ``keep_alive``, with its duration parsed.

    :raises ConfigurationError: another value, such as "no" or 1.
    """
    if keep_alive is None or isinstance(keep_alive, bool):
        return keep_alive
    with suppress(ConfigurationError):
        if keep_alive != 1:
            return parse_duration(keep_alive, "keep_alive")
    raise ConfigurationError(
        f"keep_alive must be True, False, or a duration such as '2h' after which heartbeats end, "
        f"not {quoted(keep_alive)}"
    )


def keep_alive_of_text(text: str, what: str) -> bool | timedelta:
    """Parse the text of the variable ``what``: "true", "false" or "2h".

    :raises ConfigurationError: another text.
    """
    found = boolean_of(text)
    if found is not None:
        return found
    if not is_duration(text):
        raise ConfigurationError(f"{what}={quoted(text)} is neither true nor false, nor a duration such as '2h'")
    return parse_duration(text, what)


def check_keep_alive_limit(
    keep_alive: bool | timedelta | None,
    lock_at_most_for: timedelta,
    names: tuple[str, str] = ("keep_alive", "lock_at_most_for"),
) -> None:
    """Check the limit of ``keep_alive``.

    :raises ConfigurationError: heartbeats would end before the first lease does.
    """
    if isinstance(keep_alive, timedelta) and keep_alive <= lock_at_most_for:
        raise ConfigurationError(
            f"{names[0]} ({keep_alive}) must be longer than {names[1]} ({lock_at_most_for}): it limits how long "
            f"heartbeats extend the lease. Give a short {names[1]}, such as 30s, and the longest run as {names[0]}"
        )


def check_recovery(recover: object, max_recoveries: object) -> None:
    """Check the options of recovery.

    :raises ConfigurationError: ``recover`` is not a bool, or ``max_recoveries`` is not a number from 1 to 15.
    """
    if not isinstance(recover, bool):
        raise ConfigurationError(f"recover must be True or False, not {quoted(recover)}")
    is_number = isinstance(max_recoveries, int) and not isinstance(max_recoveries, bool)
    if not is_number or not 1 <= cast(int, max_recoveries) <= MOST_RECOVERIES:
        raise ConfigurationError(
            f"max_recoveries must be a number from 1 to {MOST_RECOVERIES}, not {quoted(max_recoveries)}"
        )


WITHOUT_HEARTBEATS = (
    "without heartbeats, a run longer than lock_at_most_for looks as if its process had died, and would run twice at "
    "the same time"
)


def is_async_callable(found: object) -> bool:
    """Return whether a call must be awaited: ``found`` or its ``__call__`` is a coroutine function."""
    return inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(getattr(type(found), "__call__", None))  # noqa: B004 (not "is it callable")


def check_on_lost(on_lost: OnLost, *, is_async: bool) -> None:
    """Check the option ``on_lost``.

    :raises ConfigurationError: it is not an option, or not for an ordinary function.
    """
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
        raise ConfigurationError(f"on_lost must be 'continue', 'cancel' or a callable, not {quoted(on_lost)}")


def check_provider(provider: Any) -> Any:
    """Check the option ``provider`` of a guard, and strip a URL. Does not open the URL.

    :raises ConfigurationError: ``provider`` is given, but is not a provider, a URL or a reference.
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
    """Return whether ``provider`` is for async code.

    :raises ConfigurationError: ``provider`` is not a provider.
    """
    if provider is None:
        raise ConfigurationError(f"the provider is None. {NO_URL}")
    if isinstance(provider, type):
        raise ConfigurationError(f"{provider.__name__} is a class: make a provider of it, as in {provider.__name__}(…)")
    package = type(provider).__module__.partition(".")[0]
    has_methods = callable(getattr(provider, "acquire", None)) and callable(getattr(provider, "release", None))
    if not has_methods or package in _CURES:
        cure = _CURES.get(package, "wrap it in a provider, such as SqlAlchemyLockProvider(engine)")
        origin = f", but of the package {package}" if package in _CURES else ""
        raise ConfigurationError(f"{type(provider).__name__} is not a lock provider{origin}: {cure}")
    return inspect.iscoroutinefunction(provider.acquire)


NO_URL = "Is the environment variable of its URL set? Give a provider, or a URL as in 'postgresql://user@host/db'"
_CURES = {
    "redis": "wrap the client: RedisLockProvider(client), AsyncRedisLockProvider(client) for a redis.asyncio client",
    "sqlalchemy": "wrap the engine: SqlAlchemyLockProvider(engine), AsyncSqlAlchemyLockProvider(engine)",
    "pymongo": "wrap the database: MongoLockProvider(client['name']), AsyncMongoLockProvider(client['name'])",
    "pathlib": "a SQLite file is given as a URL, such as 'sqlite:///locks.db'",
    **dict.fromkeys(
        ("psycopg", "psycopg2", "pymysql", "MySQLdb", "sqlite3", "asyncpg", "aiosqlite", "aiomysql", "asyncmy"),
        "give a URL or an SQLAlchemy engine instead of a connection: provider_from_url('postgresql://…')",
    ),
    **dict.fromkeys(
        ("apscheduler", "flask_apscheduler", "django_apscheduler"),
        "the provider is the store of the locks, such as provider_from_url(…). To lock the jobs of a scheduler: "
        "shedlock_py.integrations.apscheduler.install(scheduler, provider)",
    ),
    **dict.fromkeys(
        ("_thread", "threading", "asyncio", "multiprocessing"),
        "such a lock works in one process only; give a store that all replicas share",
    ),
}
"""Advice about objects of other packages that are passed as a provider. Some have methods of the same names."""
