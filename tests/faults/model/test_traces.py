"""The model is of this code: random walks through it, done step by step by the real programs on a real SQLite.

Each operation of a program is a real statement. The walk says when it is carried out, whether its reply arrives, and
when it is sent again; the database has the time that the walk says. After each step both must agree.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import OperationalError

from shedlock_py import Lease, LockRequest, ProviderError
from shedlock_py.providers.kit import Undo
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.providers.sqlalchemy.programs import SqlCommand, SqlReply
from shedlock_py.testing import FakeClock
from tests.faults.model.checker import Model
from tests.faults.model.states import NOBODY, Operation, State, changed

FULL = bool(os.environ.get("FAULTS_FULL"))
WALKS = 5000 if FULL else 150
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


class Database:
    """A SQLite file whose clock is ``clock``: its statements call functions of the test in place of SQLite's own."""

    def __init__(self, path: Path, clock: FakeClock) -> None:
        self.clock = clock
        self.engine = create_engine(f"sqlite:///{path}")
        event.listen(self.engine, "connect", self._connected)
        self.provider = SqlAlchemyLockProvider(self.engine)
        self.provider.programs.clock = clock
        self.provider.programs.timeout = 1e9  # walks take their time
        self.provider.create_schema()

    def _connected(self, connection: Any, _record: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")  # for speed: no machine fails here
        connection.create_function(
            "strftime", 2, lambda form, moment: self._time(timedelta(0)) if moment == "now" else moment[:23]
        )
        connection.create_function("strftime", 3, lambda form, now, more: self._time(_parsed(more)))

    def _time(self, more: timedelta) -> str:
        return (self.now() + more).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.clock())

    def execute(self, command: SqlCommand) -> SqlReply:
        """At this moment of its clock, whenever the program made the command."""
        now = {"now_us": self.microseconds()} if "now_us" in command.values else {}
        reply: SqlReply = self.provider.run(alone(changed(command, values={**command.values, **now})))
        return reply

    def microseconds(self) -> int:
        self.ticks = getattr(self, "ticks", 0) + 1  # two statements never see the same microsecond
        return int(self.now().timestamp()) * 1_000_000 + self.ticks


def alone(command: SqlCommand) -> Generator[SqlCommand, SqlReply, SqlReply]:
    return (yield command)


NOTHING = SqlReply(rows=[(0, 0, None, None, None, None)])
"""What SQLite's read finds where there is no record."""


def _parsed(modifier: str) -> timedelta:
    seconds, _, unit = modifier.partition(" ")
    assert unit == "seconds"
    return timedelta(seconds=float(seconds))


def failure(*, is_gone: bool) -> OperationalError:
    """The connection broke, or there was no answer on it."""
    error = OperationalError("statement", {}, OSError("disk I/O error"))
    error.connection_invalidated = is_gone
    return error


