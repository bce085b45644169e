"""Many client processes at once: all compete for a held lock, or each uses its own lock.

A process that has imported everything forks them once. They get their commands over a pipe.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from statistics import median
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Literal, Self

from benchmarks.contenders import Contender, Session, find
from benchmarks.plan import Plan
from benchmarks.servers import RunningStore, Site
from benchmarks.statistics import ratio
from benchmarks.subject import Subject

Mode = Literal["skip", "cycle"]
_TIMEOUT = 60.0


def _held(contender: Contender) -> str:
    return f"shared-{contender.slug}"


class Workers:
    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["benchmarks.contenders", *_DRIVERS])
        self._pipes: list[Connection] = []
        self._processes = []
        self._number = 0
        for number in range(size):
            parent_end, child_end = context.Pipe()
            process = context.Process(target=_serve, args=(child_end, number), daemon=True)
            process.start()
            child_end.close()
            self._pipes.append(parent_end)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_TIMEOUT)

    def open(self, contender: Contender, site: Site, clients: int) -> None:
        self._all(clients, ("open", contender.group, contender.name, site))

    def run(self, contender: Contender, mode: Mode, clients: int, seconds: float) -> float:
        """Return the clients' total operations per second."""
        begin = monotonic() + 0.02 + clients * 0.0005  # all clients have read this by then
        counts = self._all(clients, ("run", contender.group, contender.name, mode, begin, begin + seconds))
        return float(sum(counts)) / seconds

    def close(self, contender: Contender, clients: int) -> None:
        self._all(clients, ("close", contender.group, contender.name))

    def _all(self, clients: int, message: tuple[Any, ...]) -> list[Any]:
        self._number += 1
        for pipe in self._pipes[:clients]:
            pipe.send((self._number, message))
        replies = [self._reply(pipe) for pipe in self._pipes[:clients]]
        for reply in replies:
            if isinstance(reply, str):
                raise RuntimeError(reply)
        return replies

    def _reply(self, pipe: Connection) -> Any:
        while pipe.poll(_TIMEOUT):
            number, reply = pipe.recv()
            if number == self._number:  # ignore a late reply to an earlier message
                return reply
        raise TimeoutError(f"a client did not reply within {_TIMEOUT:g} s")


_DRIVERS = ["redis", "psycopg", "pymysql", "pymongo", "sqlite3", "sqlalchemy", "shedlock_py.providers.sqlalchemy"]


def _serve(pipe: Connection, number: int) -> None:
    logging.getLogger().addHandler(logging.NullHandler())  # keeps peers' skips off the terminal
    sessions: dict[tuple[str, str], Session] = {}
    while True:
        try:
            number_of_message, message = pipe.recv()
        except EOFError:
            return
        try:
            reply: object = _obey(sessions, number, *message)
        except Exception as error:
            reply = f"{type(error).__name__}: {error}"
        pipe.send((number_of_message, reply))


def _obey(sessions: dict[tuple[str, str], Session], number: int, what: str, group: str, name: str, *rest: Any) -> int:
    key = (group, name)
    if what == "open":
        session = find(group, name).open(*rest)
        if not isinstance(session, Session):
            raise TypeError(f"{name} is async")
        sessions[key] = session
        session.cycle(_own_name(find(group, name), number))
        return 0
    if what == "close":
        if key in sessions:
            sessions.pop(key).close()
        return 0
    return _work(sessions[key], find(group, name), number, *rest)


def _own_name(contender: Contender, number: int) -> str:
    return f"own-{contender.slug}-{number}"


def _work(session: Session, contender: Contender, number: int, mode: Mode, begin: float, end: float) -> int:
    done = 0
    name = _held(contender) if mode == "skip" else _own_name(contender, number)
    sleep(max(0.0, begin - monotonic()))
    while not done or monotonic() < end:  # at least once, however late this process is
        if mode != "skip":
            session.cycle(name)
        elif not session.refused(name):
            raise RuntimeError(f"{name} was granted although another client holds it")
        done += 1
    return done


@dataclass
class Rates:
    """One contender's rate in each round."""

    contender: Contender
    per_second: list[float | None] = field(default_factory=list)


def contention(
    workers: Workers, store: RunningStore, contenders: Sequence[Contender], plan: Plan, rng: random.Random
) -> list[Rates]:
    """Let all clients try to acquire one held lock."""
    with asyncio.Runner() as runner:
        holders: list[Subject] = []
        rates: list[Rates] = []
        for contender in contenders:
            try:
                holder = Subject(contender, store.site, runner)
                holder.keep(_held(contender))
                holders.append(holder)
                workers.open(contender, store.site, plan.contending)
                rates.append(Rates(contender))
            except Exception as error:
                plan.drop(contender, "skips per second", error)
        _rounds(workers, rates, "skip", plan.contending, plan, rng)
        for rate in rates:
            plan.opened(rate.contender, "closing", lambda rate=rate: workers.close(rate.contender, plan.contending))  # type: ignore[misc]
        for holder in holders:
            plan.opened(holder.contender, "closing", holder.close)
        return rates


def growth(
    workers: Workers, store: RunningStore, contenders: Sequence[Contender], clients: int, plan: Plan, rng: random.Random
) -> list[Rates]:
    """Let each client acquire and release its own lock."""
    rates: list[Rates] = []
    for contender in contenders:
        try:
            workers.open(contender, store.site, clients)
            rates.append(Rates(contender))
        except Exception as error:
            plan.drop(contender, f"{clients} clients", error)
    _rounds(workers, rates, "cycle", clients, plan, rng)
    for rate in rates:
        plan.opened(rate.contender, "closing", lambda rate=rate: workers.close(rate.contender, clients))  # type: ignore[misc]
    return rates


def _rounds(workers: Workers, rates: list[Rates], mode: Mode, clients: int, plan: Plan, rng: random.Random) -> None:
    for _ in range(plan.worker_rounds):
        for rate in rng.sample(rates, len(rates)):
            try:
                rate.per_second.append(workers.run(rate.contender, mode, clients, plan.worker_seconds))
            except Exception as error:
                plan.drop(rate.contender, f"{mode}s of {clients} clients", error)
                rates.remove(rate)


def figures(rates: Sequence[Rates]) -> dict[str, dict[str, Any]]:
    floors = {rate.contender.name: rate.per_second for rate in rates if rate.contender.kind == "floor"}
    found: dict[str, dict[str, Any]] = {}
    for rate in rates:
        seen = [value for value in rate.per_second if value is not None]
        if not seen:
            continue
        entry: dict[str, Any] = {
            "kind": rate.contender.kind,
            "lacks": rate.contender.lacks,
            "has_lease": rate.contender.has_lease,
            "per_second": median(seen),
        }
        if (compared := ratio(rate.per_second, floors.get(rate.contender.floor, [None] * len(seen)))) is not None:
            entry["share"] = asdict(compared)
        found[rate.contender.name] = entry
    return found
