"""``shedlock doctor``: whether the store does what it must, tried on a lock of its own."""

from __future__ import annotations

import logging
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Literal

import click
from rich.text import Text

from shedlock_py.cli.common import (
    NO,
    console,
    is_in_memory,
    json_option,
    open_store,
    print_json,
    printable,
    store_option,
)
from shedlock_py.cli.tables import future_fire_time, in_words
from shedlock_py.errors import ProviderError
from shedlock_py.lease import Lease
from shedlock_py.provider import LockProvider
from shedlock_py.request import LockRequest

REACH = "reach the store"
NAME = "shedlock-doctor"
"""One name for all doctors: they leave one record behind, not one each."""
AT_MOST = timedelta(seconds=10)
PAIRS, MOST_SECONDS = 10, 3.0
SLOW_SECONDS = 0.5
SKEWED_SECONDS = 2.0

NOT_SHARED = (
    "each process has locks of its own, so each replica runs every job: take a store that all processes reach, such as "
    "postgresql://, redis:// or, for one machine, sqlite:///"
)

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Check:
    check: str
    status: Status
    message: str
    hint: str | None = None
    seconds: float | None = None
    """What was measured, where something was."""


@click.command(short_help="Check the store, and try a lock in it.")
@store_option
@json_option
def doctor(store: str | None, as_json: bool) -> None:
    """Check the store: whether it answers, its schema and clock, and all that is done to a lock.

    Tries it on the lock "shedlock-doctor", whose record stays, and changes no other.

    Exit code 1: a check failed. A warning, marked with "!", does not change the exit code.
    """
    checks: list[Check] = []
    with ExitStack() as stack:
        try:
            provider = stack.enter_context(open_store(store))
        except ProviderError as error:  # there is no such file
            shown, to_come = printable(store or ""), iter([_failed(REACH, error)])
        else:
            shown, to_come = printable(repr(provider)), _checks(provider)
        if not as_json:
            click.echo(shown)
        for check in to_come:
            checks.append(check)
            if not as_json:
                _print(check)  # at once: the next may take its time
    is_well = all(check.status != "failed" for check in checks)
    if as_json:
        print_json({"store": shown, "ok": is_well, "checks": [asdict(check) for check in checks]})
    sys.exit(0 if is_well else NO)


_SIGNS = {"ok": ("✓", "green"), "warning": ("!", "bold magenta"), "failed": ("✗", "bold red")}
_IN_ASCII = {"✓": "ok", "!": "!", "✗": "FAILED"}


def _print(check: Check) -> None:
    out = console()
    sign, style = _SIGNS[check.status]
    if not out.encoding.startswith("utf"):
        sign = _IN_ASCII[sign]
    out.print(Text.assemble((sign, style), f" {check.check}: {printable(check.message)}"), soft_wrap=True)
    if check.hint:
        out.print(Text(f"  {printable(check.hint)}"), soft_wrap=True)


def _failed(check: str, error: ProviderError) -> Check:
    """Providers put the remedy, if they know one, behind a dash."""
    message, _, remedy = " ".join(str(error).split()).partition(" — ")
    if "create_schema()" in remedy:
        remedy = f"shedlock schema --create, or: {remedy}"
    if not remedy and check == REACH:
        remedy = "is the server running, and does the URL have the right host, port and database?"
        if isinstance(getattr(error.__cause__, "orig", error.__cause__), sqlite3.Error):
            remedy = "is there room on its disk, and may this user write to the file and to its directory?"
    return Check(check, "failed", message, remedy or None)


def _expect(check: str, is_so: bool, good: str, bad: str) -> Check:
    return Check(check, "ok" if is_so else "failed", good if is_so else bad)


def _checks(provider: LockProvider) -> Iterator[Check]:
    """One after the other, each with what those before it have made; ends where the next would make no sense."""
    check = REACH
    warned: list[str] = []
    try:
        with _warnings(warned):
            provider.record(NAME)
        yield Check(check, "ok", "it answers")
        if is_in_memory(provider):
            yield Check("shared", "warning", "locks in memory guard nothing between processes", NOT_SHARED)
        check = "acquire"
        with _warnings(warned):
            lease = provider.acquire(_request())
        yield _schema(provider, warned)
        if lease is None:
            yield _is_held(provider)
            return
        try:
            for check in _PROBES:
                yield _PROBES[check](provider, lease)
        finally:
            with suppress(ProviderError):
                provider.release(lease)  # does nothing if that was done
        check = "round trip"
        yield _round_trip(provider)
        check = "fire times"
        yield from _fire_times(provider)
    except ProviderError as error:
        if check not in _PROBES or check == "acquire":
            has_remedy = " — " in str(error)  # as what is wrong in the schema has
            if has_remedy and check == REACH:
                yield Check(check, "ok", "it answers")
            check = "schema" if has_remedy else check
        yield _failed(check, error)


def _request() -> LockRequest:
    return LockRequest(NAME, AT_MOST)


