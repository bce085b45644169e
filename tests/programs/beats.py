"""Kill the leader of two Celery beats under `shedlock lead` again and again: is a tick doubled, or lost?

``python -m tests.programs.beats --kills 100`` runs it in full, with a private Redis as the broker.

A tick is a second: the schedule is due at each full second, and each message names its second. A new beat begins with
the next second. So a second has one message, or no message while nobody leads; two messages are a doubled tick.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

from shedlock_py import provider_from_url
from tests.support.polling import wait_until
from tests.support.processes import descendants, kill_tree
from tests.support.redis import RedisEndpoint, RedisServer
from tests.support.scripts import PROJECT

LEASE = 1.5
RETRY = 0.2
SLACK = 5.0
"""Seconds that a node's look at the lease may be late, on a busy machine."""
NODES = ("a", "b")
WAYS = ("kill the node", "kill the beat", "SIGTERM")

APP = """
import math, os, time
from celery import Celery, schedules
from celery.signals import before_task_publish

app = Celery("beats", broker=os.environ["BROKER"])
due = 0

class EachSecond(schedules.BaseSchedule):
    def is_due(self, last_run_at):
        global due
        now = time.time()
        if math.floor(now) <= last_run_at.timestamp():
            return schedules.schedstate(False, 1 - now % 1)
        due = math.floor(now)
        return schedules.schedstate(True, 1 - now % 1)

@before_task_publish.connect
def stamp(headers, **_):
    headers["tick"], headers["node"], headers["term"] = due, os.environ["NODE"], os.environ["SHEDLOCK_TERM"]

app.conf.update(beat_schedule={"tick": {"task": "tick", "schedule": EachSecond()}}, beat_max_loop_interval=0.2)
"""
COMMAND = ["celery", "--app", "beats_app", "beat", "--scheduler", "celery.beat:Scheduler", "--loglevel", "warning"]


@dataclass(frozen=True)
class Tick:
    second: int
    node: str
    term: int


@dataclass
class Result:
    kills: Counter[str] = field(default_factory=Counter)
    gaps: dict[str, list[float]] = field(default_factory=dict)
    """Seconds from a kill to the next leader's first tick."""
    leaderless: dict[str, list[float]] = field(default_factory=dict)
    """Seconds from a kill until the store granted the lease to the next leader."""
    ticks: list[Tick] = field(default_factory=list)

    def doubled(self) -> dict[int, list[Tick]]:
        seconds = Counter(tick.second for tick in self.ticks)
        return {
            second: [tick for tick in self.ticks if tick.second == second] for second in seconds if seconds[second] > 1
        }

    def missed_while_leading(self) -> list[int]:
        """Seconds without a tick between two ticks of one term."""
        by_term: dict[int, list[int]] = {}
        for tick in self.ticks:
            by_term.setdefault(tick.term, []).append(tick.second)
        return [second for found in by_term.values() for second in range(min(found), max(found)) if second not in found]

    def terms_in_order(self) -> bool:
        """Whether no tick of a former leader came after a tick of its successor."""
        terms = [tick.term for tick in self.ticks]
        return terms == sorted(terms)

    def __str__(self) -> str:
        seconds = self.ticks[-1].second - self.ticks[0].second + 1
        lines = [
            f"{self.kills.total()} kills in {seconds} s: {len(self.ticks)} ticks, {len(self.doubled())} doubled, "
            f"{len(self.missed_while_leading())} missed in a term; in the order of terms: {self.terms_in_order()}",
        ]
        for way in self.kills:
            until = {"another leads": self.leaderless[way], "its first tick": self.gaps[way]}
            words = [f"{median(found):.2f}, {max(found):.2f} until {what}" for what, found in until.items()]
            lines.append(f"{way}: {self.kills[way]} times; seconds, median and maximum: {'; '.join(words)}")
        return "\n".join(lines)


