"""Fixtures for all tests. One process runs them all: the servers are its children."""

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import (
    authorities,
    availability,
    costs,
    drivers,
    failures,
    forked,
    memory,
    tiers,
    versions,
    workers,
)
from tests.support.availability import private_server
from tests.support.consul import ConsulServer
from tests.support.kubernetes import ApiServer, KubernetesServer
from tests.support.redis import RedisCluster, RedisSentinel, RedisServer
from tests.support.stores import STORES, Registration, Store

ONE_STORE = (
    *(registration.scheme.replace("+", "_") for registration in STORES.values() if registration.process),
    "sql",
)
"""Names of directories and modules whose tests need the servers of one store."""


def pytest_configure(config: pytest.Config) -> None:
    # A shell that runs make in the background (make test &) lets it ignore Ctrl-C, and so all that the tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.add_cleanup(memory.use_memory())
    config.add_cleanup(forked.stop)
    config.pluginmanager.register(versions)
    config.pluginmanager.register(availability)
    config.pluginmanager.register(failures.NamedAtOnce(config))
    config.pluginmanager.register(costs.Costs())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(costs.Summary(costs.budgets(config)))
    authorities.trust_none()
    workers.preload()
    tiers.choose(config.getoption("--tier"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=tiers.TIERS,
        default=tiers.DEFAULT,
        help="which tests run (tests/README.md); default: %(default)s",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    root = config.rootpath / "tests"
    return (root in collection_path.parents and tiers.is_ignored(collection_path, root)) or None


def pytest_pycollect_makeitem(obj: object) -> list[pytest.Item] | None:
    return [] if tiers.is_left_out(obj) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if nameless := tiers.without_reason(items):
        lines = [f"{name}: a mark of a tier needs its reason" for name in nameless]
        raise pytest.UsageError("\n".join(lines))
    items[:], left_out = tiers.split(items)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    drivers.skip_missing_drivers(items)
    items.sort(key=_servers)


def _servers(item: pytest.Item) -> int:
    """Sort tests by store. xdist gives neighbouring tests to one process, so each process starts fewer servers."""
    words = item.path.stem.split("_") + list(item.path.relative_to(item.config.rootpath).parts)
    return next((number for number, name in enumerate(ONE_STORE, 1) if name in words), 0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Switch the garbage collector off meanwhile: collection makes no garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what lives as long as the run: 400,000 objects, and 0.2 s for each full pass.

    A forked child that collects would also copy all of their memory.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def small_heap() -> None:
    """For tests that collect garbage: a pass over all that the tests before have imported takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Threads of a test wait for it. The end of the test opens it."""
    gate = threading.Event()
    yield gate
    gate.set()


def shared_server(registration: Registration) -> Any:
    """The fixture of the server of a store."""

    @pytest.fixture(scope="session", name=registration.fixture)
    def server() -> Iterator[Any]:
        with registration.server() as server:
            yield server

    return server


globals().update({each.fixture: shared_server(each) for each in STORES.values() if each.fixture.endswith("_server")})


@pytest.fixture(scope="session")
def redis_nodes() -> Iterator[list[RedisServer]]:
    """Five servers that know nothing of each other."""
    with ExitStack() as servers:
        yield [servers.enter_context(private_server("redis", RedisServer)) for _ in range(5)]


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    with private_server("redis", RedisCluster) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def redis_sentinel() -> Iterator[RedisSentinel]:
    """A sentinel and a master of its own, without a replica."""
    with (
        private_server("redis", RedisServer) as master,
        private_server("redis", lambda: RedisSentinel(master)) as sentinel,
    ):
        yield sentinel


@pytest.fixture(scope="session")
def real_kubernetes_server(request: pytest.FixtureRequest) -> Iterator[KubernetesServer]:
    """The real API server, for tests that the fake cannot show."""
    chosen: KubernetesServer = request.getfixturevalue("kubernetes_server")
    if isinstance(chosen, ApiServer):
        yield chosen
        return
    with private_server("kubernetes", ApiServer) as server:
        yield server


@pytest.fixture(scope="session")
def consul_server() -> Iterator[ConsulServer]:
    with private_server("consul", ConsulServer) as server:
        yield server


# A store for a suite that runs on every store: tests/support/stores.py


@pytest.fixture(scope="session")
def store_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="session")
def three_redis_servers(redis_nodes: list[RedisServer]) -> list[RedisServer]:
    return redis_nodes[:3]


@pytest.fixture(scope="session")
def make_store(request: pytest.FixtureRequest) -> Callable[..., Store]:
    """``make_store("postgres")``: a store with lock records of its own on the server that all tests share."""

    def make(name: str, *drivers: str) -> Store:
        registration = STORES[name]
        server = request.getfixturevalue(registration.fixture)
        return registration.store(server, drivers) if drivers else registration.store(server)

    return make


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the notes of tests, also of those that passed: ``record_property("note", "the seed was 7")``."""
    reports = (report for found in terminalreporter.stats.values() for report in found)
    notes = [value for report in reports for name, value in getattr(report, "user_properties", ()) if name == "note"]
    for note in dict.fromkeys(notes):
        terminalreporter.write_line(note)
