"""Checks of a store, tried on a lock of its own: for ``shedlock doctor`` and the page."""

from __future__ import annotations

import logging
import sqlite3
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable
from shedlock_py.events import logger
from shedlock_py.model.advice import advice
from shedlock_py.model.lease import Lease
from shedlock_py.model.overdue import DOCTOR, recent_runs
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import LockRequest
from shedlock_py.operators.display import counted, future_fire_time, in_words, one_line
from shedlock_py.provider import Check as Check
from shedlock_py.provider import LockProvider, can
from shedlock_py.runtime.process import monotonic

REACH, SETTINGS = "reach the store", "settings"
NAME = DOCTOR
"""All doctors share one lock name, and so leave one record behind."""
REQUEST = LockRequest(NAME, "10s")
PAIRS, MOST_SECONDS = 10, 3.0
SLOW_SECONDS = 0.5
ADVISED_AT_ONCE = 20
"""The most jobs for which one request reads the runs."""
ADVISED_RUNS = 100
"""The number of newest runs for the advice on ``lock_at_most_for``."""
SKEWED_SECONDS = 2.0
BUSY = "not tested: another `shedlock doctor` is running"

NOT_SHARED = (
    "each process has locks of its own, so each replica runs every job: use a store that all processes reach, such as "
    "postgresql://, redis:// or, for one machine, sqlite:///"
)


def failed(check: str, error: ProviderError) -> Check:
    hint = error.hint
    if hint is None and check == REACH and not isinstance(error, ProviderUnreachable):
        hint = "does the URL have the right user, password and database, and may this user read the lock records?"
    elif hint is None and check == REACH:
        hint = "is the server running, and does the URL have the right host, port and database?"
        if isinstance(getattr(error.__cause__, "orig", error.__cause__), sqlite3.Error):
            hint = "is there room on its disk, and may this user write to the file and to its directory?"
    return Check(check, "failed", one_line(error.message), hint)


def checks_of(provider: LockProvider) -> Iterator[Check]:
    """Yield one check after the other. End early if later checks make no sense."""
    check = REACH
    warnings: list[str] = []
    try:
        with collecting(warnings):
            provider.record(NAME)
        yield Check(check, "ok", "it replies")
        check = SETTINGS
        settings = _settings_checks(provider)
        yield from settings
        if any(found.status == "failed" for found in settings):
            return
        check = "conditions"
        if hasattr(provider, "check_conditions"):
            provider.check_conditions()
            yield Check(check, "ok", "a write whose condition does not hold is refused")
        check = "acquire"
        with collecting(warnings):
            lease = provider.acquire(REQUEST)
        yield Check("schema", "warning" if warnings else "ok", " ".join(warnings) or "complete")
        if lease is None:
            yield _is_held(provider)
            return
        try:
            probes = _probes(provider, lease)
            names = ("acquire", "refuse", "extend", "clock", "release", "fencing tokens")
            for check in names:  # noqa: B007  # the name is for failed(), below
                yield next(probes)
        finally:
            with suppress(ProviderError):
                provider.release(lease)  # does nothing if the lock was released
        yield from _history(provider)
        check = "round trip"
        yield _round_trip(provider)
        check = "fire times"
        records = provider.records()
        for fault, cure in filter(None, map(future_fire_time, records)):
            yield Check(check, "warning", fault, cure)
        check = "durations"
        yield from _advice(provider, records)
    except ProviderError as error:
        yield failed(check, error)
        if check == REACH and not isinstance(error, ProviderUnreachable):
            with suppress(ProviderError):  # the store replies, and may say why it refuses
                yield from (found for found in _settings_checks(provider) if found.status == "failed")