class Beats:
    """Two nodes. Like a supervisor, it restarts a node that ends."""

    def __init__(self, directory: Path, redis: RedisEndpoint, broker: int = 0) -> None:
        self.directory = directory
        self._redis, self._broker = redis, broker
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._begins: dict[str, int] = {}
        """Start of the log of each node's present process."""
        self._store = f"sqlite:///{directory}/locks.db"
        self.result = Result()

    def __enter__(self) -> Self:
        (self.directory / "beats_app.py").write_text(APP)
        provider_from_url(f"{self._store}?timeout=60s").create_schema()
        for node in NODES:
            self.start(node)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for process in self._processes.values():
            kill_tree(process.pid)
            process.wait()

    def start(self, node: str) -> None:
        programs = Path(sys.executable).parent
        lead = ["lead", "beat", "--lease-duration", f"{LEASE}s", "--retry-period", f"{RETRY}s", "--holder", node]
        with self._log(node).open("ab") as log:
            self._begins[node] = log.tell()
            self._processes[node] = subprocess.Popen(
                [sys.executable, "-m", "shedlock_py", *lead, "--", str(programs / COMMAND[0]), *COMMAND[1:]],
                cwd=self.directory,
                env={
                    **os.environ,
                    "PYTHONPATH": str(PROJECT),
                    "SHEDLOCK_STORE": self._store,
                    "BROKER": self._redis.url(self._broker),
                    "NODE": node,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _log(self, node: str) -> Path:
        return self.directory / f"{node}.log"

    def _is_waiting(self, node: str) -> bool:
        return b"waiting; " in self._log(node).read_bytes()[self._begins[node] :]

    def ticks(self) -> list[Tick]:
        """Return the ticks in the order of sending."""
        with self._redis.client(self._broker) as client:
            messages: Any = client.lrange("celery", 0, -1)
        headers = [json.loads(message)["headers"] for message in reversed(messages)]
        return [Tick(header["tick"], header["node"], int(header["term"])) for header in headers]

    def kill(self, way: str) -> None:
        """Kill the leader that way, wait until the other node sends ticks, and restart the leader."""
        wait_until(lambda: len(self.ticks()) > 0, timeout=30, what="the first tick")
        last = self.ticks()[-1]
        process = self._processes[last.node]
        other = next(node for node in NODES if node != last.node)
        wait_until(lambda: self._is_waiting(other), timeout=60, what=f"the start of node {other}")
        beat = next(pid for pid in descendants(process.pid) if "beats_app" in _command_line(pid))
        killed_at = time.time()
        match way:
            case "kill the node":
                process.kill()
            case "kill the beat":
                os.kill(beat, signal.SIGKILL)
            case "SIGTERM":
                process.terminate()
        process.wait(30)

        def is_followed() -> bool:
            newest = self.ticks()[-1]
            return newest.term > last.term

        wait_until(is_followed, timeout=60, what=f"a tick of the other node after: {way}")
        first = next(tick for tick in self.ticks() if tick.term > last.term)
        self.result.kills[way] += 1
        granted_at = first.term / 1e6  # a token is the store's time; a SQLite file uses this machine's clock
        self.result.leaderless.setdefault(way, []).append(granted_at - killed_at)
        self.result.gaps.setdefault(way, []).append(first.second - killed_at)
        self.start(last.node)

    def end(self) -> Result:
        self.result.ticks = self.ticks()
        return self.result


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    arguments = parser.parse_args()
    numbers = random.Random(arguments.seed)
    print(f"seed {arguments.seed}")
    with RedisServer() as redis, tempfile.TemporaryDirectory() as directory, Beats(Path(directory), redis) as beats:
        for number in range(arguments.kills):
            time.sleep(numbers.uniform(0, 2.5))  # at any moment of a second, and of a term
            beats.kill(numbers.choice(WAYS))
            if number % 10 == 9:
                print(f"{number + 1} kills, {len(beats.ticks())} ticks", flush=True)
        result = beats.end()
    print(result)
    for second, ticks in result.doubled().items():
        print(second, ticks)
    sys.exit(0 if not result.doubled() and result.terms_in_order() else 1)


if __name__ == "__main__":
    main()
