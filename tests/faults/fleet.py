"""Workers on one store, and the faults that happen to them."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from tests.faults.history import DISTURBED, EVERY_WORKER, History, Logbook, Reader, monotonic
from tests.faults.worker import Behaviour, Config
from tests.support.connections import unserved
from tests.support.database import Address
from tests.support.polling import wait_until
from tests.support.processes import is_running
from tests.support.stores import Store

TIMEOUT = 30.0
"""Seconds, on a busy machine."""
KEEP = "SHEDLOCK_FAULTS_KEEP"
"""Environment variable with the directory for the histories of fleets."""


class LineProcess(subprocess.Popen[str]):
    """A Python module as a process that replies to lines. ``environment`` is added to this process's environment."""

    def __init__(
        self, module: str, *arguments: str, environment: Mapping[str, str] | None = None, **pipes: Any
    ) -> None:
        super().__init__(
            [sys.executable, "-m", module, *arguments],
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **pipes},
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
        )

    def write(self, line: str) -> None:
        assert self.stdin is not None
        self.stdin.write(f"{line}\n")
        self.stdin.flush()

    def read(self) -> str:
        assert self.stdout is not None
        return self.stdout.readline().strip()

    def close(self) -> None:
        self.kill()
        self.wait(TIMEOUT)
        for file in (self.stdin, self.stdout):
            if file is not None:
                file.close()


