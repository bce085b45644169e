"""The programs for compare-and-swap stores, step by step: a test times each command of an in-memory store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import Any

import pytest

from shedlock_py import Lease, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.model.record import ONCE
from shedlock_py.providers import cas, kit
from shedlock_py.testing import FakeClock

SECOND = timedelta(seconds=1)


class Programs(cas.CasPrograms):
    def classify(self, error: Exception) -> kit.Failure:
        match error:
            case ConnectionResetError():
                return kit.Failure.CONNECTION_LOST
            case TimeoutError():
                return kit.Failure.UNREACHABLE
        return kit.Failure.NOT_A_STORE_ERROR


class Store:
    """Versioned records, and the server's clock."""

    def __init__(self) -> None:
        self.entries: dict[str, cas.Entry] = {}
        self.clock = FakeClock()
        self.epoch = datetime(2026, 1, 1, tzinfo=UTC)
        self.commands: list[str] = []
        self.before: dict[int, Callable[[], object]] = {}
        """Calls before the command with this number, counted from now."""
        self.ahead: dict[int, float] = {}
        """Seconds: how wrong the server's clock is for the command with this number."""
        self.lost: dict[int, Exception] = {}
        """The client's error instead of the reply to the command with this number, which is executed."""

    def meanwhile(self, command: int, happens: Callable[[], object]) -> None:
        self.before[len(self.commands) + command] = happens

    def execute(self, command: cas.CasCommand, _timeout: float | None) -> cas.CasReply:
        sent_at = self.clock()
        if happens := self.before.pop(len(self.commands), None):
            happens()
        self.commands.append(type(command).__name__)
        now = self.clock()
        ahead = self.ahead.get(len(self.commands) - 1, 0.0)
        date = (self.epoch + timedelta(seconds=now + ahead)).replace(microsecond=0)
        reply = cas.CasReply(self._value_of(command), cas.ServerTime(date, sent_at, now))
        if error := self.lost.get(len(self.commands) - 1):
            raise error
        return reply

    def _value_of(self, command: cas.CasCommand) -> Any:
        match command:
            case cas.Read(name):
                return self.entries.get(name)
            case cas.Write(record, if_version, is_free):
                entry = self.entries.get(record.name)
                if (entry and entry.version) != if_version:
                    return None
                version = (if_version or 0) + 1
                self.entries[record.name] = cas.Entry(record, version, is_free)
                return version
            case cas.List():
                return list(self.entries.values())
        raise AssertionError(command)


@pytest.fixture
def store() -> Store:
    return Store()


def replica(store: Store, clock_error: str = "0s") -> Any:
    programs = Programs(timeout=5.0, clock_error=clock_error)
    programs.clock = store.clock
    return kit.ProgramProvider(programs, store)


def acquired(provider: Any, request: LockRequest) -> Lease:
    lease: Lease | None = provider.acquire(request)
    assert lease is not None
    return lease


def test_i1_a_pause_does_not_replace_a_job_that_began_while_it_was_decided(store: Store) -> None:
    operator, node = replica(store), replica(store)
    paused = node.pause("job", "1m")
    leases: list[Lease] = []

    def resume_and_start() -> None:
        assert node.resume("job")
        leases.append(acquired(node, LockRequest("job", "1m")))

    store.meanwhile(1, resume_and_start)  # the pause has read that a pause holds the lock, which it may replace
    record = operator.pause("job", "1m", expected=paused)
    assert record.locked_by == leases[0].locked_by
    assert node.extend(leases[0], "1m") is not None


@pytest.mark.parametrize("step", [1, 2])
def test_i1_a_key_is_not_forgotten_if_its_holder_extends_the_lease_meanwhile(store: Store, step: int) -> None:
    """A holder can still extend its lease shortly after lock_until, because the store's time is not exact."""
    node, operator = replica(store), replica(store)
    store.clock.advance(0.95)
    lease = acquired(node, LockRequest("key", "30s", fire_time=ONCE))
    left = store.entries["key"].record.lock_until - (store.epoch + timedelta(seconds=store.clock()))
    store.clock.advance(left.total_seconds() + 0.3)
    extended: list[Lease | None] = []
    store.meanwhile(step, lambda: extended.append(node.extend(lease, "30s")))
    assert not operator.forget_fire_time("key")
    assert extended == [lease]
    assert operator.acquire(LockRequest("key", "30s", fire_time=ONCE)) is None


