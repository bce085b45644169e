"""Check-ins at ping URLs, and webhooks: the requests that a real HTTP server gets. A broken service does no harm."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
import pytest

from shedlock_py import (
    ConfigurationError,
    Event,
    InMemoryLockProvider,
    LeaderElector,
    LeaseLost,
    LockEvent,
    LockRequest,
    LockSkipped,
    ProviderFailed,
    RunMissed,
    RunRecovered,
    TaskFinished,
    attempt,
    configure,
    hold,
    integrations,
    scheduler_lock,
)
from shedlock_py.integrations.monitors import HealthchecksListener, WebhookListener
from shedlock_py.runtime import outbox as outbox_module
from shedlock_py.settings.emit import emit
from shedlock_py.testing.contract.base import failing
from shedlock_py.testing.forks import in_child
from tests.observability.services import Service, running_service
from tests.observability.ways import (
    ELECTION,
    KEPT_ALIVE,
    SYNC,
    WAYS,
    Job,
    Way,
    fails,
    is_taken_over,
    never,
    succeeds,
)
from tests.support.locks import acquired
from tests.support.logs import warnings_of
from tests.support.polling import wait_until
from tests.support.ports import free_port
from tests.support.scripts import run_python
from tests.support.timing import Stopwatch

KEY = "5d1a8c1e-s3cret"
"""The secret of a ping URL."""


@pytest.fixture
def service() -> Iterator[Service]:
    with running_service() as service:
        yield service


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "RETRY_SECONDS", 0.01)


def token_of_last_run(store: InMemoryLockProvider) -> int:
    """Return the token of the last run. The release has added 1 to the record's."""
    [record] = store.records()
    return (record.fencing_token or 0) - 1


# Check-ins


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_run_checks_in_at_its_start_and_its_end(way: Way, service: Service, store: InMemoryLockProvider) -> None:
    listener = HealthchecksListener({"job": f"{service.url}/ping/{KEY}"})
    with configure(listeners=[listener]):
        way.run(succeeds, store)
    start, success = service.received(2)
    assert (start.method, start.path, success.path) == ("POST", f"/ping/{KEY}/start", f"/ping/{KEY}")
    assert start.query == success.query
    assert UUID(start.query["rid"][0]).hex == store.records()[0].locked_by.rpartition("#")[2]
    token = token_of_last_run(store)
    assert start.body.decode().endswith(f"fencing token {token}")
    assert start.headers["User-Agent"].startswith("shedlock_py/")


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_run_that_fails(way: Way, service: Service, store: InMemoryLockProvider) -> None:
    with configure(listeners=[HealthchecksListener({"job": f"{service.url}/ping/{KEY}"})]):
        way.run(fails, store)
    _, failure = service.received(2)
    assert failure.path == f"/ping/{KEY}/fail"
    assert failure.body.decode().splitlines()[1:] == ["ZeroDivisionError: bad feed"]


def test_i14_a_run_that_is_missed_for_good_has_failed(service: Service) -> None:
    """If the store was unreachable, another replica may have run it. If a run was cancelled, it has failed before."""
    due = datetime(2026, 11, 29, 2, tzinfo=UTC)
    with configure(listeners=[HealthchecksListener(f"{service.url}/{{name}}")]):
        for reason in ("unreachable", "cancelled", "too_many_recoveries"):
            emit(RunMissed("job", due, reason, "3 recoveries"))
    [failure] = service.received(1)
    assert (failure.path, failure.query) == ("/job/fail", {})
    lines = failure.body.decode().splitlines()
    assert lines == ["the run of 2026-11-29T02:00:00+00:00 was missed: too_many_recoveries", "3 recoveries"]


