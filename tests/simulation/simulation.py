"""A simulation: the world of a schedule, its faults, and the verdict."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

from shedlock_py import LockRequest, ProviderError
from shedlock_py.events import logger
from shedlock_py.runtime.program import drive
from tests.simulation.backends import open_backend, programs_of
from tests.simulation.electors import Contest, Elector
from tests.simulation.judge import Judge
from tests.simulation.log import EventLog, Recorder
from tests.simulation.network import LEVELS, Network, Server
from tests.simulation.once import OnceWorker, in_virtual_time
from tests.simulation.provider import SimulatedProvider
from tests.simulation.schedule import EVERY_NODE, HOLDER, KINDS, Fault, Mutant, OnProgress, Outcome, Schedule
from tests.simulation.settings import ELECTIONS, settings_of
from tests.simulation.workers import Resource, Worker
from tests.simulation.world import Cancelled, Process, Task, World

HOUR = 3600.0
TIMELINE = 400
"""Number of last timeline lines in an outcome, unless more are requested."""
STOP_SECONDS = 10.0
"""Seconds after which a process that should end is killed."""
_OPERATOR = 100
_INFINITY = float("inf")


def simulate(
    schedule: Schedule,
    *,
    mutant: Mutant | None = None,
    on_progress: OnProgress | None = None,
    timeline: int | None = TIMELINE,
    stops_early: bool = True,
) -> Outcome:
    """Run a schedule, and judge its history.

    :param mutant: the fault in the library during the simulation.
    :param timeline: number of last timeline lines to keep; None: all.
    :param stops_early: stop after the window in which a promise was broken.
    """
    was_disabled, logger.disabled = logger.disabled, True
    try:
        with nullcontext() if mutant is None else mutant.applied(), in_virtual_time():
            return Simulation(schedule, timeline).run(on_progress, stops_early=stops_early)
    finally:
        logger.disabled = was_disabled


class Node:
    """A machine that runs one process after another."""

    def __init__(self, process: Process, start: Callable[[Node], None]) -> None:
        self.process = process
        self._start = start
        self.mains: list[Task] = []
        self.workers: list[Worker] = []
        self.elector: Elector | None = None

    def start(self) -> None:
        self.mains, self.workers = [], []
        self._start(self)


class Simulation:
    """The world of one schedule."""

    def __init__(self, schedule: Schedule, timeline: int | None) -> None:
        self.schedule = schedule
        self.log = EventLog(timeline)
        self.world = World(schedule.seed, self.log)
        self.recorder = Recorder()
        self._backend = open_backend(schedule.store)
        self._server = Server(self.world, self._backend)
        recognises = self._backend.programs.recognises_retries
        self._network = Network(self.world, self._server, self.recorder, recognises_retries=recognises)
        self._resource = Resource()
        settings = settings_of(schedule.seed, schedule.kind, schedule.pace)
        self._is_election = schedule.kind in ELECTIONS
        self.jobs, self.settings = settings.jobs, settings.election
        self._calm = Calm(schedule.faults)
        self.contest = Contest(self.world, self._calm.since, KINDS[schedule.kind].may_break)
        if schedule.kind == "observed":
            self._network.between_jumps = self.settings["retry_period"]  # a documented limit: docs/leader-election.md
        self.contest.longest_gap = 5 * self.settings["lease_duration"] + 4 * self.settings["retry_period"] + 10.0
        self._nodes = [self._node(number) for number in range(schedule.nodes)]
        self._operator = Process(self.world, _OPERATOR, "operator")
        self._by_hand = self._provider(self._operator)
        self._observer = programs_of(self._backend, self._operator)
        drifts = any(each.kind == "drift" for each in schedule.faults)
        self._judge = Judge(
            self.recorder, schedule.kind, drifts=drifts, pace=schedule.pace, kept=self._backend.kept_longer
        )

    def _node(self, number: int) -> Node:
        process = Process(self.world, number, f"node-{number}")
        return Node(process, self._start_elector if self._is_election else self._start_workers)

    def _provider(self, process: Process) -> SimulatedProvider:
        programs = programs_of(self._backend, process)
        self._network.link(process)
        recorder = None if self._is_election else self.recorder
        return SimulatedProvider(process, programs, self._network, recorder, self._calm.is_calm)

    def _start_workers(self, node: Node) -> None:
        provider = self._provider(node.process)
        for job in self.jobs:
            for _ in range(job.workers):
                kind = OnceWorker if job.runs_once else Worker
                worker = kind(node.process, provider, self.recorder, self._resource, job, self._remaining)
                node.workers.append(worker)
                worker.task = node.process.spawn(worker.run())
                node.mains.append(worker.task)

    def _remaining(self, name: str) -> float:
        """For how long the store will keep a lock: no process can know this."""
        backend, now, clock = self._backend, self._server.now(), self._operator.clock()

        def execute(command: Any) -> Any:
            return backend.received(backend.execute(command, now), clock, clock)

        record = drive(self._observer.record(name), execute)
        return 0.0 if record is None else record.remaining.total_seconds()

    def _start_elector(self, node: Node) -> None:
        elector = Elector(node.process, self._provider(node.process), self.contest, self.settings, self._calm.is_calm)
        if node.elector is not None:
            self.contest.electors.remove(node.elector)
        node.elector = elector
        self.contest.electors.append(elector)
        node.mains.append(node.process.spawn(elector.run()))

    def run(self, on_progress: OnProgress | None, *, stops_early: bool) -> Outcome:
        end = self.schedule.hours * HOUR
        for fault in self.schedule.faults:
            if fault.kind == "drift" and fault.node < len(self._nodes):
                self._nodes[fault.node].process.set_rate(1.0 + fault.size)
                self.log.counts["drift"] += 1
            elif fault.at < end:
                self.world.at(fault.at, self._begin, fault)
        for node in self._nodes:
            self.world.at(0.0, node.start)
        outcome = Outcome(0.0)
        while outcome.hours < self.schedule.hours:
            outcome.hours = min(outcome.hours + self.schedule.pace, self.schedule.hours)
            self.world.run_until(outcome.hours * HOUR)
            is_last = outcome.hours >= self.schedule.hours
            found = self._judge.judge(_INFINITY if is_last else outcome.hours * HOUR)
            if on_progress is not None:
                on_progress(outcome.hours, self.world.events)
            violations = [*self.contest.violations, *found]
            if stops_early and any(not each.is_documented for each in violations):
                break
        outcome.events = self.world.events
        found = [*self.contest.violations, *self._judge.violations]
        outcome.violations = sorted(found, key=lambda each: (each.is_documented, each.at))
        outcome.counts = self.log.counts
        outcome.timeline = self.log.entries()
        return outcome

    # Faults

    def _begin(self, fault: Fault) -> None:
        if fault.node >= len(self._nodes):
            return
        if fault.node == HOLDER:
            fault = replace(fault, node=self._holder(fault))
        self.log.counts[fault.kind] += 1
        self.log.add(self.world.now, "world", "fault {}", fault)
        if fault.kind in LEVELS:
            self._add_level(fault, fault.size)
            self.world.at(fault.at + fault.length, self._add_level, fault, -fault.size)
            return
        match fault.kind:
            case "partition" | "hold":
                for link in self._network.links(fault.node):
                    link.cut_until = fault.at + fault.length
                    link.holds = fault.kind == "hold"
                    link.cuts = "both" if link.holds else ("both", "requests", "replies")[min(int(fault.size), 2)]
            case "outage":
                self._server.is_down_until = fault.at + fault.length
            case "stall":
                self._server.stalls_until = fault.at + fault.length
            case "jump" if int(fault.at * 1000) % 2:
                self._network.jumps.append(fault)
            case "jump":
                self._network.jump(fault.size)
            case "crash" | "pause" | "deploy" | "give up":
                self._hit(fault)
            case "resign" | "take over" | "demote" if self._is_election:
                self._act(fault)
            case _:
                self._operator.spawn(self._act_by_force(fault))

    def _holder(self, fault: Fault) -> int:
        """Return the node that leads or holds a lock, or else any node."""
        number = int(fault.at * 1000)
        if self._is_election:
            holder = self.contest.leader()
        else:
            holder = self._resource.holders.get(self.jobs[number % len(self.jobs)].name)
        return number % len(self._nodes) if holder is None else holder

    def _add_level(self, fault: Fault, size: float) -> None:
        name = "break_" if fault.kind == "break" else fault.kind
        for link in self._network.links(fault.node):
            setattr(link, name, getattr(link, name) + size)

    def _hit(self, fault: Fault) -> None:
        """Start a fault of processes."""
        for node in self._nodes if fault.node == EVERY_NODE else [self._nodes[fault.node]]:
            process = node.process
            if not process.is_alive:
                continue
            match fault.kind:
                case "crash" if int(fault.at * 1000) % 2:
                    process.doom = partial(self._crash, node, process.life, fault.length)
                case "crash":
                    self._crash(node, process.life, fault.length)
                case "pause":
                    process.pause(fault.length)
                case "give up":
                    for worker in node.workers:
                        worker.gives_up = True  # in the middle of its next acquire
                        if worker.task is not None and int(fault.at * 1000) % 2:
                            worker.task.interrupt(Cancelled())
                case "deploy":
                    self._stop(node)
                    self.world.at(fault.at + STOP_SECONDS, self._end, node, process.life, fault.length)

    def _crash(self, node: Node, life: int, length: float) -> None:
        if node.process.life == life:
            self._kill(node)
            self.world.at(self.world.now + length, self._revive, node, node.process.life)

    def _stop(self, node: Node) -> None:
        """Send SIGTERM: an elector leaves its election, and tasks are interrupted."""
        if node.elector is not None:
            node.elector.request("stop")
        for worker, task in zip(node.workers, node.mains, strict=False):
            worker.is_stopping = True
            task.interrupt(Cancelled())

    def _end(self, node: Node, life: int, pause: float) -> None:
        if node.process.life == life:
            self._kill(node)
            self.world.at(self.world.now + pause, self._revive, node, node.process.life)

    def _kill(self, node: Node) -> None:
        process, now = node.process, self.world.now
        self.log.add(now, process.name, "is gone")
        self.recorder.mark("killed", process.name, now, now)
        self.recorder.died(process.name, now)
        if node.elector is not None:
            node.elector.die()
        process.die()

    def _revive(self, node: Node, life: int) -> None:
        if node.process.life == life and not node.process.is_alive:
            node.process.revive()
            self.log.add(self.world.now, node.process.name, "starts")
            node.start()

    def _act(self, fault: Fault) -> None:
        """Act as an operator of an election, through a node."""
        node = self._nodes[max(fault.node, 0)]
        if node.elector is None or not node.process.is_alive:
            return
        if fault.kind == "demote":
            node.process.spawn(node.elector.demote(fault.size * 3 * self.settings["lease_duration"]))
        elif fault.kind == "resign" and int(fault.at * 1000) % 2:
            node.elector.fail()
        elif fault.kind == "resign":
            node.elector.request("resign")
        elif not node.elector.election.is_leader():
            node.elector.request("take_over")

    async def _act_by_force(self, fault: Fault) -> None:
        provider = self._by_hand
        try:
            if self._is_election:
                await provider.prune(0)
                return
            job = self.jobs[fault.node % len(self.jobs)]
            match fault.kind:
                case "force release":
                    await provider.force_release(job.name)
                case "delete":
                    await provider.force_release(job.name)
                    await provider.prune(0)
                case "prune":
                    await provider.prune(HOUR / 2 if job.fires_every else 0)
                case "take over":
                    lease = await provider.take_over(LockRequest(job.name, job.at_most, job.at_least, "operator"))
                    await self._operator.sleep(fault.length / 10)
                    await provider.release(lease)
        except ProviderError:
            pass  # the error is in the history


class Calm:
    """The times without faults, by the schedule."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        disturbances = [fault for fault in faults if fault.kind not in _HARMLESS]
        self._spans = {
            node: sorted(
                (fault.at, fault.at + fault.length + _WAITS.get(fault.kind, 0.0))
                for fault in disturbances
                if fault.node < 0 or node in (EVERY_NODE, fault.node)
            )
            for node in {EVERY_NODE, *(fault.node for fault in faults if fault.node >= 0)}
        }
        self._ends = {node: list(accumulate((end for _, end in spans), max)) for node, spans in self._spans.items()}

    def since(self, now: float) -> float:
        """The end of the last fault of any node; infinity during a fault."""
        end = self._last_end(EVERY_NODE, now)
        return end if end <= now else _INFINITY

    def is_calm(self, node: int, begin: float, end: float) -> bool:
        """Whether no fault meets that node between the two moments."""
        return self._last_end(node if node in self._spans else EVERY_NODE, end) < begin

    def _last_end(self, node: int, before: float) -> float:
        """The end of the last fault that had begun by then."""
        begun = bisect_right(self._spans[node], (before, _INFINITY))
        return self._ends[node][begun - 1] if begun else -_INFINITY


_WAITS = {"deploy": STOP_SECONDS, "crash": 30.0, "jump": 60.0}
"""Seconds until a fault that waits for an event has certainly begun."""
_HARMLESS = ("give up", "drift", "resign", "take over", "demote", "force release", "delete", "prune")
"""Faults that disturb no message and stop no process."""
