# Calls with arguments of wrong types.
# mypy: disable-error-code="arg-type, call-arg, call-overload, operator, unused-coroutine"
"""docs/behaviour.md lists bad input and its errors: each row is tried, with messages that puzzled newcomers."""

import asyncio
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import redis
import redis.asyncio
from apscheduler.executors.pool import ProcessPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import create_engine

import shedlock_py as sl
from shedlock_py.integrations.apscheduler import ShedLockExecutor, lead
from shedlock_py.providers.redis import RedisQuorumLockProvider
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.settings.urls import provider_from_text
from shedlock_py.testing import FakeClock
from tests.guides.documents import DOCS
from tests.support.scripts import PROJECT

STORE = sl.InMemoryLockProvider()
SECRET_URL = "postgresql://me:secret@host/db"
QUORUM = RedisQuorumLockProvider([f"redis://127.0.0.1:{port}" for port in (1, 2, 3)], longest_lease="1m")


class Refused(NamedTuple):
    call: Callable[[], object]
    words: str
    error: type[BaseException] = sl.ConfigurationError


def without_its_package() -> None:
    """As if the driver in the URL is not installed."""
    with patch.dict(sys.modules, {"pymysql": None}):
        sl.provider_from_url("mysql+pymysql://host/db")


def job() -> None: ...


def with_tenant(tenant: object) -> None: ...


def nothing() -> Iterator[int]:
    yield 1


async def coroutine() -> None: ...


class Task:
    apply_async = None

    def __call__(self) -> None: ...


def guard(function: Any = job, name: str = "job", **options: Any) -> Any:
    return sl.scheduler_lock(name, **{"lock_at_most_for": "1m", "provider": STORE, **options})(function)


def without_table(url: str = "sqlite:///empty.db") -> None:
    provider = sl.provider_from_url(url)
    try:
        sl.attempt("job", job, lock_at_most_for="1m", provider=provider)
    finally:
        provider.close()  # type: ignore[attr-defined]  # a managed one has it


def a_missing_column() -> None:
    engine = create_engine("sqlite:///java.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS shedlock")
        connection.exec_driver_sql(
            "CREATE TABLE shedlock (name VARCHAR(64) PRIMARY KEY, lock_until TIMESTAMP NOT NULL,"
            " locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL)"
        )
    try:
        SqlAlchemyLockProvider(engine).acquire(sl.LockRequest("job", "1m"))
    finally:
        engine.dispose()


def dead_server(scheme: str) -> None:
    provider = sl.provider_from_url(f"{scheme}://127.0.0.1:1/0")
    sl.attempt("nightly", lambda: pytest.fail("it ran"), lock_at_most_for="1m", provider=provider)


def fractions_are_rounded_up() -> None:
    assert sl.LockRequest("job", "1m", 0.0001).lock_at_least_for.total_seconds() == 0.001


def no_minimum() -> None:
    assert not sl.LockRequest("job", "1m", 0).lock_at_least_for


def the_shortest() -> None:
    with sl.hold("job", lock_at_most_for="3ms", provider=sl.InMemoryLockProvider(clock=FakeClock())) as lease:
        assert lease is not None
        assert lease.is_trusted()


def a_lease_that_was_released() -> None:
    store = sl.InMemoryLockProvider()
    lease = store.acquire(sl.LockRequest("job", "1m"))
    assert lease is not None
    assert store.release(lease)
    assert store.release(lease) is False
    assert store.extend(lease, "1m") is None
    assert not store.records()[0].is_held


def only_async() -> None:
    with sl.configure(async_provider=sl.AsyncInMemoryLockProvider()):
        sl.attempt("job", job)


def without_a_store() -> None:
    sl.configure(holder="replica-1")
    sl.attempt("nightly", job)


def unread_variable() -> None:
    with patch.dict(os.environ, {"SHEDLOCK_STORE": "sqlite:///locks.db"}):
        sl.attempt("nightly", job)


def white_space() -> None:
    provider = provider_from_text("memory://?history=7")
    with sl.reset(), sl.configure("memory://?history=7\n"), sl.hold("job"):
        assert provider.record("job").is_held


def no_duration() -> None:
    with sl.configure(provider=STORE, default_lock_at_most_for=None):
        sl.attempt("nightly", job)


