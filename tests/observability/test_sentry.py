"""Check-ins at Sentry's cron monitors: the requests of the real SDK to a local server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk

from shedlock_py import (
    ConfigurationError,
    InMemoryLockProvider,
    LockRequest,
    RunMissed,
    attempt,
    configure,
    hold,
    scheduler_lock,
)
from shedlock_py.integrations.sentry import SentryCronListener
from shedlock_py.settings.emit import emit
from shedlock_py.testing.forks import in_child
from tests.observability.services import Service, running_service
from tests.observability.ways import SYNC, WAYS, Way, fails, never, succeeds
from tests.support.logs import records_of, warnings_of
from tests.support.ports import free_port
from tests.support.scripts import run_python
from tests.support.timing import Stopwatch


@pytest.fixture
def service() -> Iterator[Service]:
    with running_service() as service:
        yield service


@pytest.fixture
def sentry(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """The service, with a client of the SDK. Its integrations are off, because they patch the standard library."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    before = sentry_sdk.Scope.get_global_scope().client
    start(service.port)
    yield service
    sentry_sdk.get_client().close(timeout=1.0)
    sentry_sdk.Scope.get_global_scope().set_client(before)


def start(port: int) -> None:
    sentry_sdk.init(
        f"http://public@127.0.0.1:{port}/1",
        default_integrations=False,
        auto_enabling_integrations=False,
        environment="tests",
        release="1.2.3",
    )


def check_ins(service: Service) -> list[dict[str, Any]]:
    sentry_sdk.flush(10)
    found: list[dict[str, Any]] = []
    for request in service.requests:
        assert request.path == "/api/1/envelope/"
        _, *rest = request.body.splitlines()
        for header, payload in zip(rest[::2], rest[1::2], strict=True):
            assert json.loads(header)["type"] == "check_in"
            found.append(json.loads(payload))
    return found


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(("body", "status"), [(succeeds, "ok"), (fails, "error")])
def test_a_run_checks_in(way: Way, body: Any, status: str, sentry: Service, store: InMemoryLockProvider) -> None:
    with configure(listeners=[SentryCronListener()]):
        way.run(body, store)
    started, ended = check_ins(sentry)
    claim_id = store.records()[0].locked_by.rpartition("#")[2]
    same = {"monitor_slug": "job", "check_in_id": claim_id, "environment": "tests", "release": "1.2.3"}
    assert started.items() >= {**same, "status": "in_progress"}.items()
    assert ended.items() >= {**same, "status": status}.items()
    assert 0 <= ended["duration"] < 60
    assert started.get("duration") is None


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_skip_and_a_store_that_fails_send_nothing(way: Way, sentry: Service, store: InMemoryLockProvider) -> None:
    assert store.acquire(LockRequest("job", "1m"))
    with configure(listeners=[SentryCronListener()]):
        way.run(never, store)
        way.run(never, store, "acquire")
    assert check_ins(sentry) == []


def test_i14_a_run_that_is_missed_for_good_is_an_error(sentry: Service) -> None:
    with configure(listeners=[SentryCronListener()]):
        for reason in ("unreachable", "cancelled", "no_room"):
            emit(RunMissed("job", None, reason))
    [missed] = check_ins(sentry)
    assert (missed["monitor_slug"], missed["status"]) == ("job", "error")


@scheduler_lock("Sync {tenant}", "1m")
def sync(tenant: str) -> None: ...


def test_the_slug_of_a_monitor(sentry: Service, store: InMemoryLockProvider) -> None:
    listeners = (
        SentryCronListener(),
        SentryCronListener(label=str),
        SentryCronListener({"Sync {tenant}": "all-of-them", "Sync b": "only-b"}),
        SentryCronListener({"other": "other"}),
    )
    with configure(provider=store, listeners=listeners):
        sync("a")
        sync("b")
        with hold("x" * 60):
            pass
        with hold("日本"):
            pass
    ended = [each["monitor_slug"] for each in check_ins(sentry) if each["status"] == "ok"]
    assert ended == ["sync-tenant", "sync-a", "all-of-them", "sync-tenant", "sync-b", "only-b", "x" * 50, "x" * 50]