def test_i1_a_pause_does_not_replace_what_an_elector_of_client_go_took_while_it_was_decided(store: Store) -> None:
    """Such an elector does not change our fencing token."""
    operator = replica(store)
    paused = operator.pause("job", "1m")

    def elect() -> None:
        store.entries["job"] = cas.Entry(replace(paused, locked_by="go-pod"), store.entries["job"].version + 1)

    store.meanwhile(1, elect)
    assert operator.pause("job", "1h", expected=paused).locked_by == "go-pod"
    assert store.entries["job"].record.locked_by == "go-pod"


@pytest.mark.parametrize("jump", [30, 3600])
def test_i6_an_extension_after_the_servers_clock_was_set_forward_is_as_long_as_it_says(store: Store, jump: int) -> None:
    """The extension is computed from an old reply; the next reply shows the jump."""
    node = replica(store)
    lease = acquired(node, LockRequest("job", "2h"))
    store.clock.advance(60)
    store.epoch += SECOND * jump
    assert node.extend(lease, "10m") is not None
    now = store.epoch + timedelta(seconds=store.clock())
    assert store.entries["job"].record.lock_until >= now + timedelta(minutes=10)


def test_i6_an_extension_that_is_late_does_not_shorten_a_newer_one(store: Store) -> None:
    """An elector got no reply in time and extended again. The first request arrives after the second."""
    node = replica(store)
    lease = acquired(node, LockRequest("job", "10s"))

    def extend_again() -> None:
        store.clock.advance(2)
        assert node.extend(lease, "10s") is not None

    store.meanwhile(0, extend_again)
    node.extend(lease, "10s")
    now = store.epoch + timedelta(seconds=store.clock())
    assert store.entries["job"].record.lock_until >= now + timedelta(seconds=10)


@pytest.mark.parametrize("old_note", [True, False])
def test_i3_an_extension_that_finds_the_lock_released_does_not_hold_it_again(store: Store, old_note: bool) -> None:
    """The lock is in its minimum hold. Without a note the extension reads first; with a note, its write is refused
    first."""
    node = replica(store)
    lease = acquired(node, LockRequest("job", "1m", "20s"))
    lease._note = lease._note if old_note else None
    store.meanwhile(0, lambda: node.release(lease))
    assert node.extend(lease, "1h") is None
    store.clock.advance(25)
    assert not node.record("job").is_held


def test_a_write_of_another_tool_at_the_same_moment_is_no_loss(store: Store) -> None:
    """For example, a tool sets a label on the object: the record is unchanged, but its version is new."""
    provider = replica(store)
    lease = acquired(provider, LockRequest("job", "1m"))

    def touch() -> None:
        entry = store.entries["job"]
        store.entries["job"] = replace(entry, version=entry.version + 1)

    store.meanwhile(0, touch)
    assert provider.extend(lease, "1m") is not None
    store.meanwhile(0, touch)
    assert provider.release(lease) is True


