"""The lock records of several servers, merged into what a majority of them has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from shedlock_py.record import LockRecord


def is_decided(found: Sequence[LockRecord | None], size: int) -> bool:
    """Whether a majority of ``size`` servers agree on the holder of the lock."""
    agreed = Counter(record and (record.locked_by, record.is_held) for record in found)
    return max(agreed.values(), default=0) >= size // 2 + 1


def are_decided(found: Sequence[Sequence[LockRecord]], size: int) -> bool:
    """Whether :func:`is_decided` holds for each lock name."""
    return all(is_decided(records, size) for records in _by_name(found))


def merged_record(found: Sequence[LockRecord | None], size: int) -> LockRecord | None:
    """The record of ``size`` servers, of which those in ``found`` replied (None: no record there).

    It is held if a majority may hold it for the same claim, counting those that did not reply as if they did. Each
    server has its own clock, so the result has the times of one server: the last that a majority outlasts.
    """
    majority, unknown = size // 2 + 1, size - len(found)
    if found.count(None) > size - majority:
        return None
    by_claim: dict[str, list[LockRecord]] = {}
    for record in found:
        if record is not None:
            by_claim.setdefault(record.locked_by, []).append(record)
    if not by_claim:
        return None

    def holding(records: list[LockRecord]) -> list[LockRecord]:
        return [record for record in records if record.is_held]

    def is_held(records: list[LockRecord]) -> bool:
        return len(holding(records)) > 0 and len(holding(records)) + unknown >= majority

    def rank(records: list[LockRecord]) -> tuple[bool, bool, int]:
        return is_held(records), len(records) + unknown >= majority, _token(records)

    records = max(by_claim.values(), key=rank)
    shown = holding(records) if is_held(records) else [record for record in records if not record.is_held]
    if not shown:  # only a minority has it, so the lock is free
        shown = [replace(record, lock_until=min(record.lock_until, record.read_at)) for record in records]
    shown.sort(key=lambda record: record.lock_until, reverse=True)
    which = min(majority, len(shown)) - 1
    return replace(
        shown[which],
        locked_at=sorted((record.locked_at for record in shown), reverse=True)[which],  # extending does not change it
        fencing_token=_token(records),
        last_fire_time=max((record.last_fire_time for record in records if record.last_fire_time), default=None),
    )


def merged_records(found: Sequence[Sequence[LockRecord]], size: int) -> list[LockRecord]:
    """:func:`merged_record` for each lock name."""
    merged = (merged_record(records, size) for records in _by_name(found))
    return [record for record in merged if record is not None]


def _by_name(found: Sequence[Sequence[LockRecord]]) -> list[list[LockRecord | None]]:
    """For each lock name what each server has on it."""
    servers = [{record.name: record for record in records} for records in found]
    names = sorted({name for server in servers for name in server})
    return [[server.get(name) for server in servers] for name in names]


def _token(records: list[LockRecord]) -> int:
    return max(record.fencing_token or 0 for record in records)