@contextmanager
def _warnings(messages: list[str]) -> Iterator[None]:
    """Collect what the provider would log meanwhile."""
    logger = logging.getLogger("shedlock_py")

    def collect(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            messages.append(record.getMessage())
        return record.levelno < logging.WARNING

    logger.addFilter(collect)
    try:
        yield
    finally:
        logger.removeFilter(collect)


def _schema(provider: LockProvider, warned: list[str]) -> Check:
    if warned:
        message, _, remedy = " ".join(warned).partition(" — ")
        return Check("schema", "warning", message, remedy or None)
    has_table = hasattr(provider, "create_table_sql")
    return Check("schema", "ok", "the lock table has all that is needed" if has_table else "none is needed")


def _is_held(provider: LockProvider) -> Check:
    record = provider.record(NAME)
    if record is None or not record.is_held:
        # The other has just finished; or servers of a Redis quorum that were started lately grant nothing yet.
        return Check("acquire", "warning", f"lock {NAME!r} was refused, but nobody holds it now", "try again")
    message = f"lock {NAME!r} is held by {record.holder}: another doctor is at work"
    return Check("acquire", "warning", message, f"try again in {in_words(record.remaining)}")


# What is done to a lock, while its lease is held


def _acquired(provider: LockProvider, lease: Lease) -> Check:
    record = provider.record(NAME)
    is_ours = record is not None and record.is_held and record.locked_by == lease.locked_by
    return _expect("acquire", is_ours, "granted, and the record says so", "granted, but not in the record")


def _refused(provider: LockProvider, lease: Lease) -> Check:
    second = provider.acquire(_request())
    return _expect("refuse", second is None, "a second holder is refused", "granted to two holders at once")


def _extended(provider: LockProvider, lease: Lease) -> Check:
    before = provider.record(NAME)
    extended = provider.extend(lease, AT_MOST + timedelta(seconds=5))
    after = provider.record(NAME)
    is_longer = before is not None and after is not None and after.lock_until > before.lock_until
    return _expect("extend", extended is not None and is_longer, "the lease lasts longer", "the lease was lost")


def _clock(provider: LockProvider, lease: Lease) -> Check:
    """The store's clock against this machine's, read before and after the question."""
    error, offset = min(_offsets(provider))
    how_much = f"{offset:+.3f} s from this machine's, give or take {error:.3f} s"
    if abs(offset) - error <= SKEWED_SECONDS:
        return Check("clock", "ok", f"the store's is {how_much}", seconds=offset)
    hint = "no matter for locking, which goes by the store's clock alone; but fire times and --once-per go by this one"
    return Check("clock", "warning", f"the store's is {how_much}", hint, offset)


def _offsets(provider: LockProvider) -> Iterator[tuple[float, float]]:
    """Half the time that each question took, and the difference to the middle of it."""
    for _ in range(5):
        started, asked_at = time.monotonic(), time.time()
        record = provider.record(NAME)
        half = (time.monotonic() - started) / 2
        if record is not None:
            yield half, record.read_at.timestamp() - (asked_at + half)


def _released(provider: LockProvider, lease: Lease) -> Check:
    is_done = provider.release(lease)
    record = provider.record(NAME)
    is_free = record is not None and not (record.is_held and record.locked_by == lease.locked_by)
    return _expect("release", is_done and is_free, "the lock is free again", "the lock is still held")


def _tokens(provider: LockProvider, lease: Lease) -> Check:
    second = provider.acquire(_request())
    if second is None:
        record = provider.record(NAME)
        if record is None or record.locked_by != lease.locked_by:
            return Check("fencing tokens", "warning", "another doctor is at work: not tried")
        return Check("fencing tokens", "failed", "a lock that was released is refused")
    provider.release(second)
    if lease.fencing_token is None or second.fencing_token is None:
        return Check("fencing tokens", "warning", "this table has no column for them (extra_columns=False)")
    grow = second.fencing_token > lease.fencing_token
    return _expect("fencing tokens", grow, "they grow", f"{second.fencing_token} came after {lease.fencing_token}")


_PROBES: dict[str, Callable[[LockProvider, Lease], Check]] = {
    "acquire": _acquired,
    "refuse": _refused,
    "extend": _extended,
    "clock": _clock,
    "release": _released,
    "fencing tokens": _tokens,
}


def _round_trip(provider: LockProvider) -> Check:
    """The median of several pairs: connections are warm by now."""
    took: list[float] = []
    ends = time.monotonic() + MOST_SECONDS
    while len(took) < PAIRS and (not took or time.monotonic() < ends):
        started = time.monotonic()
        lease = provider.acquire(_request())
        if lease is None:
            return Check("round trip", "warning", "another doctor is at work: not measured")
        provider.release(lease)
        took.append(time.monotonic() - started)
    median = statistics.median(took)
    message = f"{median * 1000:.1f} ms to acquire and release (median of {len(took)}, worst {max(took) * 1000:.1f} ms)"
    if median <= SLOW_SECONDS:
        return Check("round trip", "ok", message, seconds=median)
    hint = "slow: keep lock_at_most_for well above this, and the store near"
    return Check("round trip", "warning", message, hint, median)


def _fire_times(provider: LockProvider) -> Iterator[Check]:
    """A warning for each lock whose runs are skipped because a replica with a wrong clock has had it."""
    for record in provider.records():
        found = future_fire_time(record)
        if found is not None:
            yield Check("fire times", "warning", *found)
