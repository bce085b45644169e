"""The spans of real runs, as the SDK exports them."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from shedlock_py import (
    InMemoryLockProvider,
    LeaderElector,
    Lease,
    LeaseLost,
    LockAcquired,
    LockReleased,
    LockRequest,
    LockSkipped,
    RunMissed,
    RunRecovered,
    TaskFinished,
    attempt,
    attempt_async,
    configure,
    current_lease,
    hold,
    hold_async,
    reset,
    scheduler_lock,
)
from shedlock_py.integrations.opentelemetry import OpenTelemetryListener, Run
from shedlock_py.settings.emit import emit
from shedlock_py.testing import FakeClock
from tests.observability.ways import (
    ASYNC,
    ELECTION,
    KEPT_ALIVE,
    SYNC,
    WAYS,
    Body,
    Job,
    Way,
    fails,
    is_taken_over,
    is_taken_over_and_waits,
    never,
    releases,
    succeeds,
)  # fmt: skip
from tests.support.logs import records_of
from tests.support.polling import wait_until


class Tracing(SpanProcessor):
    """Tracing is on; it records the exported spans, and counts the started spans."""

    def __init__(self) -> None:
        self.started = 0
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.provider.add_span_processor(self)
        self.tracer = self.provider.get_tracer("the application")
        self.listener = OpenTelemetryListener(self.provider)

    def on_start(self, span: object, parent_context: object = None) -> None:
        self.started += 1

    def spans(self, name: str = "") -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(name)]

    def span(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span


@pytest.fixture
def tracing(caplog: pytest.LogCaptureFixture) -> Iterator[Tracing]:
    tracing = Tracing()
    before = contexts.get_current()
    with configure(listeners=[tracing.listener]):
        yield tracing
    assert trace.get_current_span() is trace.get_current_span(before), "a span was left attached"
    assert tracing.started == len(tracing.spans()), "a span did not end"
    assert [record.getMessage() for record in caplog.records if record.name.startswith("opentelemetry")] == []
    assert "failed on" not in caplog.text
    tracing.provider.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("shedlock."): value for name, value in (span.attributes or {}).items()}


def events(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == parent.context.span_id


def seconds(span: ReadableSpan) -> float:
    assert span.start_time
    assert span.end_time
    return (span.end_time - span.start_time) / 1e9


def depth(context: Context | None = None) -> int:
    """Return how many nested runs the current context keeps in memory."""
    values = (contexts.get_current() if context is None else context).values()
    runs = [value for value in values if isinstance(value, Run)]
    return 1 + depth(runs[0].parent) if runs else 0


every_way = pytest.mark.parametrize("way", WAYS, ids=str)


@every_way
def test_a_run_that_succeeds_is_a_span_around_those_of_its_task(
    way: Way, tracing: Tracing, store: InMemoryLockProvider
) -> None:
    leases: list[Lease | None] = []

    async def body(job: Job) -> None:
        leases.append(current_lease())
        with tracing.tracer.start_as_current_span("inner"):
            pass

    way.run(body, store)
    span, inner = tracing.span("run job"), tracing.span("inner")
    lease = leases[0]
    assert lease
    assert is_child(inner, span)
    assert span.status.status_code is StatusCode.UNSET
    found = attributes(span)
    assert (found["lock_name"], found["outcome"]) == ("job", "succeeded")
    assert (found["holder"], found["fencing_token"]) == (lease.holder, lease.fencing_token)
    assert (found["lock_at_most_for"], found["lock_at_least_for"]) == (600.0, 0.0)
    assert 0 <= found["task_duration"] <= found["held_for"] < 5
    assert 0 <= found["acquired_after"] < 5


async def fails_to_extend(job: Job) -> None:
    with pytest.raises(Exception, match="no reply"):
        await job.extend()


@every_way
@pytest.mark.parametrize(
    ("body", "broken", "error", "expected", "found"),
    [
        (fails, "", "ZeroDivisionError: bad feed", ["exception"], {"outcome": "failed"}),
        (succeeds, "release", "ProviderUnreachable: no reply", ["exception"], {"outcome": "succeeded"}),
        (fails_to_extend, "extend", None, ["exception"], {"outcome": "succeeded"}),
        (is_taken_over, "", "the lease was lost", ["shedlock.lease_lost"], {"lost_reason": "revoked"}),
        (is_taken_over_and_waits, "", "the lease was lost", None, {"outcome": "succeeded", "lost_reason": "revoked"}),
        (releases, "", None, [], {"outcome": "succeeded"}),
    ],
)
def test_the_span_of_a_run_tells_how_it_ended(
    way: Way,
    body: Body,
    broken: str,
    error: str | None,
    expected: list[str] | None,
    found: dict[str, str],
    tracing: Tracing,
    store: InMemoryLockProvider,
) -> None:
    options = KEPT_ALIVE if body is is_taken_over_and_waits else {}
    way.run(body, store, *([broken] if broken else []), **options)
    wait_until(tracing.spans)  # a heartbeat's thread may emit LeaseLost after the guard has ended
    (span,) = tracing.spans()
    assert span.name == "run job"
    assert span.status.status_code is (StatusCode.UNSET if error is None else StatusCode.ERROR)
    assert (span.status.description or "").startswith(error or "")
    if expected is not None:  # otherwise a heartbeat may have come before
        assert events(span) == expected
    assert attributes(span).items() >= found.items()


@every_way
def test_a_skip_is_a_span_with_its_reason_and_no_error(way: Way, tracing: Tracing, store: InMemoryLockProvider) -> None:
    store.acquire(LockRequest("job", "10m"))
    way.run(never, store)
    (span,) = tracing.spans()
    assert span.name == "skip job"
    assert attributes(span) == {"lock_name": "job", "outcome": "skipped", "skip_reason": "held"}
    assert span.status.status_code is StatusCode.UNSET


@every_way
def test_the_store_fails_at_acquire(way: Way, tracing: Tracing, store: InMemoryLockProvider) -> None:
    way.run(never, store, "acquire")
    (span,) = tracing.spans()
    assert span.name == "acquire job"
    assert attributes(span) == {"lock_name": "job", "outcome": "provider_failed"}
    assert (span.status.status_code, events(span)) == (StatusCode.ERROR, ["exception"])
    assert "no reply" in (span.status.description or "")


@every_way
def test_each_extension_is_an_event_of_the_span(way: Way, tracing: Tracing, store: InMemoryLockProvider) -> None:
    async def body(job: Job) -> None:
        current: Any = trace.get_current_span()
        await job.until(lambda: len(current.events) >= 2)
        with tracing.tracer.start_as_current_span("inner"):
            pass

    way.run(body, store, **KEPT_ALIVE)
    span = tracing.span("run job")
    assert set(events(span)) == {"shedlock.extended"}
    assert len(span.events) >= 2
    assert is_child(tracing.span("inner"), span)
    assert seconds(span) >= 0.15


@every_way
def test_every_run_begins_where_the_last_one_did(way: Way, tracing: Tracing, store: InMemoryLockProvider) -> None:
    with tracing.tracer.start_as_current_span("outer") as outer:
        for _ in range(3):
            way.run(Job.again, store)
        assert trace.get_current_span() is outer
    roots = {span.parent.span_id if span.parent else None for span in tracing.spans("run job")}
    assert len(tracing.spans("run job")) == 3
    assert len(roots) == 1  # the outer span; the jobs of a scheduler's threads have no outer span


def test_i14_a_run_that_was_missed_is_a_span_with_an_error(tracing: Tracing) -> None:
    emit(RunMissed("sync-acme", datetime(2026, 11, 29, tzinfo=UTC), "no_room").filled_from("sync-{tenant}"))
    span = tracing.span("missed sync-{tenant}")
    found = attributes(span)
    assert (found["lock_name"], found["outcome"], found["miss_reason"]) == ("sync-acme", "missed", "no_room")
    assert found["fire_time"] == "2026-11-29T00:00:00+00:00"
    assert span.status.status_code is StatusCode.ERROR


def test_a_recovered_run_names_its_former_holder_in_the_span(tracing: Tracing, store: InMemoryLockProvider) -> None:
    with hold("job", provider=store) as lease:
        emit(RunRecovered("job", lease, None, "web-1:7", 2))
    found = attributes(tracing.span("run job"))
    assert (found["recoveries"], found["former_holder"]) == (2, "web-1:7")


def test_an_overrun_is_a_lost_lease_in_the_span(tracing: Tracing) -> None:
    clock = FakeClock()
    attempt("job", lambda: clock.advance("11m"), lock_at_most_for="10m", provider=InMemoryLockProvider(clock=clock))
    span = tracing.span("run job")
    assert events(span) == ["shedlock.lease_lost"]
    assert attributes(span)["lost_reason"] == "overrun"


@pytest.mark.parametrize("way", [SYNC[0], ASYNC[0]], ids=str)
def test_inside_other_spans(way: Way, tracing: Tracing, store: InMemoryLockProvider) -> None:
    async def body(job: Job) -> None:
        with hold("inner", provider=store):
            pass

    with tracing.tracer.start_as_current_span("outer"):
        way.run(body, store)
    assert is_child(tracing.span("run job"), tracing.span("outer"))
    assert is_child(tracing.span("run inner"), tracing.span("run job"))


async def test_tasks_side_by_side(tracing: Tracing, store: InMemoryLockProvider) -> None:
    barrier = asyncio.Barrier(8)

    async def job(number: int) -> None:
        async with hold_async(f"job-{number}", provider=store):
            await barrier.wait()
            with tracing.tracer.start_as_current_span(f"inner-{number}"):
                await barrier.wait()

    with tracing.tracer.start_as_current_span("outer"):
        await asyncio.gather(*(job(number) for number in range(8)))
    for number in range(8):
        run = tracing.span(f"run job-{number}")
        assert is_child(tracing.span(f"inner-{number}"), run)
        assert is_child(run, tracing.span("outer"))


def test_threads_side_by_side(tracing: Tracing, store: InMemoryLockProvider) -> None:
    barrier = threading.Barrier(8)

    def job(number: int) -> None:
        for _ in range(3):
            with hold(f"job-{number}", provider=store):
                barrier.wait(10)
                with tracing.tracer.start_as_current_span(f"inner-{number}"):
                    barrier.wait(10)

    threads = [threading.Thread(target=job, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for number in range(8):
        runs, inner = tracing.spans(f"run job-{number}"), tracing.spans(f"inner-{number}")
        assert [is_child(*pair) for pair in zip(inner, runs, strict=True)] == [True] * 3
        assert {run.parent for run in runs} == {None}


async def test_a_cancelled_task_is_no_error_of_its_span(tracing: Tracing, store: InMemoryLockProvider) -> None:
    has_begun = asyncio.Event()

    async def job() -> None:
        has_begun.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(attempt_async("job", job, provider=store))
    await has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    span = tracing.span("run job")
    assert (attributes(span)["outcome"], span.status.status_code) == ("cancelled", StatusCode.UNSET)


async def test_a_task_that_outlives_its_job_starts_the_next(tracing: Tracing, store: InMemoryLockProvider) -> None:
    """Such a chain must not nest for ever, and its last link must not keep the whole chain in memory."""
    tasks: list[asyncio.Task[None]] = []
    depths: list[int] = []

    async def job(left: int) -> None:
        async with hold_async("job", provider=store):
            depths.append(depth())
            if left:
                tasks.append(asyncio.create_task(next_job(left - 1)))

    async def next_job(left: int) -> None:
        while (record := store.record("job")) and record.is_held:  # noqa: ASYNC110 (the job before ends it)
            await asyncio.sleep(0)
        with tracing.tracer.start_as_current_span("between"):
            await job(left)

    await job(5)
    for number in range(5):
        await tasks[number]
    runs = tracing.spans("run job")
    assert len(runs) == 6
    assert depths == [1] * 6
    between = {span.context.span_id for span in tracing.spans("between")}
    assert [run.parent.span_id in between if run.parent else None for run in runs] == [None, *[True] * 5]


async def test_a_job_that_ends_only_after_its_next_run_has_begun(tracing: Tracing, store: InMemoryLockProvider) -> None:
    depths: list[int] = []

    async def job(number: int, has_begun: asyncio.Event) -> None:
        async with hold_async(f"job-{number}", provider=store):
            depths.append(depth())
            has_begun.set()
            next_has_begun = asyncio.Event()
            following = asyncio.create_task(job(number + 1, next_has_begun)) if number < 20 else None
            if following is not None:
                await next_has_begun.wait()
        if following is not None:
            await following

    await job(0, asyncio.Event())
    assert len(tracing.spans("run job")) == 21
    assert max(depths) <= 3


def test_locks_that_do_not_nest(tracing: Tracing, store: InMemoryLockProvider) -> None:
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(hold("first", provider=store))
        second.enter_context(hold("second", provider=store))
        first.close()
        assert trace.get_current_span().get_span_context().span_id != 0  # still inside the second run
        second.close()
        assert trace.get_current_span() is trace.INVALID_SPAN


def test_a_block_that_ends_in_another_thread(tracing: Tracing, store: InMemoryLockProvider) -> None:
    block = hold("job", provider=store)
    block.__enter__()
    thread = threading.Thread(target=block.__exit__, args=(None, None, None))
    thread.start()
    thread.join(10)
    attempt("next", lambda: None, provider=store)
    assert tracing.span("run next").parent is None  # it is not a child of a run that has ended
    assert tracing.span("run job").end_time


def test_a_listener_that_comes_while_a_task_runs(tracing: Tracing, store: InMemoryLockProvider) -> None:
    with reset(), hold("job", provider=store):
        configure(listeners=[tracing.listener])
        attempt("inner", lambda: None, provider=store)
    assert [span.name for span in tracing.spans()] == ["run inner"]


@pytest.mark.usefixtures("small_heap")
def test_a_listener_that_goes_while_a_task_runs(tracing: Tracing, store: InMemoryLockProvider) -> None:
    def run() -> None:
        with hold("job", provider=store):
            restore = reset()
        gc.collect()
        restore.__exit__(None, None, None)
        attempt("next", lambda: None, provider=store)

    thread = threading.Thread(target=run)  # the first run stays in its context: no listener got the event of its end
    thread.start()
    thread.join(10)
    tracing.started -= 1  # no listener got the end of the first run
    assert [span.name for span in tracing.spans()] == ["run next"]
    assert tracing.span("run next").parent is None


@pytest.mark.usefixtures("small_heap")
def test_runs_that_never_end_are_not_kept(store: InMemoryLockProvider) -> None:
    tracing = Tracing()
    leases: list[weakref.ref[Lease]] = []
    depths: list[int] = []

    def begin() -> None:
        lease = store.take_over(LockRequest("job", "1m"))
        leases.append(weakref.ref(lease))
        tracing.listener(LockAcquired("job", lease, timedelta(0)))

    def run() -> None:
        for _ in range(50):
            begin()
        depths.append(depth())

    thread = threading.Thread(target=run)  # its context ends with it
    thread.start()
    thread.join(10)
    gc.collect()
    assert [lease for lease in leases if lease() is not None] == []
    assert depths == [1]
    tracing.provider.shutdown()


def test_a_loss_that_is_reported_while_the_task_finishes(
    tracing: Tracing, store: InMemoryLockProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep-alive's thread reports the loss at the moment when this thread sets the outcome."""
    lease = store.acquire(LockRequest("job", "1m"))
    assert lease
    tracing.listener(LockAcquired("job", lease, timedelta(0)))
    store.force_release("job")
    assert store.extend(lease, "1m") is None
    set_attribute = Span.set_attribute

    def set_after_the_loss(span: Span, key: str, value: Any) -> None:
        if key == "shedlock.outcome":
            tracing.listener(LeaseLost("job", lease, "revoked"))
        set_attribute(span, key, value)

    monkeypatch.setattr(Span, "set_attribute", set_after_the_loss)
    tracing.listener(TaskFinished("job", lease, timedelta(0), "succeeded", None))
    found = attributes(tracing.span("run job"))
    assert (found["outcome"], found["lost_reason"]) == ("succeeded", "revoked")


