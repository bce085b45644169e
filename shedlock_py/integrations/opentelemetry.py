"""Traces with OpenTelemetry. Needs the extra ``opentelemetry``: the API only. The application brings the SDK.

``docs/observability/index.md`` describes every span and attribute.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from weakref import WeakKeyDictionary, ref

import shedlock_py
from shedlock_py import (
    Event,
    LeaderChanged,
    LeadershipStarted,
    LeadershipStopped,
    Lease,
    LeaseLost,
    LockAcquired,
    LockExtended,
    LockReleased,
    LockSkipped,
    ProviderFailed,
    RunMissed,
    RunRecovered,
    TaskFinished,
)
from shedlock_py.integrations import Label, label_of, missing_extra

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, StatusCode, TracerProvider
except ModuleNotFoundError as error:
    raise missing_extra("opentelemetry", "opentelemetry-api", error) from error

__all__ = ["OpenTelemetryListener"]

LOST = "the lease was lost"

Attributes = Mapping[str, str | bool | int | float | None]


class OpenTelemetryListener:
    """One span for each guarded run: ``configure(…, listeners=[OpenTelemetryListener()])``

    The span lasts from the request for the lock to its release. It is the current span while the task runs, so the
    task's own spans become its children. Skips, missed runs, failures of the store and changes of a leadership are
    short spans of their own.

    :param tracer_provider: by default the global provider. The application may set that later.
    :param label: returns the label of a lock name for names of spans. There should be few labels:
        ``lambda name: name.partition(":")[0]``. By default a name that was filled from a template ("sync-{tenant}") has
        the template as its label. ``label=str`` takes the whole name. The attribute ``shedlock.lock_name`` always has
        the whole name.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None, *, label: Label | None = None) -> None:
        self._tracer = trace.get_tracer("shedlock_py", shedlock_py.__version__, tracer_provider)
        self._label = label
        self._runs: WeakKeyDictionary[Lease, Run] = WeakKeyDictionary()  # weak: some runs emit no further event
        self._current_run = contexts.create_key("shedlock_py-run")

    def __call__(self, event: Event) -> None:
        match event:
            case LockAcquired():
                self._begin(event)
            case LockExtended(_, lease):
                if run := self._runs.get(lease):
                    seconds = lease.lock_at_most_for.total_seconds()
                    run.span.add_event("shedlock.extended", {"shedlock.lock_at_most_for": seconds})
            case LeaseLost(_, lease, reason):
                if run := self._runs.get(lease):
                    run.span.set_attribute("shedlock.lost_reason", reason)
                    run.span.add_event("shedlock.lease_lost", {"shedlock.lost_reason": reason})
                    run.span.set_status(StatusCode.ERROR, LOST)
                    run.is_loss_reported = True
                    if run.has_finished:
                        self._end(lease)
            case TaskFinished():
                self._finish(event)
            case LockReleased(_, lease, held_for):
                if run := self._runs.get(lease):
                    run.span.set_attribute("shedlock.held_for", held_for.total_seconds())
                    self._end(lease)
            case ProviderFailed():
                self._fail(event)
            case LockSkipped(name, reason, elapsed):
                skip = {"shedlock.outcome": "skipped", "shedlock.skip_reason": reason}
                label = label_of(name, event.template, self._label)
                self._short_span(f"skip {label}", {"shedlock.lock_name": name, **skip}, elapsed)
            case RunMissed(name, fire_time, reason):
                missed = {
                    "shedlock.lock_name": name,
                    "shedlock.outcome": "missed",
                    "shedlock.miss_reason": reason,
                    "shedlock.fire_time": None if fire_time is None else fire_time.isoformat(),
                }
                label = label_of(name, event.template, self._label)
                self._short_span(f"missed {label}", missed, error=f"the run was missed ({reason})")
            case RunRecovered(_, lease, _, former_holder, recoveries):
                if run := self._runs.get(lease):
                    run.span.set_attribute("shedlock.recoveries", recoveries)
                    run.span.set_attribute("shedlock.former_holder", former_holder)
            case LeadershipStarted(name, holder, term):
                self._short_span(f"leadership started {name}", _leadership(name, holder, term))
            case LeadershipStopped(name, holder, term, reason):
                attributes = {**_leadership(name, holder, term), "shedlock.stop_reason": reason}
                error = None if reason == "resigned" else f"the leadership was lost ({reason})"
                self._short_span(f"leadership stopped {name}", attributes, error=error)
            case LeaderChanged(name, holder):
                self._short_span(f"leader changed {name}", _leadership(name, holder, None))

    # A run

    def _begin(self, event: LockAcquired) -> None:
        lease = event.lease
        parent = context = self._without_ended_runs(contexts.get_current())
        # Drop ended runs from all parents: a job that starts its own next run must not grow a chain.
        while isinstance(enclosing := contexts.get_value(self._current_run, context), Run):
            enclosing.parent = context = self._without_ended_runs(enclosing.parent)
        span = self._start_span(
            f"run {label_of(event.lock_name, event.template, self._label)}",
            {
                "shedlock.lock_name": event.lock_name,
                "shedlock.holder": lease.holder,
                "shedlock.fencing_token": lease.fencing_token,
                "shedlock.lock_at_most_for": lease.lock_at_most_for.total_seconds(),
                "shedlock.lock_at_least_for": lease.lock_at_least_for.total_seconds(),
                "shedlock.acquired_after": event.elapsed.total_seconds(),
            },
            event.elapsed,
            parent,
        )
        run = self._runs[lease] = Run(span, lease, parent)
        contexts.attach(contexts.set_value(self._current_run, run, trace.set_span_in_context(span, parent)))

    def _finish(self, event: TaskFinished) -> None:
        lease = event.lease
        run = self._runs.get(lease)
        if run is None:
            return  # the run began before this listener was configured
        run.span.set_attribute("shedlock.outcome", event.outcome)
        run.span.set_attribute("shedlock.task_duration", event.duration.total_seconds())
        if event.outcome == "failed" and event.error is not None:
            _record(run.span, event.error)
        run.has_finished = True
        # Not with attach()'s token: the task may end in another context, or before a lock that it took later.
        contexts.attach(self._without_ended_runs(contexts.get_current()))
        # LeaseLost may come in another thread: the later event ends the span.
        if run.is_loss_reported or lease.has_ended():  # or the task has released the lease itself
            self._end(lease)  # because no further event comes

    def _fail(self, event: ProviderFailed) -> None:
        run = None if event.lease is None else self._runs.get(event.lease)
        if run is None or event.lease is None:
            name = f"{event.operation} {label_of(event.lock_name, event.template, self._label)}"
            attributes = {"shedlock.lock_name": event.lock_name, "shedlock.outcome": "provider_failed"}
            self._short_span(name, attributes, error=event.error)
        elif event.operation == "release":
            _record(run.span, event.error)
            self._end(event.lease)
        else:
            run.span.record_exception(event.error)  # the guard tries again, or raises the error in the task

    def _end(self, lease: Lease) -> None:
        run = self._runs.pop(lease, None)
        if run is not None:  # else another thread has ended it
            run.has_finished = True
            run.span.end()

    def _without_ended_runs(self, context: Context) -> Context:
        """Return ``context`` without ended runs: code that outlives its run is not inside that run any more."""
        run = contexts.get_value(self._current_run, context)
        while isinstance(run, Run) and run.has_ended():
            if trace.get_current_span(context) is run.span:  # else a span of the task is current, and stays current
                context = run.parent
            run = contexts.get_value(self._current_run, run.parent)
        return contexts.set_value(self._current_run, run, context)

    # Spans

    def _start_span(self, name: str, attributes: Attributes, elapsed: timedelta, parent: Context) -> Span:
        """Start a span that began ``elapsed`` ago."""
        start = time.time_ns() - elapsed // timedelta(microseconds=1) * 1000
        known = {key: value for key, value in attributes.items() if value is not None}
        return self._tracer.start_span(name, parent, attributes=known, start_time=start)

    def _short_span(
        self,
        name: str,
        attributes: Attributes,
        elapsed: timedelta = timedelta(0),
        error: Exception | str | None = None,
    ) -> None:
        span = self._start_span(name, attributes, elapsed, self._without_ended_runs(contexts.get_current()))
        if isinstance(error, Exception):
            _record(span, error)
        elif error is not None:
            span.set_status(StatusCode.ERROR, error)
        span.end()


class Run:
    """One guarded run. It refers to its lease weakly, so that the run of a dropped generator can be collected."""

    def __init__(self, span: Span, lease: Lease, parent: Context) -> None:
        self.span = span
        self.parent = parent
        self.has_finished = False
        self.is_loss_reported = False
        self._lease = ref(lease)

    def has_ended(self) -> bool:
        return self.has_finished or self._lease() is None


def _record(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")


def _leadership(election: str, holder: str, term: int | None) -> Attributes:
    return {"shedlock.election": election, "shedlock.holder": holder, "shedlock.term": term}
