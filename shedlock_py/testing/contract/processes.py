"""Several processes, such as replicas, on one store."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, cast

import pytest

from shedlock_py import AsyncLockProvider, LockProvider, LockRequest
from shedlock_py.testing.blocking import BlockingLockProvider
from shedlock_py.testing.contract.base import (
    LONG,
    LONGEST_WAIT,
    ContractBase,
    acquired,
    eventually,
    granted_soon,
    record_of,
)

ProcessFactory = Callable[[], LockProvider | AsyncLockProvider]

PROCESSES = 8
ROUNDS = 6
START_UP = 60.0
"""Seconds that eight interpreters may take to start on a busy machine."""

_context: Any = multiprocessing.get_context(
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)
"""Start new processes instead of forks of this one: a fork copies locks that threads hold.

A fork server imports the store's client once, if ``multiprocessing.set_forkserver_preload`` names it.
"""


class ProcessContract(ContractBase):
    """The tests of a store that other processes can reach. Override ``process_factory``."""

    @pytest.fixture
    def process_factory(self) -> Any:
        """A callable that can be pickled. It makes a provider, sync or async, on the same store in another process.

        For example ``functools.partial(provider_from_url, "postgresql://…")``.
        """
        raise NotImplementedError("override the fixture process_factory of the contract")

    def test_i3_a_killed_process_blocks_for_at_most(
        self, provider: LockProvider, process_factory: ProcessFactory, name: str
    ) -> None:
        receiving, sending = _context.Pipe()
        holder = _context.Process(target=hold_until_killed, args=(process_factory, name, sending))
        with running([holder]):
            assert receiving.poll(START_UP), "the holder did not start"
            assert receiving.recv() == "held"
            holder.kill()
            holder.join(LONGEST_WAIT)
            assert holder.exitcode, "the holder was not killed"
        record = record_of(provider, name)
        # The last extension was for 1 s, just after the grant.
        assert record.lock_until - record.locked_at <= timedelta(seconds=2) + self.kept_longer
        granted_soon(provider, LockRequest(name, LONG))

    def test_i1_fuzz_with_processes(
        self, provider: LockProvider, process_factory: ProcessFactory, name: str, tmp_path: Path
    ) -> None:
        """Only the lock protects a counter in a file; its last value must be exact."""
        counter = tmp_path / "counter"
        counter.write_text("0")
        parent = _context.Process(target=count_up_in_processes, args=(process_factory, name, counter))
        with running([parent]):
            parent.join(START_UP)
            assert parent.exitcode == 0
        assert counter.read_text() == str(PROCESSES * ROUNDS)
        assert not record_of(provider, name).is_held


@contextmanager
def running(processes: list[Any]) -> Iterator[None]:
    started: list[BaseProcess] = []
    try:
        for process in processes:
            process.start()
            started.append(process)
        yield
    finally:
        for process in started:
            process.kill()
            process.join(LONGEST_WAIT)


@contextmanager
def opened(factory: ProcessFactory) -> Iterator[LockProvider]:
    provider = factory()
    if inspect.iscoroutinefunction(provider.acquire):
        with BlockingLockProvider(lambda: cast(AsyncLockProvider, provider)) as facade:
            yield facade
    else:
        yield cast(LockProvider, provider)


def hold_until_killed(factory: ProcessFactory, name: str, pipe: Connection) -> None:
    with opened(factory) as provider:
        lease = acquired(provider, LockRequest(name, "30s"))
        assert provider.extend(lease, "1s") is lease
        pipe.send("held")
        pipe.recv()  # never comes


def count_up_in_processes(factory: ProcessFactory, name: str, counter: Path) -> None:
    """Import the modules in one process and fork it, where possible: eight imports take seconds."""
    context: Any = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    start = context.Barrier(PROCESSES)
    workers = [context.Process(target=count_up, args=(factory, name, counter, start)) for _ in range(PROCESSES)]
    with running(workers):
        for worker in workers:
            worker.join(START_UP)
        assert [worker.exitcode for worker in workers] == [0] * PROCESSES


def count_up(factory: ProcessFactory, name: str, counter: Path, start: Barrier) -> None:
    with opened(factory) as provider:
        provider.record(name)  # connect first
        start.wait(START_UP)
        for _ in range(ROUNDS):
            # the lock is not fair
            lease = eventually(lambda: provider.acquire(LockRequest(name, LONG)), "a grant", START_UP)
            value = int(counter.read_text())
            time.sleep(0.002)
            counter.write_text(str(value + 1))
            assert provider.release(lease) is True