def test_a_run_ends_whose_loss_was_reported_before(tracing: Tracing, store: InMemoryLockProvider) -> None:
    """The release emits no further event if it finds another holder."""
    lease = store.acquire(LockRequest("job", "1m"))
    assert lease
    tracing.listener(LockAcquired("job", lease, timedelta(0)))
    tracing.listener(LeaseLost("job", lease, "unreachable"))
    tracing.listener(TaskFinished("job", lease, timedelta(0), "succeeded", None))
    found = attributes(tracing.span("run job"))
    assert (found["outcome"], found["lost_reason"]) == ("succeeded", "unreachable")


def test_spans_begin_with_the_request(tracing: Tracing, store: InMemoryLockProvider) -> None:
    lease = store.acquire(LockRequest("job", "1m"))
    assert lease
    tracing.listener(LockAcquired("job", lease, timedelta(seconds=30)))
    tracing.listener(TaskFinished("job", lease, timedelta(seconds=1), "succeeded", None))
    tracing.listener(LockReleased("job", lease, timedelta(seconds=1)))
    tracing.listener(LockSkipped("job", "held", timedelta(seconds=30)))
    assert 29 < seconds(tracing.span("run job")) < 40
    assert 29 < seconds(tracing.span("skip job")) < 40


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "run sync-{tenant}"),
        ({"label": str}, "run sync-acme"),
        ({"label": lambda name: name.partition("-")[0]}, "run sync"),
    ],
)
def test_a_span_of_a_name_from_a_template(options: dict[str, Any], name: str, store: InMemoryLockProvider) -> None:
    @scheduler_lock("sync-{tenant}", "1m")
    def sync(tenant: str) -> None: ...

    tracing = Tracing()
    with configure(provider=store, listeners=[OpenTelemetryListener(tracing.provider, **options)]):
        sync("acme")
    assert [(span.name, attributes(span)["lock_name"]) for span in tracing.spans()] == [(name, "sync-acme")]
    tracing.provider.shutdown()


def test_a_leadership_is_a_span_at_its_start_and_one_at_its_end(tracing: Tracing, store: InMemoryLockProvider) -> None:
    with LeaderElector(store, "feed", holder="me", **ELECTION) as elector:
        assert elector.wait_until_leader("10s")
        elector.demote()
        wait_until(lambda: tracing.spans("leadership stopped"))
    started, stopped = tracing.span("leadership started feed"), tracing.spans("leadership stopped feed")[0]
    assert attributes(started)["election"] == "feed"
    assert attributes(started)["holder"] == "me"
    assert attributes(started)["term"] == attributes(stopped)["term"]
    assert attributes(stopped)["stop_reason"] == "revoked"
    assert (started.status.status_code, stopped.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert tracing.span("leader changed feed")


def test_without_an_sdk(store: InMemoryLockProvider, caplog: pytest.LogCaptureFixture) -> None:
    with configure(provider=store, listeners=[OpenTelemetryListener()]):
        attempt("job", lambda: attempt("inner", lambda: None))
        store.acquire(LockRequest("held", "1m"))
        attempt("held", lambda: None)
    assert records_of(caplog) == []
    assert trace.get_current_span() is trace.INVALID_SPAN
