"""Many threads at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from shedlock_py import LockProvider, LockRequest
from shedlock_py.testing.contract.base import LONG, ContractBase, acquired, eventually, record_of

T = TypeVar("T")

THREADS = 8


def at_once(count: int, work: Callable[[int], T]) -> list[T]:
    """Call ``work(0)``, ``work(1)``, … in ``count`` threads, started together. Raise the first error of a thread."""
    start = threading.Barrier(count)

    def run(index: int) -> T:
        start.wait()
        return work(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


class ThreadsContract(ContractBase):
    def test_i1_counters_behind_locks_come_out_exact(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        """Eight threads count up two counters. Only the lock protects each counter."""
        repetitions = 6
        counters = {f"{name}/a": 0, f"{name}/b": 0}

        def work(index: int) -> None:
            replica = (provider, other)[index % 2]
            for number in range(repetitions):
                lock = f"{name}/{'ab'[(number + index // 2) % 2]}"
                lease = eventually(lambda: replica.acquire(LockRequest(lock, LONG)), "a grant")
                value = counters[lock]
                time.sleep(0.001)
                counters[lock] = value + 1
                assert replica.release(lease) is True

        at_once(THREADS, work)
        assert sum(counters.values()) == THREADS * repetitions

    def test_i1_one_winner_at_the_first_use_of_a_name(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        for number in range(10):
            request = LockRequest(f"{name}/{number}", LONG)
            leases = at_once(THREADS, lambda index: (provider, other)[index % 2].acquire(request))
            winners = [lease for lease in leases if lease]
            assert len(winners) == 1, f"round {number}"
            assert record_of(provider, request.name).locked_by == f"{winners[0].holder}#{winners[0].claim_id}"

    def test_i1_one_winner_when_a_lock_gets_free(self, provider: LockProvider, other: LockProvider, name: str) -> None:
        for number in range(6):
            leases = at_once(THREADS, lambda index: (provider, other)[index % 2].acquire(LockRequest(name, LONG)))
            winners = [lease for lease in leases if lease]
            assert len(winners) == 1, f"round {number}"
            assert provider.release(winners[0]) is True

    def test_i7_take_overs_at_once_get_different_tokens(self, provider: LockProvider, name: str) -> None:
        leases = at_once(THREADS, lambda index: provider.take_over(LockRequest(name, LONG)))
        assert len({lease.fencing_token for lease in leases}) == THREADS
        last = max(leases, key=lambda lease: lease.fencing_token or 0)
        assert record_of(provider, name).locked_by == f"{last.holder}#{last.claim_id}"
        assert [provider.release(lease) for lease in leases] == [lease is last for lease in leases]

    def test_i1_a_herd_is_skipped_and_changes_nothing(self, provider: LockProvider, name: str) -> None:
        acquired(provider, LockRequest(name, LONG))
        before = provider.record(name)
        assert at_once(self.herd, lambda index: provider.acquire(LockRequest(name, LONG))) == [None] * self.herd
        assert provider.record(name) == before