class Actor:
    """A claimant: the real programs, and their commands."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.algorithm = database.provider.programs
        self.lease: Any = None
        self.programs: dict[int, Any] = {}
        self.kinds: dict[int, str] = {}
        self.repeated: set[int] = set()
        self.commands: dict[tuple[str, int], Any] = {}
        """The statements under way, by what the model calls them."""
        self.replies: dict[int, SqlReply] = {}

    def begin(self, operation: Operation, request: LockRequest) -> None:
        match operation.kind:
            case "acquire":
                program: Any = self.algorithm.acquire(request)
                next(program)  # the read, which is to find nothing: time may pass between it and the claim
                command = program.send(NOTHING)
            case "take over":
                program = self.algorithm.take_over(request)
                program.send(self.database.execute(next(program)))  # the record is read; then the second read
                command = program.send(NOTHING)
            case "extend":
                program = self.algorithm.extend(self.lease, operation.length)
                command = next(program)
            case _:
                program = self.algorithm.release(self.lease)
                command = next(program)
        self.programs[operation.number], self.kinds[operation.number] = program, operation.kind
        self.commands[operation.kind, operation.length] = command

    def receive(self, number: int) -> object:
        program, reply = self.programs.pop(number), self.replies.pop(number)
        if self.kinds[number] == "take over" and not reply.rows:
            program.send(reply)  # it reads again, which a walk does not
            program.close()
            return None
        with pytest.raises(StopIteration) as end:
            program.send(reply)
        result: object = end.value.value
        if self.kinds[number] in ("acquire", "take over") and isinstance(result, Lease):
            self.lease = result
        return result

    def send_again(self, number: int) -> None:
        self.repeated.add(number)
        self.replies.pop(number, None)
        self.programs[number].throw(failure(is_gone=True))  # it yields the same statement again

    def give_up(self, number: int) -> None:
        self.replies.pop(number, None)
        program = self.programs.pop(number)
        if self.kinds[number] in ("acquire", "take over"):
            undo = program.throw(failure(is_gone=False))
            assert isinstance(undo, Undo)
            self.commands["undo", 0] = next(undo.program)
            with pytest.raises(ProviderError):
                program.send(None)
            return
        with pytest.raises(ProviderError):
            program.throw(failure(is_gone=False))


class Walk:
    """One random way through the model, and the same in reality."""

    def __init__(self, model: Model, database: Database, name: str, dice: random.Random) -> None:
        self.model, self.database, self.name, self.dice = model, database, name, dice
        self.request = LockRequest(name, model.at_most, model.at_least, "me")
        self.actors = [Actor(database) for _ in range(model.claims)]
        self.log: list[str] = []

    def go(self, steps: int) -> None:
        state = self.model.start()
        for _ in range(steps):
            possible = list(self.model.steps(state))
            # Not too much idling, and not too many crashes.
            weights = [1 if " crashes" in label else 3 if "tick" in label else 6 for label, _, _ in possible]
            [(label, following, broken)] = self.dice.choices(possible, weights)
            self.log.append(label)
            assert not broken, self.way(broken)
            self.do(label, state, following)
            self.compare(following)
            state = following

    def do(self, label: str, before: State, after: State) -> None:
        words = label.split()
        if label == "a tick":
            self.database.clock.advance(1)
        elif label == "by hand: force release":
            self.database.provider.force_release(self.name)
        elif label == "by hand: delete":
            with self.database.engine.begin() as connection:
                connection.execute(text("DELETE FROM shedlock WHERE name = :name"), {"name": self.name})
        elif words[0] == "claim":
            self.claimant_does(int(words[1]), words[2:], before, after)
        else:
            self.store_does(int(words[-2].rstrip(":")), int(words[-1]), before, after)

    def claimant_does(self, me: int, words: list[str], before: State, after: State) -> None:
        actor = self.actors[me]
        match words:
            case ["sends"] | ["extends", *_] | ["releases"]:
                actor.begin(after.claims[me].operations[-1], self.request)
            case ["sends", "again", number]:
                actor.send_again(int(number))
            case ["gives", "up", number]:
                actor.give_up(int(number))
            case ["receives", number, reply]:
                operation = int(number.rstrip(":"))
                # A release that was sent again finds nothing to do if the first of the two did it: it counts as done.
                is_repeated = actor.kinds[operation] == "release" and operation in actor.repeated
                result = actor.receive(operation)
                assert is_repeated or bool(result) is bool(int(reply)), self.way(f"received {result}")

    def store_does(self, me: int, reply: int, before: State, after: State) -> None:
        actor = self.actors[me]
        [message] = (Counter(before.claims[me].messages) - Counter(after.claims[me].messages)).elements()
        found = self.database.execute(actor.commands[message.kind, message.length])
        did = bool(found.rows) or bool(found.changed)
        assert did is bool(reply), self.way(f"{found}, not {reply}")
        if message.operation != NOBODY and message.operation in actor.programs:
            actor.replies[message.operation] = found

    def compare(self, state: State) -> None:
        record = self.database.provider.record(self.name)
        expected = state.record
        assert (record is None) is (expected is None), self.way(f"{record}, not {expected}")
        if record is not None and expected is not None:
            found = (record.is_held, record.remaining)
            assert found == (expected.left > 0, timedelta(seconds=expected.left)), self.way(f"{record}, not {expected}")
        for claim, actor in zip(state.claims, self.actors, strict=True):
            if claim.phase == "holds":
                assert actor.lease.is_trusted() is (claim.trust > 0), self.way(f"{actor.lease}, not {claim}")
                if expected is not None and expected.token == claim.token and record is not None:
                    assert record.fencing_token == actor.lease.fencing_token

    def way(self, what: str) -> str:
        return "\n".join([*self.log, what])


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path / "locks.db", FakeClock(0))
    yield made
    made.provider.close()


@pytest.mark.parametrize("seed", range(2))
def test_the_programs_do_as_the_model_does(database: Database, seed: int) -> None:
    models = [
        Model("sql", at_most=3, retries=1, lengths=(1, 5)),
        Model("sql", at_most=3, at_least=2, lengths=(1, 4)),
        Model("sql", at_most=2, by_hand=("force release", "delete"), lengths=(3,)),
        Model("sql", at_most=2, claims=3, forceful=frozenset({1})),
    ]
    dice = random.Random(seed)
    for number in range(WALKS):
        Walk(models[number % len(models)], database, f"walk-{number}", dice).go(30)
