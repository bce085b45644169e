"""Operators act on records that they read some time ago, while holders come and go.

A living holder keeps its lease, unless the operator has read the record of this lease.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from typing import Any

from shedlock_py import LockRecord, LockRequest, ProviderError
from tests.faults.checker import Finding, Report
from tests.faults.registry import by_trial, scenario
from tests.support.stores import Store

NAMES = 4
ACTIONS_PER_TRIAL = 250


@scenario(21, "operators act on old records", least=4)
@by_trial
def old_records(store: Store, seed: int, number: int) -> Report:
    return one_trial(store, seed, ACTIONS_PER_TRIAL)


def one_trial(store: Store, seed: int, actions: int) -> Report:
    report, targets, is_over = Report(trials=1), set[str](), threading.Event()
    with store.provider() as holders, store.provider() as operators:
        threads = [
            threading.Thread(
                target=_hold, args=(holders, f"old-{n}", random.Random(seed + n), targets, is_over, report)
            )
            for n in range(NAMES)
        ]
        for thread in threads:
            thread.start()
        try:
            _operate(operators, random.Random(seed), targets, report, actions)
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
    return report


def _hold(
    provider: Any, name: str, randomness: random.Random, targets: set[str], is_over: threading.Event, report: Report
) -> None:
    while not is_over.is_set():
        lease = None
        with suppress(ProviderError):  # a busy machine
            lease = provider.acquire(LockRequest(name, "5m"))
        if lease is None:
            time.sleep(0.005)
            continue
        for _ in range(randomness.randint(1, 4)):
            time.sleep(randomness.uniform(0.0, 0.01))
            try:
                is_kept = provider.extend(lease, "5m") is lease
            except ProviderError:
                break
            if is_kept:
                report.counts["holder kept"] += 1
                continue
            report.counts["holder freed"] += 1
            if lease.locked_by not in targets:
                text = f"{lease.locked_by} lost its lease, and no operator had read its record"
                report.findings.append(Finding("operator", name, text, time.monotonic()))
            break
        with suppress(ProviderError):
            provider.release(lease)


def _operate(provider: Any, randomness: random.Random, targets: set[str], report: Report, actions: int) -> None:
    read: list[LockRecord] = []
    carried_out = 0
    while carried_out < actions:
        name = f"old-{randomness.randrange(NAMES)}"
        with suppress(ProviderError):
            record = provider.record(name)
            if record is not None:
                read.append(record)
        if len(read) <= randomness.randrange(8):  # some actions use a fresh record, others an old one
            continue
        expected = read.pop(randomness.randrange(len(read)))
        targets.add(expected.locked_by)
        action = randomness.choice(ACTIONS)
        carried_out += 1
        try:
            is_done = action(provider, expected)
        except ProviderError:
            is_done = False
        report.counts["operator acted" if is_done else "operator refused"] += 1


def _force_release(provider: Any, expected: LockRecord) -> bool:
    return bool(provider.force_release(expected.name, expected=expected))


def _take_over(provider: Any, expected: LockRecord) -> bool:
    return bool(provider.release(provider.take_over(LockRequest(expected.name, "1m"), expected=expected)))


def _pause(provider: Any, expected: LockRecord) -> bool:
    record = provider.pause(expected.name, "1m", expected=expected)
    return bool(record.is_paused) and bool(provider.resume(expected.name, expected=record))


def _resume(provider: Any, expected: LockRecord) -> bool:
    return bool(provider.resume(expected.name, expected=expected))


ACTIONS = (_force_release, _take_over, _pause, _resume)
