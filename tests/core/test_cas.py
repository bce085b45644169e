"""I1, I2, I4, I7 of compare-and-swap stores in virtual time: the real programs, two front ends, a network that fails.

The clocks of the front ends differ by the allowed error, and the holders' clocks run at different speeds. Requests are
late, lost, or executed twice, the second time at any later moment; replies are late or lost. An operator frees locks,
takes them over, and prunes. Mutants of the programs and of the store show that the check can fail.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest

from shedlock_py import Lease, LockRequest, ProviderError
from shedlock_py.providers import cas
from shedlock_py.providers.kit import Failure, Undo, carry_out, locking
from shedlock_py.runtime.program import drive
from tests.support import tiers

NAME = "job"
START = datetime(2030, 1, 1, tzinfo=UTC)
ERROR = 0.7
"""Seconds between the clocks of the two front ends."""
SEEDS = range(400 if tiers.runs("all") else 80)
SECONDS = 60.0
"""The length of each run."""
Life = Generator[Any, Any, None]


class Lost(Exception):
    """A client's error if no reply comes."""


class Programs(cas.CasPrograms):
    def classify(self, error: Exception) -> Failure:
        return Failure.CONNECTION_LOST if isinstance(error, Lost) else Failure.NOT_A_STORE_ERROR


class Broken(Exception):
    """A promise is broken."""


class World:
    """The store and all events, in seconds of true time."""

    def __init__(self, seed: int, clock_error: float = ERROR, checks_versions: bool = True) -> None:
        self.random = random.Random(seed)
        self.clock_error, self.checks_versions = clock_error, checks_versions
        self.now = 0.0
        self.slowness = self.random.choice((1.0, 0.02))
        """How slow the network is, and how slowly nodes wait for the lock."""
        self.offset = self.random.random()
        """The fraction of a second when the run begins."""
        self.entries: dict[str, cas.Entry] = {}
        self.versions = count(1)
        self.newest_token = 0
        self.kept_until = 0.0
        """The end of the minimum hold."""
        self.leases: list[tuple[Lease, Holder]] = []
        self.revoked: set[str] = set()
        """Claims with leases that were ended by hand."""
        self.replaced: dict[str, str] = {}
        """From a claim to the claim in the record that it replaced."""
        self.grants = self.skips = self.refused = self.pruned = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), action))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            moment, _, action = heapq.heappop(self._events)
            self.now = moment
            self.check_trust()
            action()
            self.check_trust()
        self.now = until

    @property
    def is_busy(self) -> bool:
        return bool(self._events)

    def check_trust(self) -> None:
        trusted = [lease for lease, _ in self.leases if lease.is_trusted() and lease.locked_by not in self.revoked]
        if len(trusted) > 1:
            raise Broken(f"I1: {trusted} at {self.now:.3f}")
        self.leases = [pair for pair in self.leases if pair[0].is_trusted()] or self.leases[-1:]

    # The store

    def date(self, front: int) -> datetime:
        seconds = self.now + self.offset + front * ERROR
        return START + timedelta(seconds=int(seconds))

    def execute(self, command: cas.CasCommand, by: str) -> Any:
        match command:
            case cas.Read(name):
                return self.entries.get(name)
            case cas.List():
                return list(self.entries.values())
            case cas.Delete(name, version):
                if (entry := self.entries.get(name)) is None or entry.version != version:
                    return False
                del self.entries[name]
                self.pruned += 1
                return True
            case cas.Write(record, version, is_free):
                before = self.entries.get(record.name)
                if self.checks_versions and (before and before.version) != version:
                    self.refused += 1
                    return None
                self._observe(before, command, by)
                entry = self.entries[record.name] = cas.Entry(record, f"v{next(self.versions)}", is_free)
                return entry.version

    def _observe(self, before: cas.Entry | None, write: cas.Write, by: str) -> None:
        record = write.record
        if before is not None and by in ("take over", "free"):
            self.revoked.add(before.record.locked_by)
        if by in ("free", "undo"):
            self.kept_until = 0.0
        if before is not None and before.record.locked_by == record.locked_by:
            return
        if before is None and write.is_free:
            return  # created so that the granting write has a version to compare
        if by == "undo" and before and self.replaced.get(before.record.locked_by) == record.locked_by:
            return  # the record that its own grant replaced comes back
        if by not in ("acquire", "take over"):
            raise Broken(f"I2: {by} of {record.locked_by} changed the record of {before and before.record.locked_by}")
        assert record.fencing_token is not None
        if record.fencing_token <= self.newest_token:
            raise Broken(f"I7: token {record.fencing_token} after {self.newest_token}")
        if by == "acquire" and self.now < self.kept_until:
            raise Broken(f"I4: granted {self.kept_until - self.now:.3f} s before the minimum hold is over")
        self.newest_token = record.fencing_token
        self.replaced[record.locked_by] = before.record.locked_by if before else ""
        self.grants += 1
        self.kept_until = self.now + AT_LEAST


