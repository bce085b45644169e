"""Pure rules of requests, leases and records, with the test's clock."""

import dataclasses
import os
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial

import pytest

from shedlock_py import ConfigurationError, LockRecord, LockRequest
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.lease import Claim, Lease
from shedlock_py.model.request import default_holder, trust_ends, validate_holder, validate_name
from shedlock_py.testing import FakeClock
from tests.support.interleaving import interleaved

NOON = datetime(2031, 5, 1, 12, tzinfo=UTC)


def granted(clock: FakeClock, at_most: str = "10s", at_least: str = "0s", *, reply_takes: float = 0) -> Lease:
    claim = Claim(LockRequest("job", at_most, at_least), clock)
    clock.advance(reply_takes)
    return claim.granted(7)


class TestRequest:
    def test_durations_are_parsed_and_the_holder_is_filled_in(self) -> None:
        request = LockRequest("job", "10m", 30)
        assert request.lock_at_most_for == timedelta(minutes=10)
        assert request.lock_at_least_for == timedelta(seconds=30)
        assert request.holder == default_holder()
        assert request.holder.endswith(f":{os.getpid()}")
        assert request.fire_time is None

    def test_is_immutable_comparable_and_survives_pickling(self) -> None:
        request = LockRequest("job", "10m", fire_time=NOON)
        with pytest.raises(dataclasses.FrozenInstanceError):
            request.name = "other"  # type: ignore[misc]  # on purpose
        assert pickle.loads(pickle.dumps(request)) == request
        assert dataclasses.replace(request, name="other") == LockRequest("other", "10m", fire_time=NOON)
        assert len({request, LockRequest("job", "10m", fire_time=NOON)}) == 1

    def test_a_fire_time_is_kept_in_utc(self) -> None:
        there = NOON.astimezone(timezone(timedelta(hours=-7)))
        fire_time = LockRequest("job", "10m", fire_time=there).fire_time
        assert fire_time == NOON
        assert fire_time is not None
        assert fire_time.tzinfo is UTC

    @pytest.mark.parametrize("fire_time", [NOON.replace(tzinfo=None), "2031-05-01", 0])
    def test_a_naive_fire_time_is_refused(self, fire_time: object) -> None:
        with pytest.raises(ConfigurationError, match="aware datetime"):
            LockRequest("job", "10m", fire_time=fire_time)  # type: ignore[arg-type]  # on purpose

    @pytest.mark.parametrize("parse", [str, parse_duration], ids=["text", "as a guard gives them"])
    def test_at_least_longer_than_at_most_is_refused(self, parse: Callable[[str], Duration]) -> None:
        one, two = parse("1s"), parse("2s")
        with pytest.raises(ConfigurationError, match=r"lock_at_least_for \(0:00:02\) is longer than lock_at_most_for"):
            LockRequest("job", one, two)
        LockRequest("job", two, two)

    @pytest.mark.parametrize(
        ("at_most", "at_least"),
        [(timedelta(0), 0), (timedelta(-1), 0), (timedelta(days=4000), 0), (timedelta(1), timedelta(-1))],
    )
    def test_durations_as_a_guard_gives_them_are_checked(self, at_most: timedelta, at_least: Duration) -> None:
        with pytest.raises(ConfigurationError, match=r"=datetime\.timedelta"):
            LockRequest("job", at_most, at_least)
        with pytest.raises(ConfigurationError, match=r"=datetime\.timedelta"):
            LockRequest("job", at_most, at_least or timedelta(0))

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            *((name, "must be a string") for name in (None, b"job")),
            (7, "must be a string, not 7"),
            *((name, "empty or blank") for name in ("", " \t", "\u00a0")),
            ("x" * 65, "65 characters; the maximum is 64"),
            *((name, "control character") for name in ("a\x00b", "a\nb", "a\x7f", "a\x85b")),
            ("a\ud800", "lone surrogate"),
        ],
    )
    def test_a_bad_name_is_refused_in_words_that_can_be_printed(self, name: object, words: str) -> None:
        with pytest.raises(ConfigurationError, match=words) as caught:
            LockRequest(name, "10m")  # type: ignore[arg-type]  # on purpose
        assert "lock name" in str(caught.value)
        str(caught.value).encode()  # can be printed and logged

    @pytest.mark.parametrize("name", ["x", "x" * 64, "🔒" * 64, " a ", "%_*'\"{}\\", "é", "a#b"])
    def test_a_good_name_stays_as_it_is(self, name: str) -> None:
        assert validate_name(name) == name

    @pytest.mark.parametrize("holder", ["", "h" * 201, "a\nb", 5])
    def test_a_bad_holder_is_refused(self, holder: object) -> None:
        with pytest.raises(ConfigurationError, match="holder"):
            LockRequest("job", "10m", holder=holder)  # type: ignore[arg-type]  # on purpose
        assert validate_holder("h" * 200) == "h" * 200

    def test_a_long_host_name_fits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("socket.gethostname", lambda: "h" * 250)
        assert len(validate_holder(default_holder())) <= 200

    def test_a_host_name_that_no_store_can_carry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("socket.gethostname", lambda: "Büro-\udce4\t#1")  # Latin-1 where names should be UTF-8
        assert validate_holder(default_holder()) == f"Büro-??#1:{os.getpid()}"