class ForkServer:
    """A process that forks workers, which die with it. ``environment`` may hold ``LD_PRELOAD``, for example."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        # Opened to append: our reading must not move the position of the workers' writes. Open as long as the fork
        # server.
        self._stderr = tempfile.TemporaryFile("a+b")  # noqa: SIM115  # closed in close()
        self._read = 0
        self._process = LineProcess("tests.faults.worker", environment=environment, stderr=self._stderr)
        self._answer()

    def fork(self, config: Config) -> int:
        self._process.write(config.to_json())
        return int(self._answer())

    def _answer(self) -> str:
        line = self._process.read()
        if not line:
            raise RuntimeError(f"the fork server of workers has ended:\n{self.complaints()}")
        return line

    def complaints(self) -> str:
        self._stderr.seek(self._read)
        complaints = self._stderr.read()
        self._read += len(complaints)
        return complaints.decode(errors="replace")

    def close(self) -> None:
        self._process.close()
        self._stderr.close()


@cache
def shared_fork_server() -> ForkServer:
    """Return the fork server that all fleets of this process share: it takes a second to start."""
    fork_server = ForkServer()
    atexit.register(fork_server.close)
    return fork_server


@dataclass
class WorkerProcess:
    name: str
    pid: int

    @property
    def is_alive(self) -> bool:
        return is_running(self.pid)


EVERYBODY = WorkerProcess(EVERY_WORKER, 0)


class Fleet:
    """``size`` workers on a store, with private lock names. Read the history while they run, or after ``end()``.

    :param names: how many lock names they share.
    :param fork_server: forks the workers; by default all fleets of this process share a fork server.
    :param provider, arguments: a variant of the provider for all workers; by default the store's own.
    """

    def __init__(
        self,
        store: Store,
        *,
        size: int = 3,
        names: int = 1,
        behaviour: Behaviour | None = None,
        seed: int = 0,
        fork_server: ForkServer | None = None,
        provider: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.store = store
        self.names = [f"job-{uuid4().hex[:8]}" for _ in range(names)]
        self.random = random.Random(seed)
        self.behaviour = behaviour or Behaviour()
        self._provider, self._arguments = provider, dict(arguments or {})
        self._fork_server = fork_server or shared_fork_server()
        self._fork_servers = {self._fork_server}
        self._temporary = tempfile.TemporaryDirectory(prefix="shedlock-fleet-")
        self._directory = Path(self._temporary.name)
        self._logbook = Logbook(self._directory / "history", "fleet")
        self.reader = Reader(self._directory / "history")
        self.workers: list[WorkerProcess] = []
        """Workers that were not killed and have not ended."""
        self._numbers = count(1)
        self._size = size

    def __enter__(self) -> Self:
        try:
            for _ in range(self._size):
                self.add()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def add(
        self,
        *,
        via: Sequence[Address] = (),
        behaviour: Behaviour | None = None,
        fork_server: ForkServer | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> WorkerProcess:
        """Start another worker, with its own proxies ``via``, if any: one per address of ``store.addresses``."""
        name = f"w{next(self._numbers)}"
        chosen = fork_server or self._fork_server
        self._fork_servers.add(chosen)
        config = Config(
            worker=name,
            history=str(self._directory / "history"),
            fenced_log=str(self._directory / "fenced"),
            names=self.names,
            seed=self.random.getrandbits(32),
            is_async=self.store.is_async,
            provider=self._provider or self.store.provider_reference,
            arguments={**self.store.arguments(via), **self._arguments, **(arguments or {})},
            behaviour=behaviour or self.behaviour,
        )
        worker = WorkerProcess(name, chosen.fork(config))
        self.workers.append(worker)
        return worker

    # Faults of workers

    def kill(self, worker: WorkerProcess) -> None:
        with self.marked("killed", worker):
            os.kill(worker.pid, signal.SIGKILL)
            wait_until(lambda: not worker.is_alive, timeout=TIMEOUT, what=f"{worker.name} dead")
        self.workers.remove(worker)

    def stop_at_work(self) -> WorkerProcess:
        """Send SIGSTOP to a holder, which does nothing until :meth:`resume` and does not notice.

        Never in the middle of an operation: the worker might have locked SQLite's file, or the fenced log.
        """
        while True:
            victim = self.wait_for_holder()
            before = monotonic()
            os.kill(victim.pid, signal.SIGSTOP)
            wait_until(partial(is_stopped, victim.pid), timeout=TIMEOUT, what=f"{victim.name} stopped")
            if self.is_working(victim):
                self._logbook.mark("stopped", victim.name, before)
                return victim
            os.kill(victim.pid, signal.SIGCONT)
            time.sleep(0.005)

    def resume(self, worker: WorkerProcess) -> None:
        with self.marked("resumed", worker):
            os.kill(worker.pid, signal.SIGCONT)

    @contextmanager
    def marked(self, kind: str, worker: WorkerProcess) -> Iterator[None]:
        """Mark the block in the history as a fault of ``worker``."""
        before = monotonic()
        yield
        self._logbook.mark(kind, worker.name, before)

    @contextmanager
    def disturbed(self, worker: WorkerProcess, addresses: Iterable[Address]) -> Iterator[None]:
        """Mark the block as a disturbance of the connections of ``worker`` to ``addresses``; the block restores them.

        The disturbance lasts until every request that was sent meanwhile has arrived.
        """
        with self.marked(DISTURBED, worker):
            yield
            wait_until(lambda: unserved(addresses) == 0, timeout=TIMEOUT, what="all that was held back has arrived")

    # The history so far

    def is_working(self, worker: WorkerProcess) -> bool:
        """Return True if it holds a lease and is in the middle of no request and no write."""
        self.reader.update()
        return worker.name in self.reader.holding and not self.reader.is_busy(worker.name)

    def holders(self) -> list[WorkerProcess]:
        self.reader.update()
        return [worker for worker in self.workers if worker.name in self.reader.holding]

    def losses(self) -> int:
        """How often the store replied to a worker that its lease is lost."""
        return self.count("extend", "lost") + self.count("release", "lost")

    def count(self, kind: str, outcome: str, *, worker: WorkerProcess | None = None, but: str = "") -> int:
        """Count operations with this outcome: of ``worker``, or of all workers except ``but``."""
        self.reader.update()
        return sum(
            number
            for (name, of_kind, how), number in self.reader.counts.items()
            if (of_kind, how) == (kind, outcome) and name != but and (worker is None or name == worker.name)
        )

    def wait_for_holder(self, timeout: float = TIMEOUT) -> WorkerProcess:
        wait_until(self.holders, timeout=timeout, what="a worker that holds a lease")
        return self.random.choice(self.holders() or self.workers)

    def wait_for_grants(self, more: int, **whose: Any) -> None:
        self.wait_for_count("acquire", "granted", more, **whose)

    def wait_for_count(self, kind: str, outcome: str, more: int, **whose: Any) -> None:
        target = self.count(kind, outcome, **whose) + more
        self.wait(lambda: self.count(kind, outcome, **whose) >= target, f"{more} more of: {kind} {outcome}")

    def wait_for_answers(self) -> None:
        """Wait until every worker has received a reply from the store again."""

        def answers(worker: WorkerProcess) -> int:
            return sum(self.count("acquire", outcome, worker=worker) for outcome in ("granted", "skipped"))

        before = {worker.name: answers(worker) for worker in self.workers}
        self.wait(lambda: all(answers(w) > before[w.name] for w in self.workers), "an answer to every worker")

    def wait_until_working(self, worker: WorkerProcess, *, is_working: bool = True) -> None:
        """Wait until it holds a lease and waits for no reply; or, with ``is_working=False``, until this has changed."""
        self.wait(lambda: self.is_working(worker) == is_working, f"{worker.name} {'' if is_working else 'not '}at work")

    def wait_until_trusting(self, worker: WorkerProcess, seconds: float) -> None:
        """Wait until it is at work with a lease that it will trust for ``seconds`` more."""
        self.wait(
            lambda: self.is_working(worker) and self.reader.trusted_until.get(worker.name, 0.0) > monotonic() + seconds,
            f"{worker.name} at work with a lease that it trusts",
        )

    def wait(self, condition: Callable[[], object], what: str, timeout: float = TIMEOUT) -> None:
        """Wait until ``condition`` is true. Fail early if a worker has ended by itself."""

        def is_so() -> object:
            self._check_alive()
            return condition()

        wait_until(is_so, timeout=timeout, what=what)

    def wait_for_each_name(self) -> None:
        now = monotonic()
        for name in self.names:
            self.wait(lambda name=name: self.reader.update().last_grants.get(name, 0.0) > now, f"a grant of {name}")  # type: ignore[misc]  # bound

    def wait_for_later_write(self, worker: WorkerProcess) -> None:
        """Wait until a lease granted after the lease of ``worker`` has written; older leases may still write."""
        held = self.reader.update().holding[worker.name]
        token = held.token or 0
        self.wait(
            lambda: self.reader.update().last_writes.get(held.name, 0) > token, f"a write after that of {worker.name}"
        )

    def run_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= until, "the time", timeout=seconds + TIMEOUT)

    # The end

    def end(self) -> History:
        for worker in self.workers:
            for signum in (signal.SIGCONT, signal.SIGTERM):
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signum)
        self._wait_for_end(self.workers)
        self._check_complaints()
        self.workers.clear()
        return self.reader.update().history()

    def close(self) -> None:
        for worker in self.workers:
            if worker.is_alive:
                os.kill(worker.pid, signal.SIGKILL)
        self._logbook.close()
        self._wait_for_end(self.workers)
        if KEEP in os.environ and (self._directory / "history").exists():
            name = f"{self.store.name}-{'async' if self.store.is_async else 'sync'}-{self.names[0]}.jsonl"
            shutil.copy(self._directory / "history", Path(os.environ[KEEP]) / name)
        self._temporary.cleanup()

    @staticmethod
    def _wait_for_end(workers: Sequence[WorkerProcess]) -> None:
        wait_until(lambda: not any(worker.is_alive for worker in workers), timeout=TIMEOUT, what="all workers ended")

    def _check_alive(self) -> None:
        if not all(worker.is_alive for worker in self.workers):
            self._check_complaints()
            raise AssertionError("a worker has ended by itself")

    def _check_complaints(self) -> None:
        complaints = "".join(fork_server.complaints() for fork_server in self._fork_servers)
        if complaints:
            raise AssertionError(f"a worker failed:\n{complaints}")


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
