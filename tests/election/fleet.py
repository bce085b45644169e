"""Several nodes as processes, and a reader of their logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.forked import Program
from tests.support.polling import wait_until

LAST_BYTES = 16 * 1024
"""Enough for a few lines of 20 elections."""


@dataclass(frozen=True)
class Reign:
    """A node's certain leadership of an election: from its first to its last check that it leads."""

    node: str
    name: str
    term: int
    began: float
    ended: float


def reigns_in(lines: Sequence[str], node: str) -> list[Reign]:
    """Return the reigns in a node's log, separately for each term: a paused node may lead again after another node."""
    found: list[Reign] = []
    current: dict[str, Reign] = {}
    for line in lines:
        before, after, *words = line.split()
        # The term is None if the leadership ended between is_leader() and term.
        terms = {name: int(term) for name, _, term in (word.partition("=") for word in words) if term != "None"}
        for name in [name for name, reign in current.items() if terms.get(name) != reign.term]:
            found.append(current.pop(name))
        for name, term in terms.items():
            began = current[name].began if name in current else float(after)
            current[name] = Reign(node, name, term, began, float(before))
    return [*found, *current.values()]


def overlapping(reigns: Sequence[Reign]) -> list[tuple[Reign, Reign]]:
    """Return pairs of nodes that led an election at the same time; a single check does not count as time."""
    return [
        (one, other)
        for one, other in combinations(reigns, 2)
        if one.name == other.name and one.node != other.node
        if max(one.began, other.began) < min(one.ended, other.ended)
    ]


def last_lines(log: Path) -> list[str]:
    """Return the end of a log. The log grows for minutes and is read a hundred times a second; the first line may be
    cut."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
        return file.read().decode().splitlines()


class Node:
    def __init__(self, holder: str, log: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.holder = holder
        self.log = log
        self.process = Program(
            ["-m", "tests.election.node", str(log), holder, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            preload=["shedlock_py.election.elector", "shedlock_py.providers.redis"],
        )

    def command(self, words: str) -> None:
        """Send a command, and wait until it is done."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        self.expect(f"done {words}")

    def expect(self, words: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == words

    def stop(self) -> None:
        """Make the process stop its electors and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.expect("stopped")
        self.process.wait(30)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def leads(self) -> set[str]:
        """Return the elections that it leads, from the last complete line of its log."""
        lines = last_lines(self.log) if self.log.exists() else []
        words = lines[-2].split()[2:] if len(lines) > 1 else []
        return {word.partition("=")[0] for word in words}

    def reigns(self) -> list[Reign]:
        whole_lines = self.log.read_text().splitlines()[:-1]  # a killed process may have left half a line
        return reigns_in(whole_lines, self.holder)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Fleet:
    """``size`` nodes that are candidates in the elections ``names``.

    :param options: options of their electors, beside the durations of ``node.py``.
    :param environment: added to the environment of their processes.
    """

    def __init__(
        self,
        url: str,
        directory: Path,
        names: list[str],
        size: int = 5,
        *,
        options: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        is_async: bool = False,
    ) -> None:
        self.names = names
        kind = "asyncio" if is_async else "threads"
        self._arguments = [url, kind, json.dumps({**(options or {})}), *names]
        self._directory, self._environment = directory, environment or {}
        self.nodes: list[Node] = []
        self.all: list[Node] = []
        for _ in range(size):
            self.add()

    def __enter__(self) -> Self:
        for node in self.nodes:
            node.expect("ready")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for node in self.all:
            node.close()

    def add(self) -> Node:
        holder = f"node-{len(self.all) + 1}"
        node = Node(holder, self._directory / f"{holder}.log", self._arguments, self._environment)
        self.nodes.append(node)
        self.all.append(node)
        return node

    def leaders(self) -> dict[str, Node]:
        return {name: node for node in self.nodes for name in node.leads()}

    def wait_for_leaders(self, timeout: float = 30) -> None:
        """Wait for a leader of each election. Each leader counts once seen: a busy machine may never have all at
        once."""
        led: set[str] = set()

        def have_all() -> bool:
            led.update(self.leaders())
            return len(led) == len(self.names)

        wait_until(have_all, timeout=timeout, what="a leader of each election")

    def busiest(self) -> Node:
        """Return the node that leads most elections."""
        return max(self.nodes, key=lambda node: len(node.leads()))

    def remove(self, node: Node) -> None:
        self.nodes.remove(node)

    def reigns(self) -> list[Reign]:
        return sorted((reign for node in self.all for reign in node.reigns()), key=lambda reign: reign.began)

    def overlaps(self) -> list[tuple[Reign, Reign]]:
        """Return pairs of nodes that led an election at the same time."""
        return overlapping(self.reigns())

    def successions(self, since: float, former: Node) -> list[float]:
        """Return the seconds from ``since`` until another node led, for each election of ``former``."""
        led = {reign.name for reign in former.reigns() if reign.ended > since - 0.5}
        return [
            min(
                (r.began for r in self.reigns() if r.name == name and r.node != former.holder and r.began > since),
                default=float("inf"),
            )
            - since
            for name in led
        ]


def now() -> float:
    return time.monotonic()
