"""The programs step by step, on a table in memory. The tests set its clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py.providers.dynamodb.wire import Change, Command, Reply, milliseconds
from shedlock_py.providers.kit import ProgramProvider
from shedlock_py.testing import FakeClock
from tests.simulation.stores.dynamodb import DynamoDBModelStore
from tests.support.locks import acquired, record_of

SECOND = timedelta(seconds=1)


class Table:
    """A client of the model of DynamoDB. Its clock stands still between steps."""

    def __init__(self) -> None:
        self.model = DynamoDBModelStore(ahead=0.0)
        self.clock = FakeClock()
        self.meanwhile: Callable[[], object] | None = None
        """Called before the next command is carried out."""
        self.before: type[object] | None = None
        """Type of that command. None for any command."""

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock(), UTC)

    def execute(self, command: Command, _timeout: float | None) -> Reply:
        sent_at, happens = self.clock(), self.meanwhile
        if happens is not None and isinstance(command, self.before or object):
            self.meanwhile = None
            happens()
        reply: Reply = self.model.received(
            self.model.execute(command, round(self.clock() * 1e6)), sent_at, self.clock()
        )
        return reply


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def provider(table: Table) -> Any:
    programs: Any = table.model.programs
    programs.clock, programs.clock_error = table.clock, timedelta(0)
    return ProgramProvider(programs, table)


def test_i6_an_extension_that_is_late_matches_no_newer_one_with_the_same_end(provider: Any, table: Table) -> None:
    """The holder got no reply in time and extended again, by chance until the same end."""
    lease = acquired(provider, "job", "12s")

    end = record_of(provider, "job").lock_until

    def extend_again() -> None:
        table.clock.advance(2)
        record_of(provider, "job")  # this reply makes the time known exactly
        assert provider.extend(lease, "10s") is not None
        assert record_of(provider, "job").lock_until == end

    table.meanwhile = extend_again
    provider.extend(lease, "10s")
    assert record_of(provider, "job").lock_until >= table.now + 10 * SECOND


@pytest.mark.parametrize("old_note", [True, False])
def test_i3_an_extension_that_finds_the_lock_released_does_not_hold_it_again(
    provider: Any, table: Table, old_note: bool
) -> None:
    """During the minimum hold. Without a note the provider reads first; with a note, its first write is rejected."""
    lease = acquired(provider, "job", lock_at_least_for="20s")
    lease._note = lease._note if old_note else None
    table.meanwhile = lambda: provider.release(lease)
    assert provider.extend(lease, "1h") is None
    table.clock.advance(25)
    assert not record_of(provider, "job").is_held


def test_a_lease_that_is_over_by_an_old_note_only_is_extended(provider: Any, table: Table) -> None:
    """Of two simultaneous extensions, the shorter one's reply came last, although the store carried it out first."""
    lease = acquired(provider, "job", "2s")
    old = lease._note
    assert provider.extend(lease, "1m") is not None
    lease._note = old
    table.clock.advance(20)
    assert provider.extend(lease, "1m") is not None
    assert record_of(provider, "job").lock_until >= table.now + 60 * SECOND


def test_i1_a_pause_does_not_replace_a_lock_that_java_took_while_it_was_decided(provider: Any, table: Table) -> None:
    """Java leaves the fencing token unchanged, so the pause cannot recognise the new lock by its token."""
    paused = provider.pause("job", "1m")

    def java_locks() -> None:
        table.clock.advance(90)
        now, until = (milliseconds(table.now + wait * SECOND) for wait in (0, 60))
        values = {"lockUntil": until, "lockedAt": now, "lockedBy": "java-0"}
        update = "SET lockUntil = :lockUntil, lockedAt = :lockedAt, lockedBy = :lockedBy"
        assert table.execute(Change("job", update, "lockUntil <= :lockedAt", values), None).is_done

    table.meanwhile, table.before = java_locks, Change
    assert provider.pause("job", "1m", expected=paused).holder == "java-0"
    assert record_of(provider, "job").holder == "java-0"
