"""A model store behaves like the real store: the same random operations give the same replies and records."""

from __future__ import annotations

import copy
import gc
import random
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from shedlock_py import Lease, LockRequest, ProviderError
from shedlock_py.model.lease import Claim
from shedlock_py.model.record import LockRecord
from shedlock_py.providers.cas import ServerTime
from shedlock_py.providers.kit import carry_out
from shedlock_py.runtime.program import Program, drive
from shedlock_py.testing import FakeClock
from tests.simulation.stores import ModelStore
from tests.simulation.stores.cas import CasModelStore
from tests.simulation.stores.dynamodb import DynamoDBModelStore
from tests.simulation.stores.mongodb import MongoModelStore
from tests.simulation.stores.raw import Raw, now_us, raw, raw_of_model
from tests.simulation.stores.sql import SqlModelStore
from tests.support import tiers
from tests.support.stores import DynamoDBStore, EtcdStore, MongoStore, SqliteStore, Store

NAMES = ("a", "$a*[b]\\^? é", "a:{c}")
REAL = {
    "sql": "sqlite", "redis": "redis", "mongodb": "mongodb", "mongodb with history": "mongodb",
    "cas": "etcd", "dynamodb": "dynamodb",
}  # fmt: skip
BY_DATE = ("cas", "dynamodb")
"""Stores with the time from replies."""
SEQUENCES = 100 if tiers.runs("all") else 4 if tiers.runs("full") else 1
OPERATIONS = 80
KEPT = 3
"""Runs of each name, with history."""


class World:
    """Programs, and the function that runs their commands: a model store, or a provider on a real store."""

    def __init__(self, programs: Any, execute: Callable[[Any], Any], clock: FakeClock) -> None:
        self.programs, self.execute = programs, execute
        programs.clock = clock
        self.commands: list[Any] = []
        self.leases: list[Lease] = []
        self.befores: list[LockRecord | None] = [None]
        self._ids: list[str] = []
        """The claim ids, in the order of their creation."""

    def run(self, program: Program[Any, Any, Any]) -> Any:
        """Return the result, in a form that two worlds can compare."""
        try:
            result = drive(carry_out(self.programs, "tried", "it", program), self._execute)
        except ProviderError as error:
            return type(error).__name__, self.without_ids(str(error))
        if isinstance(result, Lease):
            self.leases.append(result)
            return "a lease"
        return result

    def _execute(self, command: Any) -> Any:
        self.commands.append(command)
        return self.execute(command)

    def repeat(self, number: int) -> Any:
        """Send a late copy of a command. The records and the error show its effect."""

        def again() -> Program[Any, Any, Any]:
            yield self.commands[number % len(self.commands)]

        return self.run(again())

    def claim(
        self, request: LockRequest, before: LockRecord | None, *, force: bool, recoveries: int = 0
    ) -> Program[Any, Any, Any]:
        claim = Claim(request, self.programs.clock, recoveries=recoveries)
        self._ids.append(claim.claim_id)
        token = yield from self.programs.claim(claim, before=before, force=force)
        return claim.granted(token or None) if token is not None else None

    def without_ids(self, message: str) -> str:
        for number, claim_id in enumerate(self._ids):
            message = message.replace(claim_id, f"claim {number}")
        return re.sub(r" script: .*|in [a-z.0-9_]+ is no lock record", "", message)

    def shown(self, value: Any) -> Any:
        """Return a record or result with claims by number, and times as hours from now."""
        match value:
            case LockRecord():
                left = round((value.lock_until - value.read_at) / timedelta(hours=1), 2)
                age = round((value.read_at - value.locked_at) / timedelta(hours=1), 2)
                holder = self.without_ids(value.locked_by)
                token = self._age_of(value.fencing_token)
                return value.name, holder, max(0.0, left), age, value.last_fire_time, token, value.is_released
            case list():
                return sorted(map(self.shown, value))
        return value

    def _age_of(self, token: int | None) -> float | None:
        """In hours: tokens follow the store's clock."""
        return None if token is None else round((time.time() * 1e6 - token) / 3600e6, 2)