def read_only_checks(provider: LockProvider) -> Iterator[Check]:
    """Yield the checks that need no lock. They write nothing to the store."""
    started, sent_at = monotonic(), time.time()
    try:
        records = provider.records()
    except ProviderError as error:
        yield failed(REACH, error)
        return
    seconds = monotonic() - started
    number = counted(len(records), "lock record")
    yield Check(REACH, "ok", f"it replies: {number} in {seconds * 1000:.0f} ms", seconds=seconds)
    try:
        yield from _settings_checks(provider)
    except ProviderError as error:
        yield failed(SETTINGS, error)
    if records:
        offset = records[0].read_at.timestamp() - (sent_at + seconds / 2)
        yield _skew(offset, seconds / 2)
    for fault, cure in filter(None, map(future_fire_time, records)):
        yield Check("fire times", "warning", fault, cure)


def _settings_checks(provider: Any) -> list[Check]:
    """Return the checks of the provider's own ``checks()``, if it has this method."""
    return [*private_store(provider), *(provider.checks() if can(provider, "checks") else [])]


def private_store(provider: Any) -> list[Check]:
    """Return a warning if each process has locks of its own."""
    if getattr(provider, "is_shared", True):
        return []
    return [Check("shared", "warning", "locks in memory guard nothing between processes", NOT_SHARED)]


_collected: ContextVar[list[str] | None] = ContextVar("_collected", default=None)
"""An async provider logs in the thread of its event loop, which has the context variables of the caller."""


@contextmanager
def collecting(messages: list[str]) -> Iterator[None]:
    """Collect the warnings that the provider would log."""

    def collect(record: logging.LogRecord) -> bool:
        is_warning = record.levelno >= logging.WARNING and _collected.get() is messages
        if is_warning:
            messages.append(record.getMessage())
        return not is_warning

    token = _collected.set(messages)
    logger.addFilter(collect)
    try:
        yield
    finally:
        logger.removeFilter(collect)
        _collected.reset(token)


def _is_held(provider: LockProvider) -> Check:
    record = provider.record(NAME)
    if record is None or not record.is_held:
        # Another doctor has just finished, or servers of a Redis quorum have just started and grant nothing yet.
        return Check("acquire", "warning", f"lock {NAME!r} was refused, but nobody holds it now", "try again")
    message = f"lock {NAME!r} is held by {record.holder}: another `shedlock doctor` is running"
    return Check("acquire", "warning", message, f"try again in {in_words(record.remaining)}")


def _probes(provider: LockProvider, lease: Lease) -> Iterator[Check]:
    """Yield the checks while the lease is held."""

    def expect(check: str, is_so: bool, good: str, bad: str) -> Check:
        return Check(check, "ok" if is_so else "failed", good if is_so else bad)

    def is_ours(record: LockRecord | None) -> bool:
        return record is not None and record.is_held and record.locked_by == lease.locked_by

    is_recorded = is_ours(provider.record(NAME))
    yield expect("acquire", is_recorded, "granted, and the record shows it", "granted, but not in the record")
    second = provider.acquire(REQUEST)
    yield expect("refuse", second is None, "a second holder is refused", "granted to two holders at once")
    before = provider.record(NAME)
    extended = provider.extend(lease, REQUEST.lock_at_most_for + timedelta(seconds=5))
    after = provider.record(NAME)
    is_longer = before is not None and after is not None and after.lock_until > before.lock_until
    yield expect("extend", extended is not None and is_longer, "the lease lasts longer", "the lease was lost")
    yield _clock(provider)
    is_released = provider.release(lease)
    record = provider.record(NAME)
    is_free = is_released and record is not None and not is_ours(record)
    yield expect("release", is_free, "the lock is free again", "the lock is still held")
    yield _tokens(provider, lease)


def _clock(provider: LockProvider) -> Check:
    """Compare the store's clock with this machine's clock in the middle of the shortest of five requests."""
    offsets: list[tuple[float, float]] = []
    for _ in range(5):
        started, sent_at = monotonic(), time.time()
        record = provider.record(NAME)
        half = (monotonic() - started) / 2
        if record is not None:
            offsets.append((half, record.read_at.timestamp() - (sent_at + half)))
    error, offset = min(offsets)
    return _skew(offset, error)


