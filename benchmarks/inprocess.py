"""The library's cost without a store: its import, its decorator, and memory."""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from statistics import median
from time import monotonic, perf_counter, perf_counter_ns
from typing import Any

from benchmarks.contenders.base import LEASE, SECONDS, load, new_token
from benchmarks.plan import Absent, Plan
from benchmarks.statistics import ratio
from shedlock_py import InMemoryLockProvider, hold, scheduler_lock

CALLS = 1000

# The decorator


def least(name: str) -> Callable[[Callable[..., int]], Callable[..., int | None]]:
    """The floor, as on every store: owner and end, released by its owner."""
    leases: dict[str, tuple[str, float]] = {}
    mutex = threading.Lock()

    def decorate(function: Callable[..., int]) -> Callable[..., int | None]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> int | None:
            owner = new_token()
            with mutex:
                now = monotonic()
                found = leases.get(name)
                if found is not None and found[1] > now:
                    return None
                leases[name] = (owner, now + SECONDS)
            try:
                return function(*args, **kwargs)
            finally:
                with mutex:
                    found = leases.get(name)
                    if found is not None and found[0] == owner:
                        del leases[name]

        return wrapper

    return decorate


def _task() -> int:
    return 1


def _ours(provider: InMemoryLockProvider) -> Callable[[], Any]:
    return scheduler_lock("bench", LEASE, provider=provider)(lambda: 1)


def _our_hold(provider: InMemoryLockProvider) -> Callable[[], Any]:
    def call() -> int:
        with hold("bench", lock_at_most_for=LEASE, provider=provider):
            return 1

    return call


def _huey() -> Callable[[], Any]:
    call: Callable[[], Any] = load("huey").MemoryHuey("bench").lock_task("bench")(_task)
    return call


def _py_cachify() -> Callable[[], Any]:
    cachify = load("py_cachify").init_cachify(is_global=True)
    call: Callable[[], Any] = cachify.lock(key="bench")(_task)
    return call


def _apscheduler(wrapped: bool) -> Callable[[], Any]:
    scheduler = load("apscheduler.schedulers.background").BackgroundScheduler(timezone=UTC)
    scheduler.start(paused=True)
    executor = load("apscheduler.executors.debug").DebugExecutor()
    if wrapped:
        wrapper = load("shedlock_py.integrations.apscheduler").ShedLockExecutor
        executor = wrapper(executor, InMemoryLockProvider(), lock_all=True, default_lock_at_most_for=LEASE)
    executor.start(scheduler, "bench")
    job = scheduler.add_job(_task, "date", run_date=datetime(2100, 1, 1, tzinfo=UTC), id="bench")
    return lambda: executor.submit_job(job, [datetime.now(UTC)])


WRAPPERS: dict[str, tuple[str, str, Callable[[], Callable[[], Any]]]] = {
    # name: (kind, missing features, factory)
    "floor": ("floor", "", lambda: least("bench")(_task)),
    "shedlock_py: decorator": ("us", "", lambda: _ours(InMemoryLockProvider())),
    "shedlock_py: hold": ("us", "", lambda: _our_hold(InMemoryLockProvider())),
    "huey": ("peer", "lease, owner, token, record, events", _huey),
    "py-cachify": ("peer", "owner, token, record, events", _py_cachify),
    "APScheduler job, no lock": ("context", "", lambda: _apscheduler(False)),
    "APScheduler job, shedlock_py": ("us", "", lambda: _apscheduler(True)),
}


def decorators(plan: Plan, rng: random.Random) -> dict[str, dict[str, Any]]:
    """Measure calls of an empty function under its lock in memory, in nanoseconds."""
    calls: dict[str, Callable[[], Any]] = {}
    for name, (_, _, make) in WRAPPERS.items():
        try:
            calls[name] = make()
            _time(calls[name], 100)
        except Exception as error:
            plan.absent.append(Absent("memory", name, "decorator", f"{type(error).__name__}: {error}"))
            calls.pop(name, None)
    rounds: dict[str, list[float | None]] = {name: [] for name in calls}
    for _ in range(plan.rounds):
        for name in rng.sample(list(calls), len(calls)):
            rounds[name].append(_time(calls[name], CALLS))
    found: dict[str, dict[str, Any]] = {}
    for name, values in rounds.items():
        kind, lacks, _ = WRAPPERS[name]
        found[name] = {
            "kind": kind,
            "lacks": lacks,
            "has_lease": True,  # a lock in one process's memory needs no lease
            "ns": median(value for value in values if value is not None),
        }
        compared = ratio(values, rounds["floor"])
        assert compared is not None
        found[name]["ratio"] = asdict(compared)
    return found