class Pair:
    """The same operations in both worlds."""

    def __init__(self, model: World, real: World, dice: random.Random, clock: FakeClock) -> None:
        self.worlds, self.dice, self.clock = (model, real), dice, clock
        self.log: list[str] = []

    def go(self, operations: int) -> None:
        for _ in range(operations):
            self.clock.advance(1)
            operation = self.dice.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
            outcomes = [getattr(self, f"_{operation}")(world, random.Random(seed))
                        for seed in [self.dice.random()] for world in self.worlds]  # fmt: skip
            self.log.append(f"{operation}: {outcomes}")
            model, real = (world.shown(outcome) for world, outcome in zip(self.worlds, outcomes, strict=True))
            assert model == real, "\n".join(self.log)
            records = [world.run(world.programs.records("")) for world in self.worlds]
            model, real = (world.shown(found) for world, found in zip(self.worlds, records, strict=True))
            assert model == real, "\n".join(self.log)

    def _request(self, dice: random.Random) -> LockRequest:
        fire_times = [None, None, *(datetime(2020, 1, day, 0, 0, 0, day, UTC) for day in (1, 2, 3)), _TOO_LATE]
        return LockRequest(dice.choice(NAMES), dice.choice(["1h", "2h"]), 0, "me#x", dice.choice(fire_times))

    def _acquire(self, world: World, dice: random.Random) -> Any:
        return world.run(world.claim(self._request(dice), None, force=False))

    def _take_over(self, world: World, dice: random.Random) -> Any:
        """Replace a record that was read some time ago, or just now."""
        request = self._request(dice)
        if dice.random() < 0.5:
            world.befores.append(drive(world.programs.record(request.name), world.execute))
            before = world.befores[-1]
        else:
            before = dice.choice(world.befores)
        return world.run(world.claim(request, before, force=True))

    def _recover(self, world: World, dice: random.Random) -> Any:
        """Recover a record that was read some time ago, or just now: held, released, or of a dead holder."""
        request = self._request(dice)
        if dice.random() < 0.7:
            world.befores.append(drive(world.programs.record(request.name), world.execute))
        before = world.befores[-1]
        if before is None or before.name != request.name:
            return None
        return world.run(world.claim(request, before, force=True, recoveries=1))

    def _extend(self, world: World, dice: random.Random) -> Any:
        # Zero: the lease ends at once, without waiting.
        length = dice.choice([timedelta(0), timedelta(hours=1), timedelta(hours=3)])
        if not world.leases:
            return None
        return world.run(world.programs.set_end(dice.choice(world.leases), length, releasing=False))

    def _release(self, world: World, dice: random.Random) -> Any:
        length = dice.choice([timedelta(0), timedelta(hours=1)])
        if not world.leases:
            return None
        return world.run(world.programs.set_end(dice.choice(world.leases), length, releasing=True))

    def _undo(self, world: World, dice: random.Random) -> Any:
        if not world.leases:
            return None
        lease = dice.choice(world.leases)
        former = lease.fire_time and lease.fire_time - timedelta(microseconds=1)
        return world.run(world.programs.undo_claim(lease.name, lease.locked_by, former))

    def _repeat(self, world: World, dice: random.Random) -> Any:
        number = dice.randrange(10**6)
        outcome = world.repeat(number) if world.commands else None
        return outcome if isinstance(outcome, tuple) else None  # an error; other replies are the store's own words

    def _force_release(self, world: World, dice: random.Random) -> Any:
        return world.run(world.programs.force_release(dice.choice(NAMES)))

    def _forget_fire_time(self, world: World, dice: random.Random) -> Any:
        return world.run(world.programs.forget_fire_time(dice.choice(NAMES)))

    def _prune(self, world: World, dice: random.Random) -> Any:
        return world.run(world.programs.prune(timedelta(hours=dice.choice([0, 0, 1]))))

    def _record(self, world: World, dice: random.Random) -> Any:
        return world.run(world.programs.record(dice.choice(NAMES)))

    def _records(self, world: World, dice: random.Random) -> Any:
        return world.run(world.programs.records(dice.choice(["", "a", "$a*"])))


_TOO_LATE = datetime(2200, 1, 1, tzinfo=UTC)
_WEIGHTS = {
    "acquire": 8, "take_over": 4, "recover": 4, "extend": 6, "release": 5, "undo": 2, "repeat": 6, "force_release": 2,
    "forget_fire_time": 1, "prune": 1, "record": 1, "records": 1,
}  # fmt: skip


def modelled(store: Store) -> ModelStore:
    match store:
        case SqliteStore():
            return SqlModelStore()
        case MongoStore():
            return MongoModelStore()
        case EtcdStore():
            return CasModelStore(ahead=0.0)
        case DynamoDBStore():
            return DynamoDBModelStore(ahead=0.0)
        case _:
            pytest.importorskip("lupa", reason="no Lua for the scripts of Redis: pip install lupa (no wheel for 3.15)")
            from tests.simulation.stores.redis import RedisModelStore

            return RedisModelStore(store.options["key_prefix"])


