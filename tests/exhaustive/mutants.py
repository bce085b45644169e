"""Wrong copies of the programs and commands, with one fault each. The search must find every mutant.

A mutant replaces a public method, or a command on its way to the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

import shedlock_py.model.lease
from shedlock_py import LockRequest, ProviderError
from shedlock_py.model.lease import Claim, Clock, Extension, Lease
from shedlock_py.model.request import trust_ends
from shedlock_py.providers.kit import StorePrograms, locking
from shedlock_py.providers.mongodb.commands import Command
from shedlock_py.providers.redis.commands import Call, Script
from shedlock_py.providers.sqlalchemy.clock import CLOCKS
from shedlock_py.providers.sqlalchemy.statements import SqlCommand
from tests.exhaustive.run import Plan
from tests.exhaustive.scenes import SCENES, Scene
from tests.simulation.stores import ModelStore

Apply = Callable[[pytest.MonkeyPatch, ModelStore], None]


class Mutant(NamedTuple):
    store: str
    scene: Scene
    broken: str
    """The violation that the search must report."""
    apply: Apply


def _altered(change: Callable[[Any], Any]) -> Apply:
    """Make the store carry out a changed command."""

    def apply(monkeypatch: pytest.MonkeyPatch, store: ModelStore) -> None:
        execute = store.execute
        monkeypatch.setattr(store, "execute", lambda command, now_us: execute(change(command), now_us))

    return apply


def _sql(which: Callable[[str], bool], old: str, new: str) -> Apply:
    """Replace ``old`` by ``new`` in the statements that ``which`` selects."""

    def change(command: SqlCommand) -> SqlCommand:
        sql = command.statement.sql
        if not which(sql):
            return command
        assert old in sql, sql
        return command._replace(statement=replace(command.statement, sql=sql.replace(old, new)))

    return _altered(change)


def _script(name: str, old: str, new: str) -> Apply:
    def change(command: Any) -> Any:
        if not isinstance(command, Call) or command.script.name != name:
            return command
        text = command.script.text
        assert old.encode() in text
        return command._replace(script=Script(name, text.replace(old.encode(), new.encode()), "changed"))

    return _altered(change)


def _all(*changes: Apply) -> Apply:
    """Make all of these changes."""

    def apply(monkeypatch: pytest.MonkeyPatch, store: ModelStore) -> None:
        for change in changes:
            change(monkeypatch, store)

    return apply


def _is_hold(sql: str) -> bool:
    return sql.startswith("UPDATE") and "AS record" not in sql and "AND lock_until >" in sql


def _is_extend(sql: str) -> bool:
    return _is_hold(sql) and "AND fencing_token =" in sql


def _is_release(sql: str) -> bool:
    return _is_hold(sql) and "AND fencing_token =" not in sql and "locked_by" in sql


def _is_undo(sql: str) -> bool:
    return sql.startswith("UPDATE") and "lock_until = min(" in sql


def _is_acquire(sql: str) -> bool:
    return sql.startswith("INSERT") and "record.lock_until <=" in sql


def _is_take_over(sql: str) -> bool:
    """Whether it is a take-over of a lock without a record."""
    return sql.startswith("INSERT") and not _is_acquire(sql)


def _is_recover(sql: str) -> bool:
    return "AS record" in sql and sql.startswith("UPDATE") and "record.lock_until <=" in sql


def _is_claim(sql: str) -> bool:
    return sql.startswith("INSERT") or "AS record" in sql


_NOW = CLOCKS["sqlite"].now
_MICROSECONDS = CLOCKS["sqlite"].microseconds.replace(":now_us", "?")
_OWN = "WHEN record.locked_by = ?"
_STAYS = "THEN record.lock_until"


def _wrapped(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Apply:
    """``wrap`` gets the method, and returns the wrong method."""
    return lambda monkeypatch, store: monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))


def _counts_from_the_reply(granted: Any) -> Any:
    def wrong(self: Claim, token: int | None) -> Lease:
        self.restart_clock()
        lease: Lease = granted(self, token)
        return lease

    return wrong


def _minimum_from_the_request(init: Any) -> Any:
    def wrong(
        self: Lease, request: LockRequest, claim_id: str, token: int | None, clock: Clock, sent_at: float
    ) -> None:
        init(self, request, claim_id, token, clock, sent_at)
        self.lock_at_least_for -= timedelta(seconds=clock() - sent_at)

    return wrong


def _cuts_the_minimum(init: Any) -> Any:
    def wrong(self: Extension, lease: Lease, lock_at_most_for: Any) -> None:
        init(self, lease, lock_at_most_for)
        self.lock_for = lock_at_most_for

    return wrong


def _trusts_the_old_window(init: Any) -> Any:
    def wrong(self: Extension, lease: Lease, lock_at_most_for: Any) -> None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(shedlock_py.model.lease, "trust_ends", lambda sent_at, lock_for: lease.trusted_until)
            init(self, lease, lock_at_most_for)

    return wrong


def _nothing_in_doubt(granted: Any) -> Any:
    def wrong(self: Extension, *, repeated: bool = False) -> Lease:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(
                shedlock_py.model.lease, "trust_ends", lambda sent_at, _: trust_ends(sent_at, self.lock_for)
            )
            lease: Lease = granted(self, repeated=repeated)
        return lease

    return wrong


def _forgets_others(granted: Any) -> Any:
    def wrong(self: Extension, *, repeated: bool = False) -> Lease:
        lock_for, self.lock_for = self.lock_for, timedelta.max  # instead of a length that shortens the others
        lease: Lease = granted(self, repeated=repeated)
        self.lock_for = lock_for
        return lease

    return wrong


def _done_once(granted: Any) -> Any:
    def wrong(self: Extension, *, repeated: bool = False) -> Lease:
        lease: Lease = granted(self, repeated=False)
        return lease

    return wrong


def _skips_for_an_outage(acquire: Any) -> Any:
    def wrong(programs: StorePrograms, request: LockRequest) -> Any:
        try:
            return (yield from acquire(programs, request))
        except ProviderError:
            return None

    return wrong


def _undoes_nothing(_: Any) -> Any:
    def wrong(programs: StorePrograms, operation: Any, claim: Claim, before: Any, *, force: bool) -> Any:
        token = yield from operation.carry_out(programs.claim(claim, before=before, force=force))
        return None if token is None else claim.granted(token or None)

    return wrong


def _without_token(command: Command) -> Command:
    arguments = dict(command.arguments)
    if command.method == "update_one":
        filter = dict(arguments["filter"])
        filter.pop("fencingToken", None)
        arguments["filter"] = filter
    return replace(command, arguments=arguments)


def _always_upserts(command: Command) -> Command:
    if command.method != "find_one_and_update":
        return command
    return replace(command, arguments={**command.arguments, "upsert": True})


_QUIET, _BY_HAND, _RETRIES = SCENES["quiet"], SCENES["by hand"], SCENES["retries"]
_MINIMUM, _EXTENSIONS, _TAKE_OVER = SCENES["minimum"], SCENES["extensions"], SCENES["take over"]
_LATE, _LATE_BY_HAND, _TWICE = (
    SCENES["late"],
    SCENES["late, by hand"],
    Scene((Plan(1, extensions=(1, 2), retries=True),)),
)
_RECOVER = SCENES["recover"]
_LATE_EXTENSION = SCENES["minimum, late extension"]
_LONG_MINIMUM = Scene((Plan(2, 2, extensions=(1,)), Plan(2, 2)))
_SHORTER = Scene((Plan(2, extensions=(1,)), Plan(2)))

MUTANTS = {
    # In the commands
    "releases by name": Mutant("sql", _QUIET, "I2", _sql(_is_release, "locked_by = ?", "? <> ''")),
    "an undo by name": Mutant("sql", _QUIET, "I2", _sql(_is_undo, "locked_by = ?", "? <> ''")),
    "tokens without the clock": Mutant("sql", _BY_HAND, "I7", _sql(_is_claim, _MICROSECONDS, "min(?, 9)")),
    "expired leases are extended": Mutant(
        "sql", _BY_HAND, "alive again", _sql(_is_extend, f" AND lock_until > {_NOW}", "")
    ),
    "extensions add up": Mutant("sql", _EXTENSIONS, "I3", _sql(_is_extend, "'now', printf", "lock_until, printf")),
    "a retry begins anew": Mutant(
        "sql", _LATE, "I6",
        _sql(_is_acquire, f"{_OWN} {_STAYS}", f"{_OWN} AND record.lock_until <= {_NOW} {_STAYS}"),
    ),
    "a retry prolongs": Mutant(  # like an earlier statement for MySQL
        "sql", _LATE_BY_HAND, "alive again",
        _sql(_is_acquire, f"{_OWN} {_STAYS}", f"{_OWN} AND record.lock_until > {_NOW} {_STAYS}"),
    ),
    "take-overs of any record": Mutant(
        "sql", _TAKE_OVER, "I1", _sql(_is_take_over, "WHERE (record.locked_by", "WHERE (1 OR record.locked_by")
    ),
    "retries are not recognised": Mutant(
        "redis", _RETRIES, "a skip was faked", _script("acquire", "if record[2] == ARGV[1] then", "if false then")
    ),
    "ended claims are granted again": Mutant(
        "redis", _LATE_BY_HAND, "granted again for nobody",
        _script("acquire", "if record[2] == ARGV[1] then", "if record[2] == ARGV[1] and lock_until > now then"),
    ),
    "a release leaves the token": Mutant(
        "sql", _LATE_EXTENSION, "held again for nobody", _sql(_is_release, "fencing_token + 1", "fencing_token")
    ),
    "late extensions": Mutant(
        "redis", _LATE_EXTENSION, "held again for nobody", _script("extend", " or record[4] == record[3]", "")
    ),
    "overtaken extensions are done": Mutant(
        "redis", _TWICE, "I6",
        _script("extend", "if (number(record[5], 'extended_at') or 0) > tonumber(ARGV[5]) then", "if false then"),
    ),
    "tokens from the clock only": Mutant(
        "redis", SCENES["clock stands still"], "I7", _script("acquire", "math.max(token + 1, now)", "now")
    ),
    "extensions do not carry the token": Mutant("mongodb", _LATE, "trusts token", _altered(_without_token)),
    "a take-over makes a record anew": Mutant(
        "mongodb", SCENES["take over of a deleted record"], "I2", _altered(_always_upserts)
    ),
    "a fire time is granted again": Mutant(
        "redis", SCENES["one fire time"], "I11",
        _script("acquire", "last_fire_time >= tonumber", "last_fire_time > tonumber"),
    ),
    "a held run is recovered": Mutant(
        "sql", _RECOVER, "I1", _sql(_is_recover, f" AND record.lock_until <= {_NOW}", "")
    ),
    "recoveries of any run": Mutant(
        "redis", SCENES["recover, later fire time"], "I1",
        _all(
            _script("take_over", '(record[2] or "") ~= ARGV[6]', "false"),
            _script("take_over", "record[1] ~= ARGV[7] or", ""),
        ),
    ),
    "a released run is recovered": Mutant(
        "redis", _RECOVER, "I14", _script("take_over", " or record[5] == record[2]", "")
    ),
    "a minimum hold looks like a dead holder": Mutant(
        "sql", SCENES["recover, minimum"], "I14", _sql(_is_release, "fencing_token + 1", "fencing_token + 2")
    ),
    "a forced release leaves no mark": Mutant(
        "redis", SCENES["recover, by hand"], "I14", _script("free", ", 'freed_token', token)", ")")
    ),
    "an undo leaves no mark": Mutant(
        "redis", _RECOVER, "I14", _script("undo", "'released_token', record[3])", "'released_token', '')")
    ),
    "recoveries are not recognised": Mutant(
        "redis", SCENES["recover, sent twice"], "a skip was faked",
        _script("take_over", "if record[1] == ARGV[1] then", "if false then"),
    ),
    # In the programs
    "an outage is a skip": Mutant("redis", _QUIET, "I5", _wrapped(locking, "acquire", _skips_for_an_outage)),
    "an unknown outcome is not undone": Mutant(
        "redis", _QUIET, "I12", _wrapped(locking, "claimed", _undoes_nothing)
    ),
    "trust counts from the reply": Mutant("sql", _QUIET, "I6", _wrapped(Claim, "granted", _counts_from_the_reply)),
    "trust is a flag": Mutant(
        "sql", _QUIET, "I6", _wrapped(Lease, "is_trusted", lambda _: lambda lease: lease.trusted_until > float("-inf"))
    ),
    "a release forgets the minimum hold": Mutant(
        "sql", _MINIMUM, "I4", _wrapped(Lease, "remaining_minimum", lambda minimum: lambda lease: 0 * minimum(lease))
    ),
    "the minimum hold counts from the request": Mutant(
        "sql", _MINIMUM, "I4", _wrapped(Lease, "__init__", _minimum_from_the_request)
    ),
    "extensions cut the minimum hold": Mutant(
        "sql", _LONG_MINIMUM, "I4", _wrapped(Extension, "__init__", _cuts_the_minimum)
    ),
    "nothing stays in doubt": Mutant("sql", _EXTENSIONS, "I6", _wrapped(Extension, "granted", _nothing_in_doubt)),
    "a shorter extension is trusted late": Mutant(
        "sql", _SHORTER, "I6", _wrapped(Extension, "__init__", _trusts_the_old_window)
    ),
    "extensions forget each other": Mutant("sql", _EXTENSIONS, "I6", _wrapped(Extension, "granted", _forgets_others)),
    "extensions are done once": Mutant("sql", _TWICE, "I6", _wrapped(Extension, "granted", _done_once)),
}  # fmt: skip