Calls = tuple[Callable[[], object], Callable[[], object]]


def check_interleavings(clock: FakeClock, prepare: Callable[[Lease], Calls], is_right: Callable[[Lease], bool]) -> None:
    """Call the second of ``prepare``'s calls before each instruction of the first. Check the lease after both calls."""
    number, is_over = 0, False
    while not is_over:
        lease = granted(clock)
        is_over = not interleaved(*prepare(lease), number)
        assert is_over or is_right(lease), f"instruction {number}"
        number += 1
    assert number > 20


def is_untrusted(lease: Lease) -> bool:
    return not lease.is_trusted()


class TestTrust:
    def test_i6_it_counts_from_before_the_request(self, clock: FakeClock) -> None:
        lease = granted(clock, reply_takes=3)
        assert lease.trusted_for() == timedelta(seconds=9.898 - 3)

    def test_i6_it_ends_exactly(self, clock: FakeClock) -> None:
        assert trust_ends(1000.0, timedelta(seconds=10)) == pytest.approx(1009.898, abs=1e-9)
        lease = granted(clock)
        clock.advance(timedelta(seconds=9, microseconds=897_999))
        assert lease.is_trusted()
        clock.advance(timedelta(microseconds=1))
        assert not lease.is_trusted()
        assert lease.trusted_for() == timedelta(0)

    def test_i6_a_grant_that_came_too_late_is_never_trusted(self, clock: FakeClock) -> None:
        assert not granted(clock, reply_takes=9.9).is_trusted()

    @pytest.mark.parametrize("too_short", ["0.1ms", "1ms", "2ms"])
    def test_i6_a_lease_that_no_holder_could_trust_is_refused(self, clock: FakeClock, too_short: str) -> None:
        for at_most, at_least in ((too_short, 0), (parse_duration(too_short), timedelta(0))):
            with pytest.raises(ConfigurationError, match="does not trust the last 2 ms and 1% of a lease"):
                LockRequest("job", at_most, at_least)
        assert granted(clock, "3ms").is_trusted()

    def test_an_extension_counts_from_before_its_request(self, clock: FakeClock) -> None:
        lease = granted(clock)
        extension = lease._begin_extension("20s")
        assert lease.trusted_for() == timedelta(seconds=9.898)  # until the store has confirmed it
        clock.advance("2s")
        assert extension.granted() is lease
        assert lease.trusted_for() == timedelta(seconds=17.798)
        assert lease.lock_at_most_for == timedelta(seconds=20)

    @pytest.mark.parametrize(("length", "trusted"), [("1s", 0.988), ("1h", 9.898)])
    def test_i6_an_extension_whose_reply_is_lost_narrows_if_it_is_shorter(
        self, clock: FakeClock, length: str, trusted: float
    ) -> None:
        lease = granted(clock)
        lease._begin_extension(length)
        assert lease.trusted_for() == timedelta(seconds=trusted)
        assert lease.lock_at_most_for == timedelta(seconds=10)

    def test_i6_a_shorter_extension_whose_reply_was_lost_may_still_be_executed(self, clock: FakeClock) -> None:
        lease = granted(clock)
        lease._begin_extension("5s")  # it may reach the store after the next extension
        clock.advance("1s")
        assert lease._begin_extension("1h").granted().trusted_for() == timedelta(seconds=4.948)

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_of_two_extensions_at_once_the_shorter_counts(self, clock: FakeClock, order: tuple[int, int]) -> None:
        lease = granted(clock)
        extensions = [lease._begin_extension("1m"), lease._begin_extension("5s")]
        for number in order:
            extensions[number].granted()
        assert lease.trusted_for() == timedelta(seconds=4.948)

    def test_a_late_reply_to_an_older_and_shorter_extension_narrows(self, clock: FakeClock) -> None:
        lease = granted(clock)
        older, newer = lease._begin_extension("5s"), lease._begin_extension("1m")
        newer.granted()
        older.granted()
        assert lease.trusted_for() == timedelta(seconds=4.948)

    def test_i6_a_repeated_extension_may_be_executed_again_after_a_longer_one(self, clock: FakeClock) -> None:
        lease = granted(clock)
        lease._begin_extension("5s").granted(repeated=True)
        lease._begin_extension("20s").granted(repeated=True)
        clock.advance("1s")
        assert lease._begin_extension("1h").granted().trusted_for() == timedelta(seconds=4.948)

    def test_i6_an_extension_that_is_confirmed_after_a_release_began_gives_no_trust_back(
        self, clock: FakeClock
    ) -> None:
        """The store may have executed the release, but the reply was lost."""
        lease = granted(clock)
        extension = lease._begin_extension("1h")
        assert lease._begin_release() == timedelta(0)
        assert not extension.granted().is_trusted()
        assert not lease.has_ended()

    @pytest.mark.parametrize("end", ["_lose", "_begin_release", "_end"])
    def test_i6_an_extension_that_is_confirmed_while_the_lease_ends_gives_no_trust_back(
        self, clock: FakeClock, end: str
    ) -> None:
        """One thread confirms it while another thread reports the loss or releases the lease."""
        check_interleavings(
            clock, lambda lease: (lease._begin_extension("1h").granted, getattr(lease, end)), is_untrusted
        )

    @pytest.mark.parametrize("end", ["_lose", "_begin_release", "_end"])
    def test_i6_an_extension_that_begins_while_the_lease_ends_gives_no_trust_back(
        self, clock: FakeClock, end: str
    ) -> None:
        check_interleavings(
            clock, lambda lease: (partial(lease._begin_extension, "1h"), getattr(lease, end)), is_untrusted
        )

    @pytest.mark.parametrize("interrupted", ["the confirmation", "the beginning"])
    def test_i6_a_shorter_extension_begins_while_a_longer_one_is_confirmed(
        self, clock: FakeClock, interrupted: str
    ) -> None:
        """Another thread sends it. The store may execute it last, so the lease may be trusted only for its duration."""

        def calls(lease: Lease) -> Calls:
            confirm, begin = lease._begin_extension("10m").granted, partial(lease._begin_extension, "5s")
            return (confirm, begin) if interrupted == "the confirmation" else (begin, confirm)

        check_interleavings(clock, calls, lambda lease: lease.trusted_for() < timedelta(seconds=5))

    def test_an_extension_is_checked(self, clock: FakeClock) -> None:
        lease = granted(clock)
        with pytest.raises(ConfigurationError, match="lock_at_most_for='5'"):
            lease._begin_extension("5")
        assert lease.is_trusted()