def test_monitors_that_nobody_would_miss_are_warned_of(
    sentry: Service, store: InMemoryLockProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """Two names with the same first characters share a monitor."""
    one, another = f"{'x' * 50}-1", f"{'x' * 50}-2"
    listeners = [SentryCronListener(), SentryCronListener({one: "report", another: "report"})]
    with configure(provider=store, listeners=listeners):
        for name in ("日本", one, another, another):
            attempt(name, lambda: None)
    assert [message.partition(":")[0] for message in warnings_of(caplog)] == [
        "lock '日本' does not check in",
        f"locks {one!r} and {another!r} share the check {'x' * 50!r}",
    ]


def test_the_configuration_of_a_monitor_is_sent_with_the_start(sentry: Service, store: InMemoryLockProvider) -> None:
    config: Any = {"schedule": {"type": "crontab", "value": "0 2 * * *"}, "checkin_margin": 5}
    with configure(provider=store, listeners=[SentryCronListener(configs={"job": config})]):
        attempt("job", lambda: None)
        attempt("other", lambda: None)
    assert [each.get("monitor_config") for each in check_ins(sentry)] == [config, None, None, None]


def test_the_configuration_of_monitors_that_names_share(sentry: Service, store: InMemoryLockProvider) -> None:
    one, all_others = ({"schedule": {"type": "crontab", "value": f"{minute} 2 * * *"}} for minute in (1, 2))
    configs: Any = {"Sync a": one, "Sync {tenant}": all_others}
    with configure(provider=store, listeners=[SentryCronListener(configs=configs)]):
        sync("a")
        sync("b")
    started = [each for each in check_ins(sentry) if each["status"] == "in_progress"]
    assert [each.get("monitor_config") for each in started] == [one, all_others]


@pytest.mark.parametrize("ill", ["silent", "500", "refuses"])
def test_a_service_that_is_ill_delays_no_job(ill: str, sentry: Service, store: InMemoryLockProvider) -> None:
    sentry.is_silent = ill == "silent"
    sentry.statuses = [500] * 200
    if ill == "refuses":
        start(free_port())
    with Stopwatch() as watch, configure(provider=store, listeners=[SentryCronListener()]):
        for _ in range(50):
            assert attempt("job", lambda: "done").value == "done"  # type: ignore[union-attr]  # nobody else has it
    assert watch.seconds < 5


def test_without_init_nothing_happens(store: InMemoryLockProvider, caplog: pytest.LogCaptureFixture) -> None:
    with configure(listeners=[SentryCronListener()]):
        SYNC[0].run(succeeds, store)
    assert records_of(caplog) == []


def test_a_forked_child_checks_in(sentry: Service, store: InMemoryLockProvider) -> None:
    with configure(provider=store, listeners=[SentryCronListener()]):
        attempt("job", lambda: None)
        assert len(check_ins(sentry)) == 2

        def child() -> None:
            with configure(provider=InMemoryLockProvider(), listeners=[SentryCronListener()]):
                attempt("of-the-child", lambda: None)
            sentry_sdk.flush(10)

        in_child(child)
    assert [each["monitor_slug"] for each in check_ins(sentry)] == ["job", "job", "of-the-child", "of-the-child"]


PROGRAM = """
import sys
import sentry_sdk
from shedlock_py import InMemoryLockProvider, configure, hold
from shedlock_py.integrations.sentry import SentryCronListener

sentry_sdk.init(sys.argv[1], auto_enabling_integrations=False)  # they import all that is installed
configure(InMemoryLockProvider(), listeners=[SentryCronListener()])
with hold("job"):
    pass
"""


def test_a_program_that_ends_at_once_has_checked_in(service: Service) -> None:
    """The SDK sends waiting messages when the interpreter exits."""
    done = run_python("-c", PROGRAM, f"http://public@127.0.0.1:{service.port}/1")
    assert done.returncode == 0, done.stderr
    sent = [each for each in check_ins(service) if each.get("monitor_slug")]
    assert [each["status"] for each in sent] == ["in_progress", "ok"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"slugs": ["job"]}, "slugs must be a mapping"),
        ({"configs": ["job"]}, "configs must be a mapping"),
        ({"slugs": {"job": "Job"}}, "1 to 50 of a-z"),
        ({"slugs": {"job": ""}}, "1 to 50"),
        ({"slugs": {"job": "x" * 51}}, "1 to 50"),
        ({"slugs": {"job": None}}, "not None"),
    ],
)
def test_what_cannot_work_is_refused(options: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        SentryCronListener(**options)