def after_it_was_lost(call: Callable[[], object]) -> None:
    store = sl.InMemoryLockProvider()
    with sl.hold("job", lock_at_most_for="1m", provider=store):
        store.force_release("job")
        with pytest.raises(sl.LeaseLostError):
            sl.extend_lock("1m")
        call()


def extend_after_a_forced_release() -> None:
    store = sl.InMemoryLockProvider()
    with sl.hold("job", lock_at_most_for="1m", provider=store):
        store.force_release("job")
        sl.extend_lock("1m")


def in_another_thread(call: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


def elector(**options: Any) -> sl.LeaderElector:
    return sl.LeaderElector(STORE, **{"name": "nodes", **options})


def started(scheduler: Any, call: Callable[[Any], object]) -> None:
    scheduler.start()
    try:
        call(scheduler)
    finally:
        scheduler.shutdown()


class FlaskScheduler:
    """Wraps a scheduler, like ``flask_apscheduler.APScheduler``."""

    __module__ = "flask_apscheduler.scheduler"


Row = list[Refused | Callable[[], None] | str]
"""A call that is refused, a call that must work, or the name of the test that has the servers for it."""

# Each row of the page, and inputs for it.

ROWS: dict[str, dict[str, Row]] = {
    "a lock name": {
        "lock name: not a string, empty, blank, over 64 characters, control characters": [
            Refused(lambda: guard(name=None), "lock name must be a string, not None"),
            Refused(lambda: guard(name=""), "must not be empty or blank"),
            Refused(lambda: guard(name=" "), "must not be empty or blank"),
            Refused(lambda: guard(name="x" * 65), "65 characters; the maximum is 64"),
            Refused(lambda: guard(name="a\n"), "has a control character"),
            Refused(lambda: guard(with_tenant, "{tenant}")("a\n"), "has a control character"),
            Refused(lambda: guard(with_tenant, "{tenant}")("x" * 65), "65 characters; the maximum is 64"),
        ],
        "lock name that is a URL with a user or a password: the URL of the store in the wrong place": [
            Refused(lambda: guard(name=SECRET_URL), "lock name must not be a URL with a user"),
            Refused(lambda: sl.hold(SECRET_URL), "the URL of the store goes into provider=…, or into configure(…)"),
        ],
    },
    "a name template": {
        "name template with a field that is not a parameter": [
            Refused(lambda: guard(with_tenant, "{customer}"), "its parameters are: tenant"),
        ],
        (
            "name template filled with an object that has no text of its own (`<app.Job object at 0x…>`), "
            "or with a function or a module"
        ): [
            Refused(
                lambda: guard(with_tenant, "job-{tenant}")(object()),
                "Use an attribute that identifies it, as in {tenant.id}",
            ),
            Refused(lambda: guard(with_tenant, "job-{tenant}")(job), "{tenant} (a function) differs in each process"),
            Refused(lambda: guard(with_tenant, "job-{tenant}")(re), "{tenant} (a module) differs in each process"),
        ],
        "name template filled with a `set` or `frozenset`, or with a list, tuple or dict that has one in it": [
            Refused(lambda: guard(with_tenant, "job-{tenant}")({"a"}), "{tenant} contains a set"),
            Refused(lambda: guard(with_tenant, "job-{tenant}")([frozenset("a")]), "Pass sorted(…)"),
        ],
    },
    "a duration": {
        'a duration that is zero, negative, NaN, a bool, a bare number as text (`"10"`), over ten years': [
            *(
                Refused(partial(sl.LockRequest, "job", value), f"lock_at_most_for={value!r} {fault}")
                for value, fault in [
                    (0, "is zero"),
                    (-1, "is negative"),
                    (float("nan"), "is not a duration"),
                    (True, "is not a duration"),
                    ("10", "is not a duration; write for example '10m'"),
                    ("600w", "is over ten years"),
                ]
            ),
            no_minimum,
        ],
        "`lock_at_least_for` longer than `lock_at_most_for`": [
            Refused(
                lambda: guard(lock_at_least_for="2m"),
                "lock_at_least_for (0:02:00) is longer than lock_at_most_for (0:01:00)",
            ),
        ],
        "a `lock_at_most_for` of 1 or 2 milliseconds": [
            *(
                Refused(call, "is too short: a holder does not trust the last 2 ms and 1% of a lease")
                for call in (
                    lambda: sl.LockRequest("job", "1ms"),
                    lambda: sl.LockRequest("job", 0.002),
                    lambda: guard(lock_at_most_for="2ms"),
                    lambda: sl.configure(default_lock_at_most_for="1ms"),
                    lambda: sl.hold("job", lock_at_most_for="1ms", provider=STORE),
                )
            ),
            the_shortest,
        ],
    },
    "no `lock_at_most_for` anywhere": {
        "no `lock_at_most_for` anywhere": [
            Refused(no_duration, "lock 'nightly' has no lock_at_most_for: give it one"),
        ],
    },
    "a URL of the store": {
        "the URL of the store as `executor`, `keep_alive`, `holder`, a duration, …": [
            Refused(
                lambda: ShedLockExecutor(SECRET_URL),
                "not a URL: a provider or the URL of a store is the second argument",
            ),
            Refused(
                lambda: sl.hold("job", keep_alive=SECRET_URL),
                "a duration such as '2h' after which heartbeats end, not a URL",
            ),
            "tests/faults/test_hostile_urls.py::test_a_url_in_the_wrong_place_is_not_quoted",
        ],
        "a URL that is None or empty, as of a variable that is not set": [
            *(
                Refused(partial(from_url, url), f"the store URL {what}. Is its environment variable set?")
                for from_url in (sl.provider_from_url, sl.async_provider_from_url)
                for url, what in [
                    (None, "must be a string, not None"),
                    (7, "must be a string, not 7"),
                    (b"redis://host", "must be a string, not a URL in bytes"),
                    ("", "is empty"),
                    (" ", "is empty"),
                ]
            ),
            *(
                Refused(partial(give, url), words)
                for give, name in (
                    (sl.configure, "provider"),
                    (lambda it: sl.LeaderElector(it, "nodes"), "the provider"),
                )
                for url, words in (
                    (None, f"{name} is None. Is the environment variable of its URL set?"),
                    ("", "the store URL is empty"),
                )
            ),
        ],
        "a URL with a control character inside": [
            *(
                Refused(partial(give, "redis://ho\nst"), "has a control character, '\\n', at position 11")
                for give in (sl.provider_from_url, sl.configure, lambda it: guard(provider=it))
            ),
        ],
        "the path of a file as `SHEDLOCK_STORE`, `sqlite://` with two slashes": [
            Refused(lambda: provider_from_text("locks.db"), "'locks.db' is neither a URL (\"sqlite:///locks.db\")"),
            Refused(lambda: provider_from_text("data/locks.db"), 'neither a URL ("sqlite:///locks.db")'),
            Refused(lambda: sl.provider_from_url("sqlite://locks.db"), "a SQLite file needs three slashes"),
        ],
        "`sqlite:///~/locks.db`": [
            Refused(lambda: sl.provider_from_url("sqlite:///~/locks.db"), "SQLite does not expand '~'"),
        ],
        "a URL of PostgreSQL with several `host:port`": [
            Refused(lambda: sl.provider_from_url("postgresql://db1:5432,db2:5432/app"), "?host=db1:5432&host=db2:5432"),
        ],
        "an unknown URL scheme, a SQL driver that we do not know, a package that is missing": [
            Refused(lambda: sl.provider_from_url("redid://host"), "unknown scheme 'redid'; supported: memory"),
            Refused(without_its_package, "pip install 'shedlock_py[mysql]'"),
            Refused(lambda: sl.provider_from_url("postgresql+pg8000://host/db"), "use postgresql+psycopg://"),
            Refused(lambda: sl.provider_from_url("memory://?tabel=x"), "memory:// has no option tabel"),
        ],
        "a URL with an option that is unknown, or with a value that the option cannot have": [
            *(
                Refused(partial(from_url, f"{place}/0?nonsense=1"), words)
                for from_url in (sl.provider_from_url, sl.async_provider_from_url)
                for place, words in {
                    "redis://h": "nonsense",
                    "redis+quorum://h1,h2,h3": "nonsense",
                    "mongodb://h": "Unknown option",  # PyMongo's message
                    "etcd://h": "nonsense",
                    "dynamodb://locks": "nonsense",
                    "s3://locks": "nonsense",
                    "kubernetes://h": "nonsense",
                }.items()
            ),
            Refused(lambda: sl.provider_from_url("redis://h/0?timeout=soon"), "timeout='soon' is not a duration"),
            Refused(lambda: sl.provider_from_url("mysql://h/db?connect_timeout=soon"), "'soon'"),
            Refused(
                lambda: without_table("postgresql://127.0.0.1:1/db?nonsense=1"),
                "check the options in the URL",
                sl.ProviderError,
            ),
            "tests/stores/sql/test_urls.py::test_i5_an_option_that_the_driver_does_not_know_is_no_outage",
        ],
        "an in-memory SQLite database": [
            Refused(lambda: sl.provider_from_url("sqlite://"), "private to one connection"),
        ],
    },
    "a provider": {
        "an ordinary function, and only an async provider": [
            Refused(only_async, "make the function 'async def', or in async code write 'async with hold_async(…)'"),
        ],
        "a Redis client, an SQLAlchemy engine, a scheduler or a `threading.Lock` in the place of a provider": [
            *(
                Refused(partial(give, thing), words)
                for give in (
                    lambda it: sl.configure(provider=it),
                    lambda it: guard(provider=it),
                    lambda it: sl.hold("job", provider=it),
                )
                for thing, words in [
                    (
                        redis.Redis(),
                        "Redis is not a lock provider, but of the package redis: wrap the client: RedisLockProvider",
                    ),
                    (redis.asyncio.Redis(), "AsyncRedisLockProvider(client)"),
                    (redis.Redis().lock("job"), "Lock is not a lock provider, but of the package redis"),
                    (
                        create_engine("sqlite://"),
                        "Engine is not a lock provider, but of the package sqlalchemy: wrap the engine",
                    ),
                    (
                        BackgroundScheduler(),
                        "BackgroundScheduler is not a lock provider, but of the package apscheduler",
                    ),
                    (FlaskScheduler(), "of the package flask_apscheduler: the provider is the store of the locks"),
                    (threading.Lock(), "such a lock works in one process only"),
                    (asyncio.Lock(), "such a lock works in one process only"),
                    (sl.InMemoryLockProvider, "InMemoryLockProvider is a class: make a provider of it"),
                    (Path("locks.db"), "a SQLite file is given as a URL, such as 'sqlite:///locks.db'"),
                    (object(), "object is not a lock provider: wrap it in a provider"),
                ]
            ),
        ],
        "an async provider for `LeaderElector`": ["tests/election/test_threads.py::test_an_async_provider_is_refused"],
    },
    "options of a guard": {
        'a `keep_alive` that is no bool and no duration, such as `"no"` or 1': [
            *(
                Refused(partial(give, value), f"after which heartbeats end, not {value!r}")
                for value in ("no", "false", 0, 1, 1.0, "0s", "-1h", "10")
                for give in (
                    lambda it: sl.configure(keep_alive=it),
                    lambda it: sl.Settings(keep_alive=it).apply(),
                    lambda it: guard(keep_alive=it),
                    lambda it: sl.hold("job", keep_alive=it, provider=STORE),
                    lambda it: sl.attempt("job", job, keep_alive=it, provider=STORE),
                )
            ),
        ],
        "a `keep_alive` that is a duration and not longer than `lock_at_most_for`": [
            Refused(
                lambda: guard(lock_at_most_for="10m", keep_alive="10m"),
                "keep_alive (0:10:00) must be longer than lock_at_most_for (0:10:00)",
            ),
            Refused(lambda: sl.configure(keep_alive="5m"), "must be longer than default_lock_at_most_for (0:10:00)"),
            Refused(
                lambda: sl.hold("job", keep_alive="5m", provider=STORE).__enter__(), "Give a short lock_at_most_for"
            ),
            Refused(
                lambda: sl.attempt(sl.LockRequest("job", "1h"), job, keep_alive="30m", provider=STORE), "(1:00:00)"
            ),
        ],
        (
            "`recover=True` without a fire time or without `keep_alive`; a `recover` that is no bool; a "
            "`max_recoveries` that is not 1 to 15"
        ): [
            Refused(lambda: guard(recover=True, keep_alive=True)(), "use ShedLockExecutor with APScheduler"),
            Refused(lambda: sl.attempt("job", job, recover=True), "elsewhere give once_per='1h' or fire_time=…"),
            Refused(lambda: guard(recover=True, once_per="1h")(), "recover=True needs keep_alive=True"),
            Refused(lambda: guard(recover="yes"), "recover must be True or False, not 'yes'"),
            *(
                Refused(partial(guard, max_recoveries=number), f"a number from 1 to 15, not {number!r}")
                for number in (0, 16, "3", True, None)
            ),
        ],
        "an `expected_every` that is zero, negative or no duration": [
            Refused(lambda: guard(expected_every=0), "expected_every=0 is zero"),
            Refused(lambda: sl.hold("job", expected_every=-1, provider=STORE), "expected_every"),
            Refused(lambda: guard(expected_every="often"), "expected_every"),
        ],
        "a naive `fire_time`": [
            Refused(lambda: sl.LockRequest("job", "1m", fire_time=datetime(2026, 1, 1)), "an aware datetime"),
        ],
        '`on_lost`: neither `"continue"`, `"cancel"` nor a callable; or `"cancel"` on an ordinary function': [
            Refused(lambda: guard(on_lost="stop"), "must be 'continue', 'cancel' or a callable"),
            Refused(lambda: guard(on_lost="cancel"), "on_lost='cancel' needs an async task"),
            Refused(lambda: sl.hold("job", on_lost="cancel", provider=STORE), "needs an async task"),
        ],
    },
    "a holder": {
        "a holder that begins with `paused by `, or reads like `demoted 5000ms web-1`": [
            Refused(
                lambda: sl.LockRequest("job", "1m", holder="paused by alice"), "holder must not begin with 'paused by '"
            ),
            Refused(lambda: elector(holder="paused by alice"), "holder must not begin with 'paused by '"),
            Refused(lambda: elector(holder="demoted 0ms web-1"), "holder must not read like a demotion"),
        ],
    },
    "a key of `run_once`": {
        'a key of `run_once` that nothing filled in: `"migrate-{version}"`, `"migrate-$TAG"`': [
            Refused(lambda: sl.run_once("migrate-{version}", job, provider=STORE), "nothing fills in '{version}'"),
            Refused(lambda: asyncio.run(sl.run_once_async("migrate-{v}", coroutine, provider=STORE)), 'write f"…"'),
            *(
                Refused(partial(sl.run_once, f"migrate-{tag}", job, provider=STORE), "put the key in double quotes")
                for tag in ("$TAG", "${TAG}", "$(TAG)")
            ),
        ],
    },
    "a Redis quorum": {
        "a Redis quorum, and a lease longer than its `longest_lease`": [
            Refused(lambda: QUORUM.acquire(sl.LockRequest("job", "2m")), "longest_lease"),
        ],
    },
    "an elector": {
        (
            "an elector: `renew_deadline` longer than `lease_duration` × 90 % − 2 ms, or `retry_period` × "
            "1.2 not shorter than `renew_deadline`"
        ): [
            Refused(lambda: elector(lease_duration="10s", renew_deadline="9.5s"), 'for example lease_duration="15s"'),
            Refused(lambda: elector(lease_duration="10s", renew_deadline="5s", retry_period="5s"), "retry_period"),
        ],
        'an elector: a name that is no lock name, a `takeover` that is neither `"expired"` nor `"observed"`': [
            Refused(lambda: elector(name=""), "must not be empty or blank"),
            Refused(lambda: elector(takeover="now"), "takeover"),
        ],
    },
    "[`verify`](how-to/fencing-a-transaction.md)": {
        "`verify` with an engine, a URL, a connection to another database, or None in place of the lease": [
            "tests/stores/sql/test_transactions.py::test_another_object_is_refused",
        ],
        "`verify` with a connection in autocommit mode": [
            "tests/stores/sql/test_transactions.py::test_a_connection_in_autocommit_mode_is_refused",
        ],
    },
    "APScheduler": {
        "`leader_only`, `lead`, `ShedLockExecutor(elector=…)` with something that is no elector": [
            Refused(lambda: sl.leader_only("nodes"), "elector"),
            Refused(lambda: lead(BackgroundScheduler(), STORE), "elector"),
            Refused(lambda: ShedLockExecutor(provider=STORE, elector=STORE), "elector"),
        ],
        "`lead` or `install` with an object that has a scheduler, such as Flask-APScheduler's": [
            "tests/apscheduler/test_leading_faults.py::test_a_wrapper_of_a_scheduler_is_refused"
        ],
        '`locks={"job": "30s"}` of `ShedLockExecutor`: a duration in place of a lock name': [
            Refused(
                lambda: ShedLockExecutor(locks={"job": "30s"}), "goes into {'lock_at_most_for': '30s', 'name': 'job'}"
            ),
        ],
        "`lead` with a scheduler that runs already": [
            Refused(
                lambda: started(BackgroundScheduler(), lambda scheduler: lead(scheduler, elector())), "runs already"
            ),
        ],
        "`ShedLockExecutor(catch_up=…)` or `(recover=True)` with `once_per_fire_time=False`": [
            Refused(lambda: ShedLockExecutor(catch_up="10m", once_per_fire_time=False), "catch_up cannot work"),
            Refused(lambda: ShedLockExecutor(recover=True, once_per_fire_time=False), "recover cannot work"),
        ],
        "`ShedLockExecutor(elector=…)` around a process pool": [
            Refused(
                lambda: started(
                    BackgroundScheduler(
                        executors={
                            "default": ShedLockExecutor(ProcessPoolExecutor(1), "sqlite:///x.db", elector=elector())
                        }
                    ),
                    lambda scheduler: None,
                ),
                "process pool",
            ),
        ],
    },
    "`release_on_sigterm()`": {
        "`release_on_sigterm()` outside the main thread": [
            Refused(lambda: in_another_thread(sl.release_on_sigterm), "must be called in the main thread"),
        ],
    },
    "arguments that do not fit the function": {
        "a call whose arguments do not fit the function": [
            Refused(lambda: guard(with_tenant)(), "with_tenant(tenant: object) -> None: missing a required", TypeError),
            Refused(lambda: guard(with_tenant)(1, 2), "with_tenant(tenant: object) -> None: too many", TypeError),
            Refused(
                lambda: guard(with_tenant).attempt(1, x=2), "with_tenant(tenant: object) -> None: got an", TypeError
            ),
        ],
    },
    "a generator function, a class, a Celery task; a function that returns a coroutine or a future": {
        "a generator function, a class, a task object of Celery, Huey or Dramatiq": [
            Refused(lambda: guard(nothing), "is a generator function", TypeError),
            Refused(lambda: guard(FlaskScheduler), "guards functions and methods", TypeError),
            Refused(lambda: guard(Task()), "is a Celery task", TypeError),
        ],
        "a function that returns a coroutine, a generator or a `@contextmanager`; a `def` that returns an awaitable": [
            Refused(guard(lambda: coroutine()), "returned a coroutine that has not run yet", TypeError),
            Refused(guard(lambda: nothing()), "returned a generator that has not run yet", TypeError),
            Refused(guard(contextmanager(nothing)), "_GeneratorContextManager that has not run yet", TypeError),
            "tests/core/test_guard.py::test_what_is_done_when_it_is_used_is_refused",
        ],
        "a function that returns an asyncio task or a future": [
            Refused(
                guard(lambda: Future()), "returned a Future, whose work may end after the lock was released", TypeError
            ),
            "tests/core/test_decorator.py::test_a_task_or_a_future",
        ],
        (
            "a task of `run_once` that is a coroutine function, one of `run_once_async` that is none, or "
            "the result of a call"
        ): [
            Refused(lambda: sl.run_once("v42", coroutine, provider=STORE), "use await run_once_async(…)", TypeError),
            Refused(
                lambda: asyncio.run(sl.run_once_async("v42", job, provider=STORE)),
                "run_once_async('v42', lambda: asyncio.to_thread(…))",
                TypeError,
            ),
            Refused(lambda: sl.run_once("v42", len("x"), provider=STORE), "without () after it", TypeError),
            Refused(lambda: sl.run_once("v42", coroutine(), provider=STORE), "without ()", TypeError),
        ],
    },
    "no provider": {
        "no provider": [
            Refused(
                lambda: sl.attempt("nightly", job),
                "lock 'nightly': configure() was not called in this process: call configure('postgresql:",
                sl.ProviderNotConfigured,
            ),
            Refused(without_a_store, "configure() was called without a store", sl.ProviderNotConfigured),
            Refused(
                unread_variable,
                "SHEDLOCK_STORE is set, but nothing has read it: call Settings.from_env().apply()",
                sl.ProviderNotConfigured,
            ),
        ],
    },
    "at start-up, a store or table that is missing": {
        "a store that is missing, does not reply or has no table, at start-up": [
            "tests/core/test_startup.py::test_a_table_that_is_missing",
            "tests/core/test_startup.py::test_a_file_that_is_missing_is_not_created",
            "tests/core/test_startup.py::test_without_functions_too_it_is_a_problem_that_nothing_was_checked",
        ],
    },
    "a missing table, column or right; a wrong user, password or database": {
        "the table or a column is missing": [
            Refused(
                without_table,
                "create the table shedlock once, with configure(url, create_schema=True)",
                sl.ProviderError,
            ),
            Refused(a_missing_column, "add the missing columns: ALTER TABLE", sl.ProviderError),
        ],
        "a user without rights on the table": [
            "tests/stores/sql/test_hints.py::test_permission_denied_names_the_grant"
        ],
        "wrong user, password or database": [
            "tests/stores/sql/test_refusals.py::test_no_error_shows_the_password",
            "tests/stores/redis/test_refusals.py::test_a_wrong_password_is_refused_and_not_shown",
        ],
    },
    "a store that is down, refuses or is too slow; a quorum that is new or restarted": {
        "a SQLite file that cannot be opened": [
            Refused(lambda: without_table("sqlite:///no/such/locks.db"), "— the file is /", sl.ProviderUnreachable),
        ],
        "the store is down, refuses, is read-only, out of connections or too slow": [
            Refused(lambda: dead_server("redis"), "acquire of lock 'nightly'", sl.ProviderUnreachable),
            Refused(lambda: dead_server("postgresql+psycopg"), "acquire of lock 'nightly'", sl.ProviderUnreachable),
        ],
        "a Redis quorum that is new, or whose servers were restarted": [
            "tests/stores/redis_quorum/test_emptied_servers.py::test_a_new_quorum_votes_after_start_new_quorum_only",
        ],
    },
    "white space around a URL, fractions of a millisecond": {
        "fractions of a millisecond": [fractions_are_rounded_up],
        "a URL with white space around it, as of a Secret made with `echo`": [white_space],
    },
    "a lease released twice, or extended after its release": {
        "a lease released twice, or extended after its release began, even if that failed": [a_lease_that_was_released],
    },
    "`extend_lock` or `assert_locked` after the lease was lost": {
        "`extend_lock` or `assert_locked` after the lease was lost": [
            Refused(lambda: after_it_was_lost(sl.assert_locked), "not inside a live lease", sl.NotLocked),
            Refused(lambda: after_it_was_lost(lambda: sl.extend_lock("1m")), "not inside a live lease", sl.NotLocked),
        ],
        "`extend_lock`, and the store does not have the lease any more": [
            Refused(extend_after_a_forced_release, "lock 'job' could not be extended", sl.LeaseLostError),
        ],
    },
    "a listener or `on_lost` that raises, also `SystemExit`": {
        "a listener that raises, also `SystemExit`": [
            "tests/core/keepalive/test_callbacks.py::test_i8_a_listener_does_not_replace_what_the_task_returned_or_raised",
        ],
        "an `on_lost` that raises, also `SystemExit`": [
            "tests/core/keepalive/test_callbacks.py::test_callbacks_of_lost_leases",
        ],
    },
    "a monitoring service that fails": {
        "a monitoring service that is dead, slow or refuses what a listener sends": [
            "tests/observability/test_monitors.py::test_a_service_that_never_replies_delays_no_job",
            "tests/observability/test_monitors.py::test_a_service_that_refuses_connections",
            "tests/observability/test_monitors.py::test_a_service_that_replies_an_error",
        ],
    },
    "Ctrl-C or SIGTERM in a listener": {
        "Ctrl-C or SIGTERM while a listener or `on_lost` runs in the main thread": [
            "tests/core/keepalive/test_callbacks.py::test_a_signal_during_a_listener_ends_the_process_after_all_were_notified_and_the_lock_is_free"
        ],
    },
    "no thread can be started": {
        "`keep_alive` or `on_lost`, and the process cannot start the timer's thread": [
            "tests/core/keepalive/test_no_threads.py::test_without_a_timer_no_task_begins_and_the_next_one_is_kept_alive"
        ],
        "async code on a sync provider, and the process cannot start a thread": [
            "tests/core/keepalive/test_no_threads.py::test_async_code_on_a_sync_provider"
        ],
        "an elector that can start no thread": [
            "tests/election/test_threads.py::test_start_without_a_thread_is_an_error_and_can_be_repeated"
        ],
    },
    "an elector that is started twice": {
        "an elector that is started twice": ["tests/election/test_elector.py::test_start_twice_and_again"],
    },
    "a callback of an elector that raises": {
        "an elector's `on_started_leading` that raises, whatever it is": [
            "tests/election/test_failing_work.py::test_an_exception_of_the_work_resigns_once_and_one_error_says_so",
            "tests/election/test_failing_work.py::test_whatever_the_work_raises_the_node_resigns",
        ],
        "another callback of an elector that raises, whatever it is": [
            "tests/election/test_elector.py::test_a_callback_that_raises_or_hangs_delays_nothing",
            "tests/election/test_threads.py::test_a_callback_that_raises_anything_leaves_nobody_busy",
        ],
    },
    "`stop()` in an elector's own callback; `wait_until_leader()`, `take_over()` without a started elector": {
        "`stop()` in one of the elector's own callbacks": [
            "tests/election/test_elector.py::test_stop_in_a_callback_returns_at_once_and_the_lease_is_released"
        ],
        "`wait_until_leader()` or `take_over()` of an elector that was not started, or has stopped": [
            "tests/election/test_elector.py::test_who_waits_for_an_elector_that_does_not_take_part"
        ],
    },
    "under `ShedLockExecutor`, a job without a lock, or an unknown job id in `locks=`": {
        "under `ShedLockExecutor`, a job without a lock, or a job id in `locks=` that the scheduler does not have": [
            "tests/apscheduler/test_which_lock.py::test_a_job_without_a_lock_is_warned_of_once_in_a_process"
        ],
        (
            "under `ShedLockExecutor`, a decorator above `@scheduler_lock` that calls the function in "
            "another thread or context, where its own executor's lock skips it"
        ): ["tests/apscheduler/test_which_lock.py::test_a_job_that_its_own_lock_skips_is_warned_of_once"],
    },
    "under `ShedLockExecutor`, a job without fire times, or with the lock name of another job": {
        (
            "under `ShedLockExecutor`, a job whose fire times the replicas do not share (a cron trigger "
            "with `jitter`), or a table without `last_fire_time`"
        ): [
            "tests/apscheduler/test_fire_time.py::test_a_job_without_shared_fire_times_gets_a_plain_lock_and_one_warning",
            "tests/apscheduler/test_fire_time.py::test_true_refuses_such_a_job_when_it_is_added",
            "tests/apscheduler/test_fire_time.py::test_a_table_without_the_column_gets_plain_locks_and_one_warning",
        ],
        "under `ShedLockExecutor`, two jobs with one lock name": [
            "tests/apscheduler/test_shared_names.py::test_i14_each_of_four_tenants_runs"
        ],
    },
    "under `ShedLockExecutor`, `recover=True` with a plain lock, or without `keep_alive`": {
        "under `ShedLockExecutor`, `recover=True` without `keep_alive`": [
            "tests/apscheduler/test_late_runs.py::test_recover_needs_keep_alive"
        ],
        "under `ShedLockExecutor`, `recover=True` and a plain lock": [
            "tests/apscheduler/test_late_runs.py::test_recover_needs_fire_times"
        ],
    },
}


INPUTS = {given: cases for inputs in ROWS.values() for given, cases in inputs.items()}


def test_each_row_of_the_page_is_tried() -> None:
    _, _, section = (DOCS / "behaviour.md").read_text().partition("\n## What bad input gets\n")
    table = section.partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| .+ \|$", table, re.MULTILINE)
    assert [row for row in rows if row not in ("input", "input or fault")] == list(ROWS)


def test_the_tests_that_rows_name_are_there() -> None:
    named = [case for cases in INPUTS.values() for case in cases if isinstance(case, str)]
    assert len(named) > 20
    places = [(PROJECT / path, name) for path, _, name in (each.partition("::") for each in named)]
    assert [place for place in places if f"def {place[1]}(" not in place[0].read_text()] == []


TRIED = {it: tried for it, cases in INPUTS.items() if (tried := [case for case in cases if not isinstance(case, str)])}


@pytest.mark.parametrize("given", TRIED, ids=lambda given: given[:40])
def test_what_bad_input_gets(given: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.CRITICAL, "apscheduler")
    for case in TRIED[given]:
        if isinstance(case, Refused):
            with sl.reset(), pytest.raises(case.error) as caught:
                case.call()
            assert case.words in str(caught.value)
            assert type(caught.value) is case.error or case.error is sl.ProviderError
        else:
            case()
        assert not any(record.is_held for record in STORE.records())