class TestMinimumHold:
    def test_i4_it_counts_from_the_grant_at_the_latest(self, clock: FakeClock) -> None:
        lease = granted(clock, "10s", "4s", reply_takes=1)
        assert lease.remaining_minimum() == timedelta(seconds=4)
        clock.advance("3s")
        assert lease._begin_release() == timedelta(seconds=1)
        clock.advance("2s")
        assert lease.remaining_minimum() == timedelta(0)

    def test_i4_an_extension_never_cuts_it(self, clock: FakeClock) -> None:
        lease = granted(clock, "10s", "4s")
        clock.advance("1s")
        assert lease._begin_extension("1s").lock_for == timedelta(seconds=3)
        assert lease._begin_extension("5s").lock_for == timedelta(seconds=5)


class TestClaimAndLease:
    def test_claim_ids_are_random(self, clock: FakeClock) -> None:
        request = LockRequest("job", "10s", holder="me")
        claims = {Claim(request, clock).claim_id for _ in range(100)}
        assert len(claims) == 100
        lease = Claim(request, clock).granted(1)
        assert lease.locked_by == f"me#{lease.claim_id}"
        assert len(lease.claim_id) == 32

    def test_its_end_and_its_repr(self, clock: FakeClock) -> None:
        lease = granted(clock)
        assert "'job'" in repr(lease)
        assert "token 7" in repr(lease)
        assert "9.898 s" in repr(lease)
        lease._begin_release()
        assert (lease.is_trusted(), lease.has_ended()) == (False, False)
        lease._end()
        assert (lease.is_trusted(), lease.has_ended()) == (False, True)
        assert "released" in repr(lease)


class TestRecord:
    def record(self, locked_by: str, seconds: float = 5) -> LockRecord:
        return LockRecord("job", locked_by, NOON, NOON + timedelta(seconds=seconds), 7, None, NOON)

    def test_held_and_remaining(self) -> None:
        assert self.record("me").is_held
        assert self.record("me").remaining == timedelta(seconds=5)
        for seconds in (0, -1):
            assert not self.record("me", seconds).is_held
            assert self.record("me", seconds).remaining == timedelta(0)

    @pytest.mark.parametrize("holder", ["host:1", "a#b", "#", "a#" + "0" * 31])
    def test_holder_with_and_without_a_claim(self, holder: str) -> None:
        assert self.record(f"{holder}#{'0a' * 16}").holder == holder
        assert self.record(holder).holder == holder  # as ShedLock for Java writes it

    def test_when_it_was_read_makes_no_difference(self) -> None:
        record = self.record("me")
        assert record == dataclasses.replace(record, read_at=NOON + timedelta(days=1))
