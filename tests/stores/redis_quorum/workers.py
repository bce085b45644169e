"""Workers that acquire, count and release in a loop, while a test interferes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Self

from shedlock_py import Lease, LockProvider, LockRequest, ProviderUnreachable
from tests.stores.redis_quorum.quorums import NAME
from tests.support.locks import token_of
from tests.support.polling import wait_until


class Workers:
    """One thread for each provider, all on one lock name. Only the lock protects their counter."""

    def __init__(self, providers: Sequence[LockProvider], at_most: str) -> None:
        self.counter = 0
        self.grants = 0
        self.overlaps = 0
        self.tokens: list[int] = []
        self.unreachable: list[str] = []
        self.surprises: list[BaseException] = []
        self._inside = 0
        self._at_most = at_most
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(provider,)) for provider in providers]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(30)

    def wait_for_progress(self, grants: int = 8) -> None:
        target = self.grants + grants
        wait_until(
            lambda: self.grants >= target or self.surprises, timeout=30, what=f"{target} grants, of {self.grants}"
        )

    def check(self) -> None:
        assert not self.surprises
        assert self.overlaps == 0
        assert self.counter == self.grants
        assert all(first < second for first, second in pairwise(self.tokens))

    def _work(self, provider: LockProvider) -> None:
        while not self._done.is_set():
            try:
                lease = provider.acquire(LockRequest(NAME, self._at_most))
                if lease is not None:
                    self._count(lease)
                    provider.release(lease)
            except ProviderUnreachable as error:  # for example a server that dies between two rounds
                self.unreachable.append(str(error))
            except BaseException as error:
                self.surprises.append(error)
                return
            self._done.wait(0.002)

    def _count(self, lease: Lease) -> None:
        if not lease.is_trusted():  # this machine was busy
            return
        self._inside += 1
        before = self.counter
        self._done.wait(0.001)
        self.overlaps += self._inside != 1
        if lease.is_trusted():
            self.tokens.append(token_of(lease))
            self.counter = before + 1
            self.grants += 1
        self._inside -= 1
