"""Metrics for Prometheus. Needs the extra ``prometheus``.

``docs/observability/index.md`` describes every metric.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, get_args
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
    LockProvider,
    LockSkipped,
    OperatorActed,
    ProviderFailed,
    RunMissed,
    RunRecovered,
    TaskFinished,
)
from shedlock_py.events import LostReason, MissReason, Outcome, SkipReason, logger
from shedlock_py.guard.spec import declared_lock_names
from shedlock_py.integrations import Label, label_of, missing_extra
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.overdue import DEFAULT_GRACE, TROUBLES, punctuality, recent_runs
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import validate_prefix
from shedlock_py.provider import can
from shedlock_py.settings.options import is_async_provider, required_provider

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric
except ModuleNotFoundError as error:
    raise missing_extra("prometheus", "prometheus_client", error) from error

__all__ = ["OverdueCollector", "PausedCollector", "PrometheusListener"]

ACQUISITIONS = ("acquired", *(reason for reason in get_args(SkipReason) if reason != "provider_error"), "failed")
OPERATIONS = ("acquire", "extend", "release")
WITHOUT_THE_STORE = ("shutting_down", "not_leader")
"""Skips without a request to the store, and so without a duration to measure."""

HELD_BUCKETS = (0.01, 0.1, 0.5, 1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400)
ACQUIRE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class PrometheusListener:
    """Counts events of locks: ``configure(…, listeners=[PrometheusListener()])``

    Every metric of a lock name exists, at zero, as soon as the name is known. Names in ``lock_names`` and names of
    functions under ``@scheduler_lock`` are known before their first run. All other names, also names that are filled
    from each call, are known at the first attempt to run the job.

    :param registry: the registry of the metrics. Default: ``prometheus_client.REGISTRY``.
    :param lock_names: names that are known in advance, such as the names for ``hold`` and ``attempt``.
    :param label: returns the label ``lock`` of a lock name. Each label makes about ninety time series for ever, so let
        many names share a label: ``lambda name: name.partition(":")[0]``. By default names that were filled from a
        template ("sync-{tenant}") have the template as their label. ``label=str`` takes each whole name.
    :raises ConfigurationError: the registry has these metrics already. A process needs only one listener.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        lock_names: Iterable[str] = (),
        label: Label | None = None,
    ) -> None:
        if isinstance(lock_names, str):
            raise ConfigurationError(f"lock_names must be a list of names, not the text {lock_names!r}")
        self._label = label
        self._running: WeakSet[Lease] = WeakSet()
        self._elections: set[str] = set()
        self._metrics = CollectorRegistry()  # collected as a whole by the application's registry
        self._make_metrics()
        for name in (*lock_names, *declared_lock_names()):
            self._register(label_of(name, None, label))
        try:
            (REGISTRY if registry is None else registry).register(self)
        except ValueError as error:
            raise ConfigurationError(
                "this registry has the metrics of a PrometheusListener already: use one listener in the process, or "
                "give each listener its own CollectorRegistry"
            ) from error

    def _make_metrics(self) -> None:
        counter = partial(Counter, registry=self._metrics)
        histogram = partial(Histogram, registry=self._metrics)
        # In multiprocess mode, several processes share one scrape: sum over the living processes.
        gauge = partial(Gauge, registry=self._metrics, multiprocess_mode="livesum")
        self._acquisitions = counter(
            "shedlock_acquisitions",
            "Attempts to acquire a lock. outcome: acquired, the reason of a skip, or failed (the store).",
            ["lock", "outcome"],
        )
        self._tasks = counter("shedlock_tasks", "Guarded tasks that have ended, by outcome.", ["lock", "outcome"])
        self._lost = counter("shedlock_leases_lost", "Leases that ended before their task.", ["lock", "reason"])
        self._missed = counter(
            "shedlock_runs_missed", "Due runs that did not happen or did not finish.", ["lock", "reason"]
        )
        self._recovered = counter(
            "shedlock_runs_recovered", "Runs of another replica that never ended, run again here.", ["lock"]
        )
        self._extensions = counter("shedlock_extensions", "Leases extended, on purpose or by keep-alive.", ["lock"])
        self._failures = counter(
            "shedlock_provider_failures", "Operations that failed because of the store.", ["lock", "operation"]
        )
        self._held = histogram(
            "shedlock_held_seconds",
            "Time from the grant of a lock to the end of its task.",
            ["lock"],
            buckets=HELD_BUCKETS,
        )
        self._acquire = histogram(
            "shedlock_acquire_seconds",
            "Time that the store took to grant or refuse a lock.",
            ["lock"],
            buckets=ACQUIRE_BUCKETS,
        )
        self._running_now = gauge("shedlock_running", "Guarded tasks that are running.", ["lock"])
        self._leader = gauge("shedlock_leader", "1 if this process leads, 0 if it does not.", ["election"])
        self._last_success = gauge(
            "shedlock_last_success_timestamp_seconds",
            "Unix time of the last success of a guarded task in this process; absent before the first.",
            ["lock"],
            multiprocess_mode="max",
        )

    def __call__(self, event: Event) -> None:
        lock = ""
        if isinstance(event, LockEvent):
            lock = label_of(event.lock_name, event.template, self._label)
            if event.lock_name not in self._elections and _is_of_a_job(event):
                self._register(lock)
        match event:
            case LockAcquired(_, lease, elapsed):
                self._acquisitions.labels(lock, "acquired").inc()
                self._acquire.labels(lock).observe(elapsed.total_seconds())
                self._running.add(lease)
                self._running_now.labels(lock).inc()
            case LockSkipped(_, reason, elapsed):
                self._acquisitions.labels(lock, reason).inc()
                if reason not in WITHOUT_THE_STORE:
                    self._acquire.labels(lock).observe(elapsed.total_seconds())
            case TaskFinished(_, lease, duration, outcome):
                self._tasks.labels(lock, outcome).inc()
                self._held.labels(lock).observe(duration.total_seconds())
                if outcome == "succeeded":
                    self._last_success.labels(lock).set_to_current_time()
                if lease in self._running:  # false if this listener was configured while the task ran
                    self._running.discard(lease)
                    self._running_now.labels(lock).dec()
            case LeaseLost(_, _, reason):
                self._lost.labels(lock, reason).inc()
            case RunMissed(_, _, reason):
                self._missed.labels(lock, reason).inc()
            case RunRecovered():
                self._recovered.labels(lock).inc()
            case LockExtended():
                self._extensions.labels(lock).inc()
            case ProviderFailed(_, operation):
                self._failures.labels(lock, operation).inc()
                if operation == "acquire":
                    self._acquisitions.labels(lock, "failed").inc()
            case ElectionEvent(name):
                self._elections.add(name)
                leader = self._leader.labels(name)  # at zero, unless this node leads
                if isinstance(event, (LeadershipStarted, LeadershipStopped)):
                    leader.set(isinstance(event, LeadershipStarted))

    def _register(self, lock: str) -> None:
        """Create all time series of a lock, at zero."""
        for outcome in ACQUISITIONS:
            self._acquisitions.labels(lock, outcome)
        for outcome in get_args(Outcome):
            self._tasks.labels(lock, outcome)
        for reason in get_args(LostReason):
            self._lost.labels(lock, reason)
        for reason in get_args(MissReason):
            self._missed.labels(lock, reason)
        for operation in OPERATIONS:
            self._failures.labels(lock, operation)
        for metric in (self._recovered, self._extensions, self._held, self._acquire, self._running_now):
            metric.labels(lock)

    # Called by the registry

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics. Include functions that were decorated after the last scrape."""
        for name in declared_lock_names():
            try:
                self._register(label_of(name, None, self._label))
            except Exception:  # a scrape must not fail because of one name
                logger.exception("no label for the lock name %r", name)
        yield from self._metrics.collect()

    def describe(self) -> Iterable[Metric]:
        """Return the names of the metrics, so that a registry refuses a second listener."""
        return self._metrics.collect()


def _is_of_a_job(event: LockEvent) -> bool:
    """Return whether ``event`` shows that this process runs the lock's job. Then the lock gets all time series.

    Events of operators and elections do not show this: with their series, the alert for a job without success would
    never end.
    """
    match event:
        case LockSkipped(_, reason):
            return reason != "not_leader"
        case ProviderFailed(_, operation):
            return operation == "acquire"  # a node of an election reads the record first, and fails there
        case OperatorActed():
            return False
    return True


class _StoreCollector:
    """A metric that each scrape reads from the store."""

    _metric: tuple[str, str]
    """The name and the help text."""
    _labels: tuple[str, ...]

    def __init__(
        self,
        provider: LockProvider | str,
        registry: CollectorRegistry | None = None,
        *,
        prefix: str = "",
        label: Label | None = None,
    ) -> None:
        self._provider: Any = required_provider(provider)
        kind = type(self).__name__
        if is_async_provider(self._provider):
            raise ConfigurationError(f"{kind} needs a sync provider, because a scrape cannot await an async provider")
        self._prefix = validate_prefix(prefix)
        self._label = label
        self._has_failed = False
        try:
            (REGISTRY if registry is None else registry).register(self)
        except ValueError as error:
            raise ConfigurationError(f"this registry has one {kind} already, and one is enough") from error

    def collect(self) -> Iterator[Metric]:
        """Yield the metric from the present records of the store."""
        try:
            found = {
                (label_of(name, None, self._label), *values)
                for name, *values in self._read(self._provider.records(self._prefix))
            }
        except Exception as error:  # a scrape must not fail because of the store
            level = logging.DEBUG if self._has_failed else logging.WARNING
            logger.log(level, "no %s: %s", self._metric[0], error)
            self._has_failed = True
            return
        self._has_failed = False
        for metric in self.describe():
            for values in sorted(found):
                metric.add_sample(metric.name, dict(zip(self._labels, values, strict=True)), 1)
            yield metric

    def describe(self) -> Iterable[Metric]:
        """Return the name of the metric, without a request to the store."""
        return [Metric(*self._metric, "gauge")]

    def _read(self, records: Sequence[LockRecord]) -> Iterator[tuple[str, ...]]:
        """Yield the label values of each time series, with the lock name first."""
        raise NotImplementedError


class PausedCollector(_StoreCollector):
    """The metric ``shedlock_paused``: 1 for each lock that an operator has paused. ``PausedCollector(provider)``

    To a replica, a paused lock looks like a held lock, so listeners do not see pauses. Each scrape reads the records of
    the store. Use it in one scraped process for all replicas. While the store fails, a scrape returns all other metrics
    without this one.

    :param provider: the store, as a sync provider or a URL. A scrape waits for the store. If the provider was made from
        a URL, it waits for at most ``timeout``: choose less than Prometheus' ``scrape_timeout``.
    :param registry: as for :class:`PrometheusListener`.
    :param prefix: only lock names that start with this text. Default: all names.
    :param label: returns the label ``lock`` of a lock name. Default: the whole name. Only paused locks have a series.
    :raises ConfigurationError: the provider is async, or the registry has this metric already.
    """

    _metric = "shedlock_paused", "1: an operator has paused the lock; absent: not paused."
    _labels = ("lock",)

    def _read(self, records: Sequence[LockRecord]) -> Iterator[tuple[str, ...]]:
        return ((record.name,) for record in records if record.is_paused)


class OverdueCollector(_StoreCollector):
    """The metric ``shedlock_overdue``: 1 for each job that is overdue or stuck. ``OverdueCollector(provider)``

    The rules are the same as for ``shedlock overdue``. Each scrape reads the records of the store, and the last runs of
    all names: 2 requests for 200 names. Use it in one scraped process for all replicas.

    :param provider: as for :class:`PausedCollector`, opened with ``history``.
    :param registry: as for :class:`PrometheusListener`.
    :param prefix: as for :class:`PausedCollector`.
    :param label: as for :class:`PausedCollector`. Only jobs that are overdue or stuck have a series.
    :param grace: how late a job may start or end.
    :raises ConfigurationError: the provider is async or has no run history, or the registry has this metric already.
    """

    _metric = "shedlock_overdue", "1: the job is overdue or stuck (see state); absent: the job is fine."
    _labels = ("lock", "state")

    def __init__(
        self,
        provider: LockProvider | str,
        registry: CollectorRegistry | None = None,
        *,
        prefix: str = "",
        label: Label | None = None,
        grace: Duration = DEFAULT_GRACE,
    ) -> None:
        self._grace = parse_duration(grace, "grace", zero=True)
        provider = required_provider(provider)
        if not can(provider, "runs"):
            raise ConfigurationError(f"OverdueCollector needs run history, and {provider!r} has no runs()")
        super().__init__(provider, registry, prefix=prefix, label=label)

    def _read(self, records: Sequence[LockRecord]) -> Iterator[tuple[str, ...]]:
        runs = recent_runs(self._provider, [record.name for record in records])
        for record in records:
            state = punctuality(record, runs.get(record.name, ()), grace=self._grace).state
            if state in TROUBLES:
                yield record.name, state
