"""The replicas as processes: start them, read their messages, kill one, and always stop them."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from examples.demo.observation import Observation

PROJECT = Path(__file__).resolve().parents[2]
STOP_SECONDS = 10


class Fleet:
    """``count`` replicas on one store. A context manager that stops them at its end."""

    def __init__(self, store: str, *, with_locks: bool, logs: Path, count: int = 3) -> None:
        self.names = [f"replica-{number}" for number in range(1, count + 1)]
        self.alive = set(self.names)
        self._options = ["--store", store] + ([] if with_locks else ["--no-lock"])
        self._logs = logs
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._readers: list[threading.Thread] = []
        self._heard: queue.SimpleQueue[Observation] = queue.SimpleQueue()

    def __enter__(self) -> Fleet:
        try:
            for name in self.names:
                self._start(name)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop()

    def heard(self, timeout: float = 0.0) -> Iterator[Observation]:
        """Yield new messages in the order of arrival. Wait up to ``timeout`` seconds for the first."""
        try:
            yield self._heard.get(timeout=timeout) if timeout else self._heard.get_nowait()
            while True:
                yield self._heard.get_nowait()
        except queue.Empty:
            pass
        for name in sorted(self.alive):
            if self._processes[name].poll() is not None:
                self.alive.discard(name)
                last_words = self._log(name).read_text().strip().splitlines()[-1:] or ["it said nothing"]
                yield Observation("died", name, self._processes[name].pid, time.monotonic(), detail=last_words[0])

    def kill(self, name: str) -> Observation:
        """Send SIGKILL, so without any clean-up. Return when the process is gone."""
        process = self._processes[name]
        process.kill()
        process.wait()
        self.alive.discard(name)
        return Observation("killed", name, process.pid, time.monotonic())

    def _start(self, name: str) -> None:
        with self._log(name).open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "examples.demo.replica", "--name", name, *self._options],
                cwd=PROJECT,
                stdin=subprocess.PIPE,  # the replica ends when this pipe ends, even if we are killed
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,  # Ctrl-C is for us; we stop the replicas in order
            )
        self._processes[name] = process
        reader = threading.Thread(target=self._listen, args=(process,), daemon=True)
        reader.start()
        self._readers.append(reader)

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._heard.put(Observation.from_json(line))

    def _stop(self) -> None:
        self.alive.clear()
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes.values():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for reader in self._readers:
            reader.join(STOP_SECONDS)