def test_front_ends_whose_clocks_differ_are_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A balancer takes them in turn, so each reply contradicts the one before."""
    node = replica(store, clock_error="1s")
    lease, execute, ahead = acquired(node, LockRequest("job", "1m")), store.execute, cycle([4 * SECOND, -4 * SECOND])

    def in_turn(command: cas.CasCommand, timeout: float | None) -> cas.CasReply:
        store.epoch += next(ahead)
        return execute(command, timeout)

    monkeypatch.setattr(store, "execute", in_turn)
    with pytest.raises(ProviderUnreachable, match=r"differ by more than 0:00:01 \(clock_error\)") as caught:
        node.extend(lease, "1m")
    assert "raise clock_error on all replicas" in str(caught.value.hint)


def test_a_slow_reply_is_no_jump_of_the_clock(store: Store) -> None:
    """The reply takes longer than two seconds, the error of rounded dates."""
    node = replica(store)
    lease = acquired(node, LockRequest("job", "1m"))
    store.meanwhile(0, lambda: store.clock.advance(4.5))
    assert node.extend(lease, "1m") is not None
    assert store.commands[3:] == ["Write"]


def test_a_lease_that_is_over_by_an_old_note_only_is_extended(store: Store) -> None:
    """Two extensions ran at once. The reply to the shorter one came last, although the store executed it first."""
    node = replica(store)
    lease = acquired(node, LockRequest("job", "2s"))
    old = lease._note
    assert node.extend(lease, "1m") is not None
    lease._note = old
    store.clock.advance(20)
    assert node.record("job").is_held
    assert node.extend(lease, "1m") is not None


def test_a_released_record_does_not_change_after_the_servers_clock_was_set_back(store: Store) -> None:
    """An elector with takeover="observed" replaces a record that has not changed for a whole lease."""
    node = replica(store)
    assert node.release(acquired(node, LockRequest("job", "1m")))
    store.epoch -= SECOND * 3600
    before = node.record("job")
    store.clock.advance(60)
    assert node.record("job") == before
    assert not before.is_held


def test_a_skip_only_reads_and_extend_and_release_only_write(store: Store) -> None:
    node = replica(store)

    def commands(call: Callable[[], object]) -> list[str]:
        before = len(store.commands)
        call()
        return store.commands[before:]

    request, leases = LockRequest("job", "1m"), list[Lease]()
    assert commands(lambda: leases.append(acquired(node, request))) == ["Read", "Write", "Write"]  # create it first
    assert commands(lambda: node.acquire(request)) == ["Read"]
    assert commands(lambda: node.extend(leases[0], "2m")) == ["Write"]
    assert commands(lambda: node.release(leases[0])) == ["Write"]
    assert commands(lambda: leases.append(acquired(node, request))) == ["Read", "Write"]
    assert commands(lambda: node.take_over(request)) == ["Read", "Read", "Write"]


def test_i11_a_fire_time_that_was_granted_since_the_first_copy_is_not_forgotten(store: Store) -> None:
    node, other, hour = replica(store), replica(store), timedelta(hours=1)
    node.release(acquired(node, LockRequest("job", "1m", fire_time=store.epoch)))
    begin = len(store.commands)
    store.lost = {begin + 1: ConnectionResetError()}
    earlier = LockRequest("job", "1m", fire_time=store.epoch - hour)
    store.meanwhile(2, lambda: other.release(acquired(other, earlier)))
    assert node.forget_fire_time("job") is True
    assert store.entries["job"].record.last_fire_time == earlier.fire_time


def test_i12_a_grant_that_a_second_copy_does_not_settle_is_undone(store: Store) -> None:
    """The second copy finds a new version, as the first copy has granted the lock. The next read would show it."""
    node = replica(store)
    store.lost = {2: ConnectionResetError(), 4: TimeoutError()}
    with pytest.raises(ProviderUnreachable):
        node.acquire(LockRequest("job", "30m"))
    assert store.commands == ["Read", "Write", "Write", "Write", "Read", "Read", "Write"]
    assert store.entries["job"].is_free


# The clocks of two servers differ by more than clock_error


def test_i1_a_read_by_a_clock_that_is_ahead_grants_no_lock_that_is_held(store: Store) -> None:
    holder, other = replica(store), replica(store)
    lease = acquired(holder, LockRequest("job", "1m"))
    before = store.entries["job"].record
    store.ahead = {len(store.commands): 120.0}
    assert other.acquire(LockRequest("job", "1m")) is None
    assert store.commands[-4:] == ["Write", "Read", "Read", "Read"], "it reads until two replies agree"
    assert store.entries["job"].record == before
    assert holder.extend(lease, "1m") is lease
    assert holder.release(lease) is True


@pytest.mark.parametrize("ahead", [-60.0, 60.0])
@pytest.mark.parametrize("wrong", [0, 1, 2], ids=["read", "make", "grant"])
def test_i1_no_lease_is_shorter_for_its_holder_than_for_the_servers(store: Store, wrong: int, ahead: float) -> None:
    """One server's reply to one request is wrong by a minute. The lock name is new."""
    provider = replica(store)
    store.ahead = {len(store.commands) + wrong: ahead}
    lease = acquired(provider, LockRequest("job", "30s"))
    end = store.epoch + timedelta(seconds=store.clock() + 30)
    assert store.entries["job"].record.lock_until >= end
    assert lease.is_trusted()


@pytest.mark.parametrize("ahead", [-60.0, 60.0])
@pytest.mark.parametrize("wrong", [0, 1, 2, 3], ids=["reply before", "extension", "second reply", "third reply"])
def test_i1_nobody_gets_the_lock_while_it_is_extended(store: Store, wrong: int, ahead: float) -> None:
    """One server's reply to one request is wrong by a minute."""
    holder, other, request = replica(store), replica(store), LockRequest("job", "30s")
    lease, granted = acquired(holder, request), list[Lease | None]()
    begin = len(store.commands)
    store.ahead = {begin + wrong: ahead}
    assert holder.record("job")
    for step in (1, 2):
        store.before[begin + step + 1] = lambda: granted.append(replica(store).acquire(request))
    assert holder.extend(lease, "30s") is lease
    store.before = {}
    assert [*granted, other.acquire(request)] == [None] * (len(granted) + 1)
    assert holder.extend(lease, "30s") is lease


