"""Traces with OpenTelemetry: its API only. Needs the extra ``opentelemetry``; the SDK is the application's.

Every span and attribute is described in ``docs/observability/index.md``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
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
    LockEvent,
    LockExtended,
    LockReleased,
    LockSkipped,
    ProviderFailed,
    TaskFinished,
)

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, StatusCode, TracerProvider
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "shedlock_py.integrations.opentelemetry needs the package 'opentelemetry-api': "
        "pip install 'shedlock_py[opentelemetry]'",
        name=error.name,
    ) from error

LOST = "the lease was lost"

Attributes = Mapping[str, str | bool | int | float | None]


class OpenTelemetryListener:
    """One span for each guarded run: ``configure(…, listeners=[OpenTelemetryListener()])``

    The span lasts from the question for the lock to its release, and is the current one while the task runs: the task's
    own spans become its children. A skip, a store that fails, and what happens to a leadership are short spans of
    their own.

    :param tracer_provider: the global one by default, which may be set later.
    :param label: makes the name of a lock in names of spans, which should be few:
        ``lambda name: name.partition(":")[0]``. By default a name that was filled from a template ("sync-{tenant}")
        counts under the template, and ``label=str`` takes the whole name, which the attribute ``shedlock.lock_name``
        has in any case.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, *, label: Callable[[str], str] | None = None
    ) -> None:
        self._tracer = trace.get_tracer("shedlock_py", shedlock_py.__version__, tracer_provider)
        self._label = label
        self._runs: WeakKeyDictionary[Lease, _Run] = WeakKeyDictionary()  # weak: a run may never be heard of again
        self._innermost = contexts.create_key("shedlock_py-run")

    def __call__(self, event: Event) -> None:
        match event:
            case LockAcquired():
                self._begin(event)
            case LockExtended(_, lease):
                if run := self._runs.get(lease):
                    seconds = lease.lock_at_most_for.total_seconds()
                    run.span.add_event("shedlock.extended", _known({"shedlock.lock_at_most_for": seconds}))
            case LeaseLost(_, lease, reason):
                if run := self._runs.get(lease):
                    run.span.set_attribute("shedlock.lost_reason", reason)
                    run.span.add_event("shedlock.lease_lost", {"shedlock.lost_reason": reason})
                    run.span.set_status(StatusCode.ERROR, LOST)
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
                told: Attributes = {"shedlock.outcome": "skipped", "shedlock.skip_reason": reason}
                self._tell(f"skip {self._name_of(event)}", {"shedlock.lock_name": name, **told}, elapsed)
            case LeadershipStarted(name, holder, term):
                self._tell(f"leadership started {name}", _leadership(name, holder, term))
            case LeadershipStopped(name, holder, term, reason):
                attributes = {**_leadership(name, holder, term), "shedlock.stop_reason": reason}
                error = None if reason == "resigned" else f"the leadership was lost ({reason})"
                self._tell(f"leadership stopped {name}", attributes, error=error)
            case LeaderChanged(name, holder):
                self._tell(f"leader changed {name}", _leadership(name, holder, None))

    def _name_of(self, event: LockEvent) -> str:
        """The name of its lock in the name of a span."""
        return self._label(event.lock_name) if self._label else event.template or event.lock_name

    # A run

    def _begin(self, event: LockAcquired) -> None:
        lease = event.lease
        outside = self._outside(contexts.get_current())
        self._forget_what_is_over(outside)
        span = self._tracer.start_span(
            f"run {self._name_of(event)}",
            outside,
            attributes=_known(
                {
                    "shedlock.lock_name": event.lock_name,
                    "shedlock.holder": lease.holder,
                    "shedlock.fencing_token": lease.fencing_token,
                    "shedlock.lock_at_most_for": lease.lock_at_most_for.total_seconds(),
                    "shedlock.lock_at_least_for": lease.lock_at_least_for.total_seconds(),
                    "shedlock.acquired_after": event.elapsed.total_seconds(),
                }
            ),
            start_time=_ago(event.elapsed),
        )
        run = self._runs[lease] = _Run(span, lease, outside)
        contexts.attach(contexts.set_value(self._innermost, run, trace.set_span_in_context(span, outside)))

    def _finish(self, event: TaskFinished) -> None:
        lease = event.lease
        run = self._runs.get(lease)
        if run is None:
            return  # it began before this listener was configured
        run.has_finished = True
        # Not with the token of attach(): the task may end in another context, or before a lock that it took later.
        contexts.attach(self._outside(contexts.get_current()))
        run.span.set_attribute("shedlock.outcome", event.outcome)
        run.span.set_attribute("shedlock.task_duration", event.duration.total_seconds())
        if event.outcome == "failed" and event.error is not None:
            _record(run.span, event.error)
        if lease.has_ended():
            self._end(lease)  # the task has released it itself: nothing more will be told
        elif lease.is_lost():
            run.span.set_status(StatusCode.ERROR, LOST)
            self._end(lease)  # it was told, or is being told in another thread

    def _fail(self, event: ProviderFailed) -> None:
        run = None if event.lease is None else self._runs.get(event.lease)
        if run is None or event.lease is None:
            name = f"{event.operation} {self._name_of(event)}"
            attributes = {"shedlock.lock_name": event.lock_name, "shedlock.outcome": "provider_failed"}
            self._tell(name, attributes, error=event.error)
        elif event.operation == "release":
            _record(run.span, event.error)
            self._end(event.lease)
        else:
            run.span.record_exception(event.error)  # it is tried again, or raised in the task

    def _end(self, lease: Lease) -> None:
        run = self._runs.pop(lease, None)
        if run is not None:  # else another thread has ended it
            run.has_finished = True
            run.span.end()

    def _outside(self, context: Context) -> Context:
        """``context`` without the runs that are over: a task that outlives its run is not inside of it any more."""
        run = contexts.get_value(self._innermost, context)
        while isinstance(run, _Run) and run.is_over():
            if trace.get_current_span(context) is run.span:  # else the task's own, which stays current
                context = run.outside
            run = contexts.get_value(self._innermost, run.outside)
        return contexts.set_value(self._innermost, run, context)

    def _forget_what_is_over(self, context: Context) -> None:
        """In all runs around: a job that ends after it has started its own next run must not grow a chain."""
        while isinstance(run := contexts.get_value(self._innermost, context), _Run):
            run.outside = context = self._outside(run.outside)

    # Short spans

    def _tell(
        self,
        name: str,
        attributes: Attributes,
        elapsed: timedelta = timedelta(0),
        error: Exception | str | None = None,
    ) -> None:
        parent = self._outside(contexts.get_current())
        span = self._tracer.start_span(name, parent, attributes=_known(attributes), start_time=_ago(elapsed))
        if isinstance(error, Exception):
            _record(span, error)
        elif error is not None:
            span.set_status(StatusCode.ERROR, error)
        span.end()


class _Run:
    """One guarded run. Does not keep its lease alive: it may be all that is left of a run that never ended."""

    def __init__(self, span: Span, lease: Lease, outside: Context) -> None:
        self.span = span
        self.outside = outside
        self.has_finished = False
        self._lease = ref(lease)

    def is_over(self) -> bool:
        return self.has_finished or self._lease() is None


def _record(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")


def _leadership(election: str, holder: str, term: int | None) -> Attributes:
    return {"shedlock.election": election, "shedlock.holder": holder, "shedlock.term": term}


def _known(attributes: Attributes) -> dict[str, str | bool | int | float]:
    return {name: value for name, value in attributes.items() if value is not None}


def _ago(elapsed: timedelta) -> int:
    """That long ago, in nanoseconds of Unix time."""
    return time.time_ns() - elapsed // timedelta(microseconds=1) * 1000