def _time(call: Callable[[], Any], times: int) -> float:
    """Return the median of ten runs, per call: other processes disturb only some runs."""
    goes = []
    for _ in range(10):
        begin = perf_counter_ns()
        for _ in range(times // 10):
            call()
        goes.append((perf_counter_ns() - begin) / (times // 10))
    return median(goes)


# Importing

IMPORTS: dict[str, tuple[str, str]] = {
    # name: (kind, statement)
    "Python alone": ("floor", "pass"),
    "shedlock_py": ("us", "import shedlock_py"),
    "shedlock_py and its Redis provider": ("us", "import shedlock_py.providers.redis"),
    "shedlock_py and its SQL provider": ("us", "import shedlock_py.providers.sqlalchemy"),
    "redis-py": ("peer", "import redis"),
    "sqlalchemy": ("peer", "import sqlalchemy"),
    "python-redis-lock": ("peer", "import redis_lock"),
    "pottery": ("peer", "import pottery"),
    "redlock-ng": ("peer", "import redlock"),
    "fencekit": ("peer", "import fencekit"),
    "sherlock": ("peer", "import sherlock"),
    "stormlock": ("peer", "import stormlock"),
    "mithril-locks": ("peer", "import mithril"),
    "sqlalchemy-dlock": ("peer", "import sqlalchemy_dlock"),
    "postgres-mutex": ("peer", "import postgres_mutex"),
    "dislock": ("peer", "import dislock"),
    "filelock": ("peer", "import filelock"),
    "py-cachify": ("peer", "import py_cachify"),
    "huey": ("peer", "import huey"),
    "APScheduler": ("peer", "import apscheduler.schedulers.background"),
}


def imports(plan: Plan, rng: random.Random) -> dict[str, dict[str, Any]]:
    """Measure a new interpreter's extra time and modules after an import.

    Modules are read from bytecode, as everywhere but at the first start: an import before the measurement writes it.
    """
    with bytecode() as environment:
        return _imports(plan, rng, environment)


@contextmanager
def bytecode() -> Iterator[dict[str, str]]:
    """Yield an environment where Python stores its bytecode in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="shedlock-bench-") as directory:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        yield {**kept, "PYTHONPYCACHEPREFIX": directory}


def _imports(plan: Plan, rng: random.Random, environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    known: dict[str, dict[str, Any]] = {}
    bare = modules("pass", environment)
    for name, (kind, statement) in IMPORTS.items():
        try:
            known[name] = {"kind": kind, "modules": modules(statement, environment) - bare, "from_bytecode": True}
        except subprocess.CalledProcessError as error:
            last = (error.stderr or "").strip().split("\n")[-1]
            plan.absent.append(Absent("imports", name, "import time", last))
    times: dict[str, list[float]] = {name: [] for name in known}
    for _ in range(max(1, plan.rounds // 2)):
        for name in rng.sample(list(known), len(known)):
            begin = perf_counter()
            subprocess.run(_command(IMPORTS[name][1]), check=True, stdout=subprocess.DEVNULL, env=environment)
            times[name].append(perf_counter() - begin)
    for name, entry in known.items():
        over = [took - alone for took, alone in zip(times[name], times["Python alone"], strict=True)]
        entry["ms"] = median(times[name]) * 1000
        entry["ms_over_bare"] = median(over) * 1000
    return known


def modules(statement: str, environment: Mapping[str, str] | None = None) -> int:
    """Return the number of modules after the statement."""
    command = _command(f"{statement}\nimport sys\nprint(len(sys.modules))")
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return int(done.stdout.split()[-1])


def _command(statement: str) -> list[str]:
    return [sys.executable, "-c", statement]


# Memory

_MEMORY = """
import gc, tracemalloc
from datetime import timedelta
{setup}
work(0)
gc.collect()
tracemalloc.start()
for number in range(1, {names} + 1):
    work(number)
gc.collect()
print(tracemalloc.get_traced_memory()[0])
"""
NAMES = 10_000
_SETUPS = {
    "in-memory provider, a lock record each": (
        "from shedlock_py import InMemoryLockProvider, LockRequest\n"
        "provider, lease = InMemoryLockProvider(), timedelta(seconds=60)\n"
        "def work(number):\n"
        "    provider.release(provider.acquire(LockRequest(f'name-{number}', lease)))\n"
    ),
    "@scheduler_lock, a decorated function each": (
        "from shedlock_py import InMemoryLockProvider, scheduler_lock\n"
        "provider, kept = InMemoryLockProvider(), []\n"
        "def work(number):\n"
        "    kept.append(scheduler_lock(f'name-{number}', 60, provider=provider)(lambda: None))\n"
    ),
    "one decorated function, a name from its argument each (SQLite)": (
        "import os, tempfile\n"
        "from shedlock_py import scheduler_lock\n"
        "from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider\n"
        "from sqlalchemy import create_engine\n"
        "directory = tempfile.TemporaryDirectory()\n"
        "engine = create_engine(f'sqlite:///{directory.name}/locks.db')\n"
        "provider = SqlAlchemyLockProvider(engine)\n"
        "provider.create_schema()\n"
        "with engine.connect() as connection:\n"
        "    connection.exec_driver_sql('PRAGMA synchronous=OFF')\n"
        "@scheduler_lock('name-{number}', 60, provider=provider)\n"
        "def work(number): pass\n"
    ),
}


def memory(plan: Plan) -> dict[str, float]:
    """Return the kilobytes of Python objects that remain after 10,000 names were locked once each."""
    names = NAMES if plan.rounds > 5 else NAMES // 10
    found = {}
    for what, setup in _SETUPS.items():
        script = _MEMORY.replace("{setup}", setup).replace("{names}", str(names))
        done = subprocess.run(_command(script), check=True, capture_output=True, text=True)
        found[what] = int(done.stdout) / 1024 * NAMES / names
    return found