def test_i1_a_lease_that_was_kept_for_hours_is_extended_by_a_time_of_now(store: Store) -> None:
    """A minute is within the drift of 20 hours, so a wrong reply would seem right."""
    holder, other = replica(store), replica(store)
    lease = acquired(holder, LockRequest("job", "24h"))
    store.clock.advance("20h")
    store.ahead = {len(store.commands) + number: -60.0 for number in (0, 2)}
    for _ in range(2):
        assert holder.extend(lease, "20s") is lease
        assert other.acquire(LockRequest("job", "30s")) is None


@pytest.mark.parametrize("wrong", range(3))
def test_i14_a_key_in_use_is_not_forgotten_by_a_wrong_clock(store: Store, wrong: int) -> None:
    holder, operator = replica(store), replica(store)
    lease = acquired(holder, LockRequest("key", "30s", fire_time=ONCE))
    store.ahead = {len(store.commands) + wrong: 60.0}
    assert operator.forget_fire_time("key") is False
    store.ahead = {}
    assert holder.extend(lease, "30s") is lease
    assert store.entries["key"].record.last_fire_time == ONCE


def test_i5_servers_that_never_agree_are_an_error_with_its_cure(store: Store) -> None:
    holder, other = replica(store), replica(store)
    acquired(holder, LockRequest("job", "1m"))
    before = store.entries["job"].record
    first = len(store.commands)
    store.ahead = {first: 120.0, first + 1: 240.0, first + 2: 360.0}
    with pytest.raises(ProviderUnreachable, match=r"acquire of lock 'job': the times .* raise clock_error"):
        other.acquire(LockRequest("job", "1m"))
    assert store.entries["job"].record == before


def test_i1_nor_does_a_grant_whose_reply_was_lost(store: Store) -> None:
    holder, other = replica(store), replica(store)
    lease = acquired(holder, LockRequest("job", "1m"))
    first = len(store.commands)
    store.ahead, store.lost = {first: 120.0}, {first + 1: ConnectionResetError()}
    assert other.acquire(LockRequest("job", "1m")) is None
    assert holder.extend(lease, "1m") is lease


def test_i1_the_undo_of_such_a_grant_gives_the_record_back(store: Store) -> None:
    holder, other = replica(store), replica(store)
    lease = acquired(holder, LockRequest("job", "1m"))
    before = store.entries["job"].record
    first = len(store.commands)
    store.ahead, store.lost = {first: 120.0}, {first + 1: TimeoutError()}
    with pytest.raises(ProviderUnreachable):
        other.acquire(LockRequest("job", "1m"))
    assert store.entries["job"].record == before
    assert holder.extend(lease, "1m") is lease


@pytest.mark.parametrize("wrong", [0, 1], ids=["read", "make"])
def test_i11_a_fire_time_that_is_too_late_is_refused_by_each_clock(store: Store, wrong: int) -> None:
    provider = replica(store)
    request = LockRequest("job", "1m", fire_time=store.epoch + timedelta(minutes=50))
    store.ahead = {len(store.commands) + wrong: 3600.0}
    with pytest.raises(ProviderError, match=r"is more than .* later than the store's clock"):
        provider.acquire(request)


def test_i1_a_list_by_a_clock_that_is_ahead_prunes_nothing(store: Store) -> None:
    provider = replica(store)
    acquired(provider, LockRequest("job", "1m"))
    store.ahead = {len(store.commands): 3600.0}
    with pytest.raises(ProviderUnreachable, match="prune"):
        provider.prune("1s")
    assert "job" in store.entries


class KeepsTheTime(Store):
    """Its client serves reads by the time of an earlier reply, as on ZooKeeper, unless they are checks."""

    kept: cas.ServerTime | None = None

    def execute(self, command: cas.CasCommand, timeout: float | None) -> cas.CasReply:
        reply = super().execute(command, timeout)
        if isinstance(command, cas.Read) and not command.is_check and self.kept is not None:
            return reply._replace(time=self.kept)
        self.kept = reply.time
        return reply


@pytest.mark.parametrize("operation", ["prune", "acquire"])
def test_i1_a_check_of_the_clock_is_not_by_a_time_that_was_kept(operation: str) -> None:
    store = KeepsTheTime()
    holder, other = replica(store), replica(store)
    lease = acquired(holder, LockRequest("job", "1m"))
    before = len(store.commands)
    if operation == "prune":
        store.ahead = {before: 3600.0}  # the list
        with pytest.raises(ProviderUnreachable, match="prune"):
            other.prune("1s")
    else:
        store.kept = cas.ServerTime(store.epoch + timedelta(hours=2), store.clock(), store.clock())
        assert other.acquire(LockRequest("job", "1m")) is None
    assert set(store.commands[before:]) <= {"List", "Read"}
    assert holder.extend(lease, "1m") is not None
