"""A signal handler raises at any moment of an acquire: the provider continues, with all its connections."""

from __future__ import annotations

import random
import signal
import sys
import time
from typing import Any
from uuid import uuid4

import pytest

from shedlock_py import LockRequest
from shedlock_py.providers.redis import RedisLockProvider
from tests.support import forked
from tests.support.redis import RedisEndpoint

INTERRUPTED = 300
"""Number of acquires. With a semaphore, one in sixty loses a connection."""


class _Alarm(BaseException):
    pass


@pytest.mark.slow("300 interrupted acquires, in another process")
def test_i12_an_interrupted_acquire_loses_no_connection(redis_server: RedisEndpoint) -> None:
    url = f"{redis_server.url()}?max_connections=1&timeout=20s"
    done = forked.run(["-m", "tests.stores.redis.test_signals", url], timeout=100)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 15, "an undo waited for the connection that the interrupted acquire had"


def main(url: str) -> None:
    """Interrupt acquires. The pool's only connection is free after each. Print the longest acquire, in seconds."""

    def ring(*_: Any) -> None:
        raise _Alarm

    provider, name = RedisLockProvider(url), f"job-{uuid4().hex[:8]}"
    provider.record(name)
    signal.signal(signal.SIGALRM, ring)
    interrupted, longest = 0, 0.0
    while interrupted < INTERRUPTED:
        began = time.monotonic()
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00005, 0.0005))
            provider.acquire(LockRequest(name, "1m"))
            signal.setitimer(signal.ITIMER_REAL, 0)
        except _Alarm:
            interrupted += 1
        longest = max(longest, time.monotonic() - began)
    provider.record(name)
    print(longest)


if __name__ == "__main__":
    main(sys.argv[1])