@pytest.fixture
def real_store(name: str, make_store: Callable[..., Store]) -> Iterator[tuple[Store, Any]]:
    store = make_store(REAL[name]).sync()
    with store.provider() as provider:
        yield store, provider


NEEDS_A_SERVER = pytest.mark.not_quick("compares with a real server")
EXPENSIVE = pytest.mark.slow("carries out hundreds of commands on a real server")
MARKS = {"sql": [], "cas": [EXPENSIVE], "dynamodb": [EXPENSIVE], "mongodb with history": [EXPENSIVE]}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, [NEEDS_A_SERVER])) for name in REAL])
def test_a_model_store_does_what_the_real_one_does(name: str, real_store: tuple[Store, Any]) -> None:
    store, provider = real_store
    for seed in range(min(SEQUENCES, 25) if name in BY_DATE else SEQUENCES):
        store.delete_all()
        clock, model = FakeClock(), modelled(store)
        if name.endswith("with history"):
            model.programs.history = provider.programs.history = KEPT
        if name in BY_DATE:
            setattr(model.programs, "clock_error", provider.programs.clock_error)  # noqa: B010 (mypy: of these only)
        timed = partial(_at_one_time, clock, datetime.now(UTC)) if name in BY_DATE else _as_it_is
        pair = Pair(
            World(model.programs, partial(_timed, timed, partial(_execute, model)), clock),
            World(copy.copy(provider.programs), partial(_timed, timed, partial(_really, provider)), clock),
            random.Random(seed),
            clock,
        )
        pair.go(OPERATIONS)
        assert _shown(raw_of_model(name, model), pair.worlds[0]) == _shown(raw(store), pair.worlds[1]), pair.log


def _really(provider: Any, command: Any) -> Any:
    return provider._drive(_alone(command))


def _timed(timed: Callable[[Any], Any], execute: Callable[[Any], Any], command: Any) -> Any:
    return timed(execute(command))


def _as_it_is(reply: Any) -> Any:
    return reply


def _at_one_time(clock: FakeClock, begin: datetime, reply: Any) -> Any:
    """Use the same time in both worlds: otherwise the dates may be cut in different seconds."""
    now = clock()
    date = (begin + timedelta(seconds=now)).replace(microsecond=0)
    return reply._replace(time=ServerTime(date, sent_at=now, received_at=now))


def _execute(model: ModelStore, command: Any) -> Any:
    return model.execute(command, now_us())


def _alone(command: Any) -> Program[Any, Any, Any]:
    return (yield command)


def _shown(records: Raw, world: World) -> Raw:
    """Return records with tokens by order, times in minutes, and claims by number."""
    return {name: {key: _shown_value(key, value, world) for key, value in fields.items()}
            for name, fields in records.items()}  # fmt: skip


def _shown_value(key: str, value: Any, world: World) -> Any:
    match key:
        case "runs":
            return [_shown({"": run}, world)[""] for run in value]
        case "locked_by" | "lockedBy" | "releasedBy" | "endedBy":
            return world.without_ids(value)
        case "lives":
            return round(value / 60e3)
        case (
            "lock_until"
            | "lockUntil"
            | "locked_at"
            | "lockedAt"
            | "fencing_token"
            | "fencingToken"
            | "started"
            | "ended"
        ):
            return _minutes(value)
        case "released_token" | "releasedToken" | "freed_token" | "freedToken":
            return _minutes(value)
    return value  # the holder's clock, and fire times, are the same in both worlds


class _Minutes(float):
    """Equal to a number that differs by less than half a minute: one world acts, and is read, after the other."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and abs(float(self) - float(other)) < 0.5

    __hash__ = None  # type: ignore[assignment]  # equal numbers would need equal hashes


def _minutes(value: Any) -> _Minutes:
    """Minutes from now until then."""
    if isinstance(value, str) and not value.isdigit():
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        moment = value.replace(tzinfo=UTC)
        return _Minutes((moment - datetime.now(UTC)) / timedelta(minutes=1))
    return _Minutes((int(value) - time.time() * 1e6) / 60e6)


def test_a_store_of_sql_that_is_no_longer_used_closes_its_connection() -> None:
    store: Any = SqlModelStore()
    connection = store.connection  # otherwise it would warn in another test, from Python 3.13 on
    del store
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