def _skew(offset: float, error: float) -> Check:
    message = f"the store's clock is {offset:+.3f} s from this machine's clock, give or take {error:.3f} s"
    if abs(offset) - error <= SKEWED_SECONDS:
        return Check("clock", "ok", message, seconds=offset)
    hint = "locking is not affected: it uses the store's clock. Fire times and --once-per use this machine's clock"
    return Check("clock", "warning", message, hint, offset)


def _tokens(provider: LockProvider, lease: Lease) -> Check:
    second = provider.acquire(REQUEST)
    if second is None:
        record = provider.record(NAME)
        if record is None or record.locked_by != lease.locked_by:
            return Check("fencing tokens", "warning", BUSY)
        return Check("fencing tokens", "failed", "a lock that was released is refused")
    provider.release(second)
    if lease.fencing_token is None or second.fencing_token is None:
        return Check("fencing tokens", "warning", "this table has no column for them (extra_columns=False)")
    if second.fencing_token <= lease.fencing_token:
        return Check("fencing tokens", "failed", f"{second.fencing_token} came after {lease.fencing_token}")
    return Check("fencing tokens", "ok", "they grow")


def _history(provider: Any) -> Iterator[Check]:
    """Try a run, if the provider has run history."""
    check = "history"
    try:
        provider.runs(NAME)
        lease = provider.acquire(REQUEST)
        if lease is None:
            yield Check(check, "warning", BUSY)
            return
        provider.release(lease)
        runs = provider.runs(NAME)
    except (AttributeError, ConfigurationError):  # runs() is missing, or the provider is opened without history
        return
    except ProviderError as error:
        yield failed(check, error)
        return
    if any(run.locked_by == lease.locked_by and run.outcome == "ok" for run in runs):
        yield Check(check, "ok", "the last runs are kept")
    else:
        hint = "locks are not affected; another check, or the log, has the reason"
        yield Check(check, "failed", "the test run is missing from the history", hint)


def _advice(provider: Any, records: Sequence[LockRecord]) -> Iterator[Check]:
    """Advise on ``lock_at_most_for``, if the provider has run history. Leave out jobs when the time is over."""
    newest = sorted(records, key=lambda record: record.locked_at, reverse=True)
    names = [record.name for record in newest if record.name != NAME]
    ends = monotonic() + MOST_SECONDS
    for start in range(0, len(names), ADVISED_AT_ONCE):
        if monotonic() > ends:
            yield Check("durations", "ok", "there was no time for more jobs")
            return
        try:
            found = recent_runs(provider, names[start : start + ADVISED_AT_ONCE], ADVISED_RUNS)
        except ProviderUnreachable:
            raise
        except (AttributeError, ConfigurationError, ProviderError):  # another check says why there is no history
            return
        for name, runs in found.items():
            if (text := advice(runs)) is not None:
                has_lost = any(run.outcome == "lost" for run in runs)
                yield Check("durations", "warning" if has_lost else "ok", f"{name!r}: {text}")


def _round_trip(provider: LockProvider) -> Check:
    """Measure the median of several pairs, now that connections are warm."""
    took: list[float] = []
    ends = monotonic() + MOST_SECONDS
    while len(took) < PAIRS and (not took or monotonic() < ends):
        started = monotonic()
        lease = provider.acquire(REQUEST)
        if lease is None:
            return Check("round trip", "warning", BUSY)
        provider.release(lease)
        took.append(monotonic() - started)
    median = statistics.median(took)
    message = f"{median * 1000:.1f} ms to acquire and release (median of {len(took)}, worst {max(took) * 1000:.1f} ms)"
    if median <= SLOW_SECONDS:
        return Check("round trip", "ok", message, seconds=median)
    hint = "slow: keep lock_at_most_for well above this, and the store near"
    return Check("round trip", "warning", message, hint, median)