def test_a_webhook_gets_missed_and_recovered_runs(service: Service, store: InMemoryLockProvider) -> None:
    due, lease = datetime(2026, 11, 29, 2, tzinfo=UTC), acquired(store, "job", "1m")
    with configure(listeners=[WebhookListener(service.url)]):
        emit(RunMissed("job", due, "no_room"))
        emit(RunRecovered("job", lease, due, "web-1:7", 1))
    missed, recovered = (json.loads(request.body) for request in service.received(2))
    assert (missed["event"], missed["fire_time"], missed["reason"]) == ("RunMissed", due.isoformat(), "no_room")
    assert (recovered["event"], recovered["fire_time"]) == ("RunRecovered", due.isoformat())
    assert (recovered["former_holder"], recovered["recoveries"]) == ("web-1:7", 1)


async def is_taken_over_for_ever(job: Job) -> None:
    await is_taken_over(job)
    await asyncio.sleep(60)


@pytest.mark.parametrize("way", [way for way in WAYS if way.is_async], ids=str)
def test_a_run_that_was_cancelled_has_failed(way: Way, service: Service, store: InMemoryLockProvider) -> None:
    with configure(listeners=[HealthchecksListener({"job": f"{service.url}/{KEY}"})]):
        way.run(is_taken_over_for_ever, store, **KEPT_ALIVE, on_lost="cancel")
    assert [request.path for request in service.received(2)] == [f"/{KEY}/start", f"/{KEY}/fail"]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_skip_and_a_store_that_fails_send_nothing(way: Way, service: Service, store: InMemoryLockProvider) -> None:
    listener = HealthchecksListener(f"{service.url}/{{name}}")
    assert store.acquire(LockRequest("job", "1m"))
    with configure(listeners=[listener]):
        way.run(never, store)
        way.run(never, store, "acquire")
        with configure(provider=InMemoryLockProvider(), listeners=[listener]), hold("sentinel"):
            pass
    assert [request.path for request in service.received(2)] == ["/sentinel/start", "/sentinel"]


