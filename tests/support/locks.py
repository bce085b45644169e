"""Short forms for tests: a lease, a record, the outcomes of runs, the results of a check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from shedlock_py import Lease, LockProvider, LockRecord, LockRequest, provider_from_url
from shedlock_py.provider import Check


def acquired(provider: LockProvider, name: str, at_most: str = "1m", **options: Any) -> Lease:
    lease = provider.acquire(LockRequest(name, at_most, **options))
    assert lease is not None, f"{name!r} should be free, but {provider.record(name)} has it"
    return lease


def record_of(provider: LockProvider, name: str) -> LockRecord:
    """Return the record of a lock; fail if the record does not exist."""
    record = provider.record(name)
    assert record is not None, f"{name!r} should have a record"
    return record


def token_of(lease: Lease) -> int:
    assert type(lease.fencing_token) is int
    return lease.fencing_token


def outcomes(provider: Any, name: str) -> list[str | None]:
    """Return the outcomes of the runs of a lock, newest first."""
    return [run.outcome for run in provider.runs(name)]


def checks_of(provider: Any) -> dict[str, Check]:
    return {check.check: check for check in provider.checks()}


def statuses(checks: Mapping[str, Check]) -> dict[str, str]:
    return {name: check.status for name, check in checks.items()}


@contextmanager
def opened(url: str) -> Iterator[LockProvider]:
    """Open a provider and close it at the end: from Python 3.13 on, sqlite3 warns of unclosed connections."""
    provider: Any = provider_from_url(url)
    with closing(provider):
        yield provider