AT_LEAST, LONGEST = 0.8, 3.0


class Holder:
    """A node, or the operator: its clock, its programs, and its actions."""

    def __init__(self, world: World, name: str, life: Callable[[Holder], Life]) -> None:
        self.world, self.name, self.random = world, name, world.random
        self._speed = 1 + self.random.uniform(-4e-4, 4e-4)
        self._zero = self.random.uniform(0, 1e6)
        self.programs = Programs(clock=self.clock, clock_error=world.clock_error, timeout="5s")
        self.trouble = self.random.choice((0.0, 0.1, 0.4))
        self.go_on(life(self))

    def clock(self) -> float:
        return self._zero + self.world.now * self._speed

    def go_on(self, life: Life, value: Any = None, error: BaseException | None = None) -> None:
        """Run ``life``, which yields seconds to wait, or a program and its name. Send the program's result back."""
        try:
            wanted = life.send(value) if error is None else life.throw(error)
        except StopIteration:
            return
        if isinstance(wanted, float):
            self.world.after(wanted, lambda: self.go_on(life))
        else:
            program, by = wanted
            self.step(program, by, lambda result, error: self.go_on(life, result, error))

    def step(self, program: Any, by: str, done: Any, value: Any = None, error: BaseException | None = None) -> None:
        try:
            command = program.throw(error) if error is not None else program.send(value)
        except StopIteration as stop:
            done(stop.value, None)
        except ProviderError as failure:
            done(None, failure)
        else:
            if isinstance(command, Undo):
                self.step(command.program, "undo", lambda *_: None)
                self.step(program, by, done)
            else:
                self.send(command, by, lambda value, error: self.step(program, by, done, value, error))

    def send(self, command: cas.CasCommand, by: str, done: Callable[[Any, BaseException | None], None]) -> None:
        world, front, sent_at = self.world, self.random.randrange(2), self.clock()
        is_answered = False

        def answer(value: Any, date: datetime) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                done(cas.CasReply(value, cas.ServerTime(date, sent_at, self.clock())), None)

        def give_up() -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                done(None, Lost("no reply"))

        def arrive(*, is_answered: bool) -> None:
            value = world.execute(command, by)
            date = world.date(front)
            if is_answered:
                world.after(self.delay(), lambda: answer(value, date))

        request_lost, reply_lost, copied = (self.random.random() < self.trouble / 3 for _ in range(3))
        if not request_lost:
            world.after(self.delay(), lambda: arrive(is_answered=not reply_lost))
        if copied:
            world.after(self.random.choice((0.1, 1.0, 8.0)) * self.random.random(), lambda: arrive(is_answered=False))
        world.after(1.5, give_up)

    def delay(self) -> float:
        return self.world.slowness * self.random.choice((0.001, 0.001, 0.2, 0.9)) * self.random.random()


def worker(me: Holder) -> Life:
    for _ in range(12):
        yield me.random.uniform(0.0, 1.5) * me.world.slowness
        at_most = me.random.choice((1.0, 1.5, LONGEST))
        request = LockRequest(NAME, at_most, min(AT_LEAST, at_most), holder=me.name)
        try:
            lease = yield locking.acquire(me.programs, request), "acquire"
        except ProviderError:
            continue
        if lease is None:
            me.world.skips += 1
            continue
        me.world.leases.append((lease, me))
        try:
            while me.random.random() < 0.6:
                yield me.random.uniform(0.0, 0.8)
                yield locking.extend(me.programs, lease, me.random.choice((1.0, 1.5, LONGEST))), "extend"
            yield me.random.uniform(0.0, 0.5)
            if me.random.random() < 0.7:
                yield locking.release(me.programs, lease), "release"
        except ProviderError:
            continue


def operator(me: Holder) -> Life:
    """Neither a take-over nor a force release keeps the minimum hold of the previous holder."""
    for _ in range(30):
        yield me.random.uniform(0.0, 2.0) * (me.world.slowness + 0.1)
        try:
            match me.random.randrange(8):
                case 0:
                    request = LockRequest(NAME, 1.5, AT_LEAST, holder=me.name)
                    me.world.leases.append(((yield locking.take_over(me.programs, request), "take over"), me))
                case 1:
                    yield carry_out(me.programs, "free", NAME, me.programs.force_release(NAME)), "free"
                case _:
                    yield carry_out(me.programs, "prune", None, me.programs.prune(timedelta(0))), "prune"
        except ProviderError:
            continue


def run(seed: int, **options: Any) -> World:
    world = World(seed, **options)
    for number in range(3):
        Holder(world, f"node-{number}", worker)
    Holder(world, "operator", operator)
    while world.is_busy:
        world.run(world.now + SECONDS)
    world.run(world.now + LONGEST + 2.0 + ERROR)  # all leases have ended
    last = Holder(world, "last", acquires_at_once)
    last.trouble = 0.0
    world.run(world.now + 10.0)
    if not (lease := world.leases[-1][0]).is_trusted() or lease.holder != "last":
        raise Broken("I3: the lock is held by nobody")
    return world