def test_only_the_replica_that_ran_checks_in(service: Service, store: InMemoryLockProvider) -> None:
    listener = HealthchecksListener(f"{service.url}/{{name}}")
    barrier = threading.Barrier(8)

    def replica() -> None:
        barrier.wait(10)
        attempt("job", lambda: None, lock_at_most_for="1m", lock_at_least_for="1m", provider=store)

    with configure(listeners=[listener]):
        threads = [threading.Thread(target=replica) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert listener.flush("10s")
    assert service.paths == ["/job/start", "/job"]


@pytest.mark.parametrize(
    ("url", "paths"),
    [
        ("/ping/{name}", ["/ping/nightly-report_2/start", "/ping/nightly-report_2"]),
        ("/{name}/?create=1#top", ["/nightly-report_2/start", "/nightly-report_2"]),
        ("/{name}/check", ["/nightly-report_2/check/start", "/nightly-report_2/check"]),
    ],
)
def test_one_url_for_all_jobs(url: str, paths: list[str], service: Service, store: InMemoryLockProvider) -> None:
    with configure(provider=store, listeners=[HealthchecksListener(service.url + url)]), hold("Nightly: Report_2"):
        pass
    requests = service.received(2)
    assert [request.path for request in requests] == paths
    assert {request.query.get("create", ["0"])[0] for request in requests} == {"1" if "create" in url else "0"}
    assert all("rid" in request.query for request in requests)


@scheduler_lock("sync-{tenant}", "1m")
def sync(tenant: str) -> None: ...


def test_names_from_a_template(service: Service, store: InMemoryLockProvider) -> None:
    urls = {"sync-{tenant}": f"{service.url}/all", "sync-acme": f"{service.url}/acme"}
    for listener, paths in (
        (HealthchecksListener(f"{service.url}/{{name}}"), ["/sync-tenant"] * 2),
        (HealthchecksListener(f"{service.url}/{{name}}", label=str), ["/sync-acme", "/sync-umbrella"]),
        (HealthchecksListener(urls), ["/acme", "/all"]),
    ):
        service.requests.clear()
        with configure(provider=store, listeners=[listener]):
            for tenant in ("acme", "umbrella"):
                sync(tenant)
                assert listener.flush("10s")
        assert service.paths[1::2] == paths


def test_other_locks_send_nothing(service: Service, store: InMemoryLockProvider) -> None:
    listener = HealthchecksListener({"job": f"{service.url}/job"})
    by_slug = HealthchecksListener(f"{service.url}/{{name}}")
    with configure(provider=store, listeners=[listener, by_slug]):
        with hold("日本"):
            pass
        with LeaderElector(store, "feed", **ELECTION) as elector:
            assert elector.wait_until_leader("10s")
    assert listener.flush("10s")
    assert by_slug.flush("10s")
    assert service.requests == []


def test_a_name_of_which_no_check_is_made_is_warned_of_once(
    service: Service, store: InMemoryLockProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a job is never reported missing, so the failure would go unnoticed."""
    listener = HealthchecksListener(f"{service.url}/{{name}}")
    with configure(provider=store, listeners=[listener]):
        for name in ("日本", "日本", "ночной-отчёт"):
            attempt(name, lambda: None)
    assert listener.flush("10s")
    assert service.requests == []
    assert warnings_of(caplog) == [
        f"lock {name!r} does not check in: its name has no a-z, 0-9 or _; give it another name by label="
        for name in ("日本", "ночной-отчёт")
    ]


def test_names_that_share_a_check_are_warned_of_once(
    service: Service, store: InMemoryLockProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """The check-ins of one job would hide that the other has stopped."""
    template = f"{service.url}/{{name}}"
    listeners = [HealthchecksListener(template), HealthchecksListener(template, label=lambda _: "all")]
    with configure(provider=store, listeners=listeners):
        for name in ("sync/eu", "sync-eu", "sync-eu", "sync-us", "sync/eu"):
            attempt(name, lambda: None)
        sync("a")
        # the first listener's jobs share the check of their template on purpose, the second listener's jobs share "all"
        sync("b")
    assert all(listener.flush("30s") for listener in listeners)  # the next tests look at the log
    assert warnings_of(caplog) == [
        "locks 'sync/eu' and 'sync-eu' share the check 'sync-eu': if one job stops, the check-ins of the other hide "
        "it; give one lock another name by label="
    ]


def test_names_beyond_those_that_are_remembered_check_in_without_a_warning(
    service: Service, store: InMemoryLockProvider, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that are made at run time must not fill the memory."""
    monkeypatch.setattr(integrations, "MOST_LABELS", 2)
    listener = HealthchecksListener(f"{service.url}/{{name}}")
    with configure(provider=store, listeners=[listener]):
        for name in ("a/1", "a-1", "a.1", "b/1"):
            attempt(name, lambda: None)
    assert listener.flush("10s")
    assert service.paths[1::2] == ["/a-1", "/a-1", "/a-1", "/b-1"]
    [warning] = warnings_of(caplog)
    assert warning.startswith("locks 'a/1' and 'a-1' share the check 'a-1'")


# A broken service


def timed(listener: Any, store: InMemoryLockProvider, runs: int = 20) -> float:
    began = time.monotonic()
    with configure(provider=store, listeners=[listener]):
        for _ in range(runs):
            assert attempt("job", lambda: "done").value == "done"  # type: ignore[union-attr]  # nobody else has it
    return time.monotonic() - began


def test_a_service_that_never_replies_delays_no_job(
    service: Service, store: InMemoryLockProvider, caplog: pytest.LogCaptureFixture
) -> None:
    service.is_silent = True
    listener = HealthchecksListener({"job": f"{service.url}/{KEY}"}, timeout="300ms")
    assert timed(listener, store) < 5  # 40 messages; each would wait for 1.6 s
    wait_until(lambda: listener.dropped >= 2, what="the second drop")  # so that its line is logged
    assert warnings_of(caplog) == [
        "check-ins: a message is dropped, jobs are not affected: 127.0.0.1: no reply within 0.3 s (timeout)"
    ]
    assert not listener.flush("10ms")
    service.is_silent = False
    assert listener.flush("30s")  # the next tests look at the log


def test_a_service_that_refuses_connections(
    store: InMemoryLockProvider, caplog: pytest.LogCaptureFixture, quick_retries: None
) -> None:
    listener = HealthchecksListener({"job": f"http://127.0.0.1:{free_port()}/{KEY}"})
    assert timed(listener, store) < 5
    assert listener.flush("10s")
    assert listener.dropped == 40
    [warning] = warnings_of(caplog)
    assert warning.startswith("check-ins: a message is dropped, jobs are not affected: 127.0.0.1: ")
    assert "refused" in warning


@pytest.mark.parametrize(("status", "requests"), [(500, 4), (503, 4), (429, 4), (404, 2), (410, 2), (301, 2), (401, 2)])
def test_a_service_that_replies_an_error(
    status: int,
    requests: int,
    service: Service,
    store: InMemoryLockProvider,
    caplog: pytest.LogCaptureFixture,
    quick_retries: None,
) -> None:
    service.statuses = [status] * 100
    service.headers = {"Location": f"{service.url}/elsewhere"}
    listener = HealthchecksListener({"job": f"{service.url}/{KEY}"})
    timed(listener, store, 1)
    assert listener.flush("10s")
    assert len(service.requests) == requests
    assert listener.dropped == 2
    assert warnings_of(caplog) == [
        f"check-ins: a message is dropped, jobs are not affected: 127.0.0.1 replied {status}"
    ]


def test_a_second_attempt(
    service: Service, store: InMemoryLockProvider, caplog: pytest.LogCaptureFixture, quick_retries: None
) -> None:
    service.statuses = [502, 200, 503]
    listener = HealthchecksListener({"job": f"{service.url}/job"})
    timed(listener, store, 1)
    assert listener.flush("10s")
    assert service.paths == ["/job/start", "/job/start", "/job", "/job"]
    assert (listener.dropped, warnings_of(caplog)) == (0, [])


@pytest.mark.parametrize("ill", ["", "500", "redirect", "silent", "refuses", "no host", "no HTTP"])
def test_no_log_line_has_the_url(
    ill: str,
    service: Service,
    store: InMemoryLockProvider,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    quick_retries: None,
) -> None:
    """The HTTP client's log lines must not have it either: at level INFO it logs each URL."""
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore", "shedlock_py"):
        caplog.set_level(logging.DEBUG, name)
    service.statuses = [500] * 100 if ill == "500" else []
    if ill == "redirect":
        service.statuses, service.headers = [301] * 100, {"Location": f"https://127.0.0.1/{KEY}"}
    service.is_silent = ill == "silent"
    address = f"user:{KEY}@127.0.0.1:{service.port}"
    if ill == "refuses":
        address = f"{KEY}:{KEY}@127.0.0.1:{free_port()}"
    elif ill == "no host":
        address = f"{KEY}:{KEY}@no-such-host.invalid"
    elif ill == "no HTTP":
        address = f"{KEY}:{KEY}@127.0.0.1:{free_port()}"
    url = f"http://{address}/{KEY}"
    listeners = (
        HealthchecksListener({"job": f"{url}?key={KEY}"}, timeout="200ms"),
        HealthchecksListener(f"{url}/{{name}}", timeout="200ms"),
        WebhookListener(url, headers={"Authorization": f"Bearer {KEY}"}, timeout="200ms"),
    )
    with configure(provider=store, listeners=listeners):
        attempt("job", lambda: None)
    for listener in listeners:
        assert listener.flush("20s")
        assert KEY not in repr(listener)
    assert KEY not in caplog.text
    assert all(KEY not in str(vars(record)) for record in caplog.records)
    assert KEY not in "".join(capfd.readouterr())
    assert listeners[0].dropped == (2 if ill else 0)


def test_the_http_client_of_the_application_logs_as_before(
    service: Service, store: InMemoryLockProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "httpx")
    listener = HealthchecksListener({"job": f"{service.url}/{KEY}"})
    timed(listener, store, 1)
    assert listener.flush("10s")
    httpx.get(f"{service.url}/of-the-application")
    assert [record.getMessage().split()[3] for record in caplog.records if record.name == "httpx"] == [
        f"{service.url}/of-the-application"
    ]


def test_a_full_outbox(
    service: Service, store: InMemoryLockProvider, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "MOST_WAITING", 10)
    service.is_silent = True
    listener = HealthchecksListener({"job": f"{service.url}/{KEY}"}, timeout="20s")
    assert timed(listener, store, 50) < 5
    assert listener.dropped == 90
    assert warnings_of(caplog) == [
        "check-ins: a message is dropped, jobs are not affected: 10 others are waiting to be sent"
    ]


# Processes

PROGRAM = """
import sys
from shedlock_py import InMemoryLockProvider, configure, hold
from shedlock_py.integrations.monitors import HealthchecksListener

configure(InMemoryLockProvider(), listeners=[HealthchecksListener({"job": sys.argv[1]})])
with hold("job"):
    pass
print("end")
"""


def test_a_program_that_ends_at_once_has_checked_in(service: Service) -> None:
    done = run_python("-c", PROGRAM, f"{service.url}/job")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
    assert service.paths == ["/job/start", "/job"]


def test_the_exit_of_a_program_does_not_wait_for_long(service: Service) -> None:
    service.is_silent = True
    with Stopwatch() as watch:
        done = run_python("-c", PROGRAM, f"{service.url}/job")
    assert (done.returncode, done.stdout) == (0, "end\n")
    assert watch.seconds < 10  # two seconds, and Python's start


def test_a_forked_child_checks_in_by_itself(service: Service, store: InMemoryLockProvider) -> None:
    listener = HealthchecksListener(f"{service.url}/{{name}}")
    timed(listener, store, 1)  # the parent's client and thread exist now
    assert listener.flush("10s")

    def child() -> None:
        with configure(provider=InMemoryLockProvider(), listeners=[listener]), hold("of-the-child"):
            pass
        assert listener.flush("10s")
        assert listener.dropped == 0

    in_child(child)
    timed(listener, store, 1)
    assert listener.flush("10s")
    assert service.paths == ["/job/start", "/job", "/of-the-child/start", "/of-the-child", "/job/start", "/job"]


# Webhooks


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_webhook_gets_the_start_and_the_end_of_a_run(way: Way, service: Service, store: InMemoryLockProvider) -> None:
    with configure(listeners=[WebhookListener(f"{service.url}/hook", headers={"Authorization": "Bearer x"})]):
        way.run(fails, store)
        way.run(never, store, "acquire")
    started, finished = service.received(2)
    assert started.headers["Content-Type"] == "application/json"
    assert started.headers["Authorization"] == "Bearer x"
    [record] = store.records()
    holder, _, claim_id = record.locked_by.rpartition("#")
    fire_time = record.last_fire_time and record.last_fire_time.isoformat()  # a scheduler sets one
    lease = {"holder": holder, "fencing_token": token_of_last_run(store), "claim_id": claim_id, "fire_time": fire_time}
    first, last = started.json(), finished.json()
    assert first.items() >= {"event": "LockAcquired", "lock_name": "job", "template": None, **lease}.items()
    assert (
        last.items() >= {"event": "TaskFinished", "outcome": "failed", "error": "ZeroDivisionError: bad feed"}.items()
    )
    assert last.items() >= lease.items()
    assert set(first) == {"event", "at", "template", "lock_name", *lease, "elapsed"}
    assert 0 <= last["duration"] < 60
    assert first["at"] <= last["at"]


def test_a_webhook_for_other_events(service: Service, store: InMemoryLockProvider) -> None:
    @dataclass(frozen=True)
    class Restocked(Event):
        where: object
        what: tuple[str, ...]

    listener = WebhookListener(service.url, [LockSkipped, ProviderFailed, LeaseLost, Restocked])
    with configure(provider=store, listeners=[listener]):
        attempt("job", lambda: store.force_release("job"))
        assert store.acquire(LockRequest("job", "1m"))
        sync("acme")
        attempt("job", lambda: None)
        with pytest.raises(Exception, match="no reply"):
            attempt("job", lambda: None, provider=failing(store, "acquire"))
        emit(Restocked({1}, ("a",)))
    assert listener.flush("10s")
    lost, skipped, failed, own = (request.json() for request in service.requests)
    assert (lost["event"], lost["reason"], lost["lock_name"]) == ("LeaseLost", "revoked", "job")
    assert (skipped["event"], skipped["reason"]) == ("LockSkipped", "held")
    assert (failed["event"], failed["operation"], failed["lease"]) == ("ProviderFailed", "acquire", None)
    assert failed["error"].startswith("ProviderUnreachable: ")
    assert (own["event"], own["where"], own["what"]) == ("Restocked", "{1}", "('a',)")


def test_a_webhook_for_leaders(service: Service, store: InMemoryLockProvider) -> None:
    listener = WebhookListener(service.url, [Event])
    with configure(listeners=[listener]), LeaderElector(store, "feed", holder="me", **ELECTION) as elector:
        assert elector.wait_until_leader("10s")
    assert listener.flush("10s")
    started = service.requests[0].json()
    assert (started["event"], started["name"], started["holder"]) == ("LeadershipStarted", "feed", "me")
    assert service.requests[-1].json()["reason"] == "resigned"


def test_the_template_of_a_name_is_sent(service: Service, store: InMemoryLockProvider) -> None:
    listener = WebhookListener(service.url, [LockEvent])
    with configure(provider=store, listeners=[listener]):
        sync("acme")
    assert listener.flush("10s")
    assert {request.json()["template"] for request in service.requests} == {"sync-{tenant}"}
    assert [request.json()["event"] for request in service.requests] == ["LockAcquired", "TaskFinished", "LockReleased"]


def test_a_class_of_events_alone(service: Service, store: InMemoryLockProvider) -> None:
    listener = WebhookListener(service.url, TaskFinished)  # type: ignore[arg-type]  # on purpose
    SYNC[0].run(succeeds, store)
    with configure(listeners=[listener]):
        SYNC[0].run(succeeds, store)
    assert listener.flush("10s")
    assert [request.json()["event"] for request in service.requests] == ["TaskFinished"]


# Settings

BAD_URLS: list[Any] = ["", "example.com/s3cret", "ftp://example.com/s3cret", "https://", "http://:80/s3cret", None, 7]
BAD_URLS += ["http://xn--/s3cret", f"http://{'a' * 70}.example/s3cret", "http://a..b/s3cret", "http://a:99999/s3cret"]
BAD_URLS += ["https://exa mple.com/s3cret", "https://example.com:port/s3cret", b"https://example.com/s3cret"]


@pytest.mark.parametrize("url", BAD_URLS, ids=repr)
def test_a_url_that_cannot_be_one_is_refused_and_not_quoted(url: Any) -> None:
    for make in (lambda: HealthchecksListener({"job": url}), lambda: WebhookListener(url)):
        with pytest.raises(ConfigurationError, match=r"(urls\['job'\]|url) must be a URL") as raised:
            make()
        assert "s3cret" not in str(raised.value)
        assert raised.value.__cause__ is None
        assert raised.value.__suppress_context__ or raised.value.__context__ is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: HealthchecksListener("https://example.com/s3cret"), "needs {name}"),
        (lambda: HealthchecksListener("s3cret/{name}"), "must be a URL"),
        (lambda: HealthchecksListener(["https://example.com/s3cret"]), "a URL for each lock name"),  # type: ignore[arg-type]
        (lambda: HealthchecksListener({}, timeout="soon"), "timeout"),
        (lambda: HealthchecksListener({}, timeout=0), "timeout"),
        (lambda: WebhookListener("https://example.com", ["TaskFinished"]), "event classes"),  # type: ignore[list-item]
        (lambda: WebhookListener("https://example.com", "TaskFinished"), "list of event classes"),  # type: ignore[arg-type]
        (lambda: WebhookListener("https://example.com", [int]), "event classes"),  # type: ignore[list-item]
        (lambda: WebhookListener("https://example.com", headers={"a": object()}), "ASCII"),  # type: ignore[dict-item]
    ],
)
def test_what_cannot_work_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as raised:
        make()
    assert "s3cret" not in str(raised.value)
