"""Metrics for Prometheus. Needs the extra ``prometheus``.

Every metric is described in ``docs/observability/index.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import get_args
from weakref import WeakSet

from shedlock_py import (
    ConfigurationError,
    ElectionEvent,
    Event,
    LeadershipStarted,
    LeadershipStopped,
    Lease,
    LeaseLost,
    LockAcquired,
    LockEvent,
    LockExtended,
    LockSkipped,
    ProviderFailed,
    TaskFinished,
)
from shedlock_py.events import LostReason, Outcome, SkipReason, logger
from shedlock_py.spec import declared_lock_names

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "shedlock_py.integrations.prometheus needs the package 'prometheus_client': "
        "pip install 'shedlock_py[prometheus]'",
        name=error.name,
    ) from error

ACQUISITIONS = ("acquired", *(reason for reason in get_args(SkipReason) if reason != "provider_error"), "failed")
OPERATIONS = ("acquire", "extend", "release")
NOT_ASKED = ("shutting_down", "not_leader")
"""Skips for which the store is not asked: they say nothing about how long it takes to answer."""

HELD_BUCKETS = (0.01, 0.1, 0.5, 1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400)
ACQUIRE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class PrometheusListener:
    """Counts what happens to locks: ``configure(…, listeners=[PrometheusListener()])``

    Every metric of a lock name is there, at zero, as soon as the name is known: before its first run for
    ``lock_names`` and for functions under ``@scheduler_lock``, wherever they are decorated (but for names that are
    filled from each call), and at its first event for all others.

    :param registry: where the metrics are registered; ``prometheus_client.REGISTRY`` by default.
    :param lock_names: names that are known in advance, such as those given to ``hold`` and ``attempt``.
    :param label: makes the label ``lock`` of a lock name. Each value is some sixty time series for ever, so let many
        names share one: ``lambda name: name.partition(":")[0]``. By default names that were filled from a template
        ("sync-{tenant}") share the template as their label; ``label=str`` takes each whole name.
    :raises ConfigurationError: the registry has these metrics already: one listener is enough for a process.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        lock_names: Iterable[str] = (),
        label: Callable[[str], str] | None = None,
    ) -> None:
        if isinstance(lock_names, str):
            raise ConfigurationError(f"lock_names must be a list of names, not the text {lock_names!r}")
        self._label = label
        self._known: set[str] = set()
        self._running: WeakSet[Lease] = WeakSet()
        self._metrics = CollectorRegistry()  # our own, to be collected as one by that of the application
        self._make_metrics()
        for name in (*lock_names, *declared_lock_names()):
            self._register(self._label_of(name))
        try:
            (REGISTRY if registry is None else registry).register(self)
        except ValueError as error:
            raise ConfigurationError(
                "this registry has the metrics of a PrometheusListener already: one for the process is enough, or give "
                "each a CollectorRegistry of its own"
            ) from error

    def _make_metrics(self) -> None:
        metrics = self._metrics
        self._acquisitions = Counter(
            "shedlock_acquisitions",
            "How often a lock was asked for. outcome: acquired, why it was skipped, or failed (the store).",
            ["lock", "outcome"],
            registry=metrics,
        )
        self._tasks = Counter(
            "shedlock_tasks", "Guarded tasks that have ended, by outcome.", ["lock", "outcome"], registry=metrics
        )
        self._lost = Counter(
            "shedlock_leases_lost", "Leases that ended before their task.", ["lock", "reason"], registry=metrics
        )
        self._extensions = Counter(
            "shedlock_extensions", "Leases extended, on purpose or by keep-alive.", ["lock"], registry=metrics
        )
        self._failures = Counter(
            "shedlock_provider_failures",
            "Operations at which the store failed.",
            ["lock", "operation"],
            registry=metrics,
        )
        self._held = Histogram(
            "shedlock_held_seconds",
            "From the grant of a lock to the end of its task.",
            ["lock"],
            buckets=HELD_BUCKETS,
            registry=metrics,
        )
        self._acquire = Histogram(
            "shedlock_acquire_seconds",
            "How long the store took to grant or refuse a lock.",
            ["lock"],
            buckets=ACQUIRE_BUCKETS,
            registry=metrics,
        )
        # With several processes behind one scrape (multiprocess mode): the sum over those that are alive.
        self._running_now = Gauge(
            "shedlock_running",
            "Guarded tasks that are running.",
            ["lock"],
            registry=metrics,
            multiprocess_mode="livesum",
        )
        self._leader = Gauge(
            "shedlock_leader",
            "1 if this process leads, 0 if it does not.",
            ["election"],
            registry=metrics,
            multiprocess_mode="livesum",
        )
        self._last_success = Gauge(
            "shedlock_last_success_timestamp_seconds",
            "When a guarded task last succeeded in this process, in Unix time; absent before.",
            ["lock"],
            registry=metrics,
            multiprocess_mode="max",
        )

    def __call__(self, event: Event) -> None:
        match event:
            case LockAcquired(_, lease, elapsed):
                lock = self._lock(event)
                self._acquisitions.labels(lock, "acquired").inc()
                self._acquire.labels(lock).observe(elapsed.total_seconds())
                self._running.add(lease)
                self._running_now.labels(lock).inc()
            case LockSkipped(_, reason, elapsed):
                lock = self._lock(event)
                self._acquisitions.labels(lock, reason).inc()
                if reason not in NOT_ASKED:
                    self._acquire.labels(lock).observe(elapsed.total_seconds())
            case TaskFinished(_, lease, duration, outcome):
                lock = self._lock(event)
                self._tasks.labels(lock, outcome).inc()
                self._held.labels(lock).observe(duration.total_seconds())
                if outcome == "succeeded":
                    self._last_success.labels(lock).set_to_current_time()
                if lease in self._running:  # not if this listener was configured while the task ran
                    self._running.discard(lease)
                    self._running_now.labels(lock).dec()
            case LeaseLost(_, _, reason):
                self._lost.labels(self._lock(event), reason).inc()
            case LockExtended():
                self._extensions.labels(self._lock(event)).inc()
            case ProviderFailed(_, operation):
                lock = self._lock(event)
                self._failures.labels(lock, operation).inc()
                if operation == "acquire":
                    self._acquisitions.labels(lock, "failed").inc()
            case LeadershipStarted(name):
                self._leader.labels(name).set(1)
            case LeadershipStopped(name):
                self._leader.labels(name).set(0)
            case ElectionEvent(name):
                self._leader.labels(name)  # at zero, unless this node leads

    def _lock(self, event: LockEvent) -> str:
        """The label of the lock that an event is about, with all its metrics there."""
        lock = self._label_of(event.lock_name, event.template)
        self._register(lock)
        return lock

    def _label_of(self, name: str, template: str | None = None) -> str:
        return self._label(name) if self._label else template or name

    def _register(self, lock: str) -> None:
        if lock in self._known:
            return
        for outcome in ACQUISITIONS:
            self._acquisitions.labels(lock, outcome)
        for outcome in get_args(Outcome):
            self._tasks.labels(lock, outcome)
        for reason in get_args(LostReason):
            self._lost.labels(lock, reason)
        for operation in OPERATIONS:
            self._failures.labels(lock, operation)
        for metric in (self._extensions, self._held, self._acquire, self._running_now):
            metric.labels(lock)
        self._known.add(lock)

    # What the registry calls

    def collect(self) -> Iterator[Metric]:
        """All metrics, with those of functions that were decorated since."""
        for name in declared_lock_names():
            try:
                self._register(self._label_of(name))
            except Exception:  # a scrape must not fail because of one name
                logger.exception("no label for the lock name %r", name)
        yield from self._metrics.collect()

    def describe(self) -> Iterator[Metric]:
        """The names of the metrics, so that a registry refuses a second listener."""
        yield from self._metrics.collect()
