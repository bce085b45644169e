"""Without a new thread, a quorum reports that no server replied."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from shedlock_py import LockRequest, ProviderUnreachable
from shedlock_py.runtime.threads import WorkerPool
from tests.stores.redis_quorum.quorums import Quorum, acquired


def refuse(*_: object) -> Future[Any]:
    raise RuntimeError("can't start new thread")


def test_i5_without_threads_an_acquire_is_an_error(quorum: Quorum) -> None:
    provider = quorum.provider()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkerPool, "submit", refuse)
        with pytest.raises(ProviderUnreachable, match="no thread can be started"):
            provider.acquire(LockRequest("job", "1m"))
    assert provider.release(acquired(provider, "job"))