def acquires_at_once(me: Holder) -> Life:
    yield 0.1
    lease = yield locking.acquire(me.programs, LockRequest(NAME, "1m", holder=me.name)), "acquire"
    if lease is not None:
        me.world.leases.append((lease, me))


def test_no_promise_is_broken() -> None:
    worlds = [run(seed) for seed in SEEDS]
    assert sum(world.grants for world in worlds) > 8 * len(SEEDS)
    assert sum(world.skips for world in worlds) > len(SEEDS)
    assert sum(world.refused for world in worlds) > len(SEEDS)
    assert sum(world.pruned for world in worlds) > len(SEEDS) // 4


def test_i7_a_first_acquire_whose_write_is_late_brings_no_old_token_back() -> None:
    """Another node had the lock meanwhile, and its record was pruned."""
    world = World(0)

    def idle(me: Holder) -> Life:
        yield 1e9

    slow, other = (Holder(world, name, idle).programs for name in ("slow", "other"))

    def reply_to(command: cas.CasCommand, by: str, to: Programs = other) -> cas.CasReply:
        return cas.CasReply(world.execute(command, by), cas.ServerTime(world.date(0), to.clock(), to.clock()))

    late = locking.acquire(slow, LockRequest(NAME, "1m"))
    late_write = late.send(reply_to(next(late), "acquire", slow))
    world.now = 1.5
    lease = drive(locking.acquire(other, LockRequest(NAME, 1.0)), partial(reply_to, by="acquire"))
    assert lease is not None
    assert drive(locking.release(other, lease), partial(reply_to, by="release"))
    world.now = 9.0
    assert drive(other.prune(timedelta(0)), partial(reply_to, by="prune")) == 1
    command = late_write
    try:
        while True:
            command = late.send(reply_to(command, "acquire", slow))  # raises Broken for a token that is too small
    except StopIteration as stop:
        granted = stop.value
    assert granted is None or granted.fencing_token > lease.fencing_token


@pytest.mark.parametrize("is_margin_kept", [True, False], ids=["as it is", "mutant: prunes at once"])
def test_i7_prune_leaves_what_a_clock_that_is_behind_could_repeat(
    is_margin_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_margin_kept:
        monkeypatch.setattr(Programs, "prune", _without_margin)
    world = World(0)
    world.offset = 0.5

    def idle(me: Holder) -> Life:
        yield 1e9

    programs = Holder(world, "node", idle).programs

    def outcome(program: Any, by: str, front: int) -> Any:
        def reply_to(command: cas.CasCommand) -> cas.CasReply:
            date, now = world.date(front), programs.clock()
            return cas.CasReply(world.execute(command, by), cas.ServerTime(date, now, now))

        return drive(program, reply_to)

    request = LockRequest(NAME, "1m")
    first = outcome(locking.acquire(programs, request), "acquire", 1)  # a second ahead of the other front end
    assert outcome(locking.release(programs, first), "release", 1)
    world.kept_until = 0.0  # it asked for none
    outcome(programs.prune(timedelta(0)), "prune", 1)
    if is_margin_kept:
        assert outcome(locking.acquire(programs, request), "acquire", 0).fencing_token > first.fencing_token
    else:
        with pytest.raises(Broken, match="I7"):
            outcome(locking.acquire(programs, request), "acquire", 0)


def broken_by(**options: Any) -> Iterator[str]:
    for seed in range(400):
        try:
            run(seed, **options)
        except Broken as broken:
            yield str(broken)


def _without_margin(self: cas.CasPrograms, unused_for: timedelta) -> Any:
    entries, time = yield cas.List("")
    for entry in entries:
        if entry.is_free or entry.record.lock_until <= time.date:
            yield cas.Delete(entry.record.name, entry.version)
    return 0


def _end_of_earliest(self: cas.CasPrograms, lock_for: timedelta, time: cas.ServerTime) -> datetime:
    return time.earliest(self.clock()) + lock_for + self.clock_error


@pytest.mark.parametrize(
    ("what", "promise"),
    [
        ("no clock error", "I4"),
        ("versions are not compared", "I2"),
        pytest.param("writes the earliest", "I1", marks=pytest.mark.slow("the first that breaks is one of a hundred")),
    ],
)
def test_each_part_is_needed(what: str, promise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {}
    match what:
        case "no clock error":
            options["clock_error"] = 0.0
        case "versions are not compared":
            options["checks_versions"] = False
        case "writes the earliest":
            monkeypatch.setattr(cas.CasPrograms, "_end_of", _end_of_earliest)
    assert any(broken.startswith(promise) for broken in broken_by(**options))
