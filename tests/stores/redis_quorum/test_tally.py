"""Decisions from replies, without servers: votes, merged records, and a program's steps."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from shedlock_py import ConfigurationError, LockRecord, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.kit import TimedOut, Undo, locking
from shedlock_py.providers.redis.quorum.broadcast import NoReply, NotAddressed, OnEach, Pause
from shedlock_py.providers.redis.quorum.majority import (
    HELD,
    NO_SUCH_RUN,
    OTHER,
    QUARANTINED,
    RAN,
    TOO_LATE,
    VOTED,
    Majority,
    Verdict,
    VoteTally,
    are_decided,
    merged_records,
)
from shedlock_py.providers.redis.quorum.quorum_programs import QuorumPrograms
from shedlock_py.testing import FakeClock

MINE, A, B = (b"host#" + digit * 32 for digit in (b"7", b"1", b"9"))
voted, held_a, held_b, vote_a, vote_b = (VOTED, 5), (HELD, A), (HELD, B), (OTHER, A), (OTHER, B)
SILENT = NoReply("no reply")
ran, quarantined, too_late, silent = (RAN, b""), (QUARANTINED, 5000), (TOO_LATE, b""), SILENT
absent = (NO_SUCH_RUN, b"")

# The replies, the verdict, and whether the broadcast may stop waiting for the silent servers.
TABLE: list[tuple[list[Any], Verdict, bool]] = [
    ([voted, voted, voted], Verdict.WON, True),
    ([voted, voted, silent], Verdict.WON, True),
    ([voted, voted, held_a], Verdict.WON, True),
    ([voted, voted, vote_a], Verdict.WON, True),
    ([voted, voted, quarantined], Verdict.WON, True),
    ([voted, voted, ran], Verdict.WON, True),
    ([held_a, held_a, silent], Verdict.SKIP, True),
    ([held_a, held_a, voted], Verdict.SKIP, True),
    ([held_a, voted, silent], Verdict.SKIP, False),  # the third may have a's lease
    ([held_a, voted, quarantined], Verdict.SKIP, True),  # the third may have had a's lease
    ([held_a, vote_a, voted], Verdict.SKIP, True),  # a is about to get the lease
    ([held_a, voted, vote_b], Verdict.SPLIT, True),  # a is a remnant
    ([held_a, held_b, voted], Verdict.SPLIT, True),
    ([vote_a, vote_a, voted], Verdict.SKIP, True),
    ([vote_a, vote_a, silent], Verdict.SKIP, True),
    ([vote_a, voted, silent], Verdict.SPLIT, True),  # an unknown vote gives no claim a lease
    ([vote_a, voted, vote_b], Verdict.SPLIT, True),
    ([ran, ran, voted], Verdict.SKIP, True),
    ([ran, voted, silent], Verdict.IMPOSSIBLE, False),  # a claim that failed may have left it on the first
    ([ran, voted, quarantined], Verdict.IMPOSSIBLE, True),
    ([held_a, silent, silent], Verdict.IMPOSSIBLE, False),  # too few to say that it is held
    ([ran, silent, silent], Verdict.IMPOSSIBLE, False),
    ([ran, voted, vote_a], Verdict.SPLIT, True),
    ([voted, silent, silent], Verdict.IMPOSSIBLE, False),
    ([voted, quarantined, silent], Verdict.IMPOSSIBLE, False),
    ([voted, quarantined, quarantined], Verdict.IMPOSSIBLE, True),
    ([quarantined] * 3, Verdict.IMPOSSIBLE, True),
    ([silent] * 3, Verdict.IMPOSSIBLE, False),
    ([voted, voted, vote_a, vote_a, vote_b], Verdict.SPLIT, True),
    ([voted, voted, vote_a, vote_a, silent], Verdict.SPLIT, True),
    ([voted, voted, silent, silent, silent], Verdict.IMPOSSIBLE, False),
    ([voted, voted, held_a, silent, silent], Verdict.SKIP, False),
    ([voted, voted, held_a, held_b, silent], Verdict.SPLIT, True),
    ([voted, voted, held_a, held_a, silent], Verdict.SKIP, False),
    ([voted, voted, held_a, held_a, held_a], Verdict.SKIP, True),
    ([voted, voted, voted, held_a, held_a], Verdict.WON, True),
    ([ran, ran, voted, voted, silent], Verdict.IMPOSSIBLE, False),
    ([ran, ran, voted, voted, voted], Verdict.WON, True),
    ([vote_a, vote_a, held_a, voted, voted], Verdict.SKIP, True),
    ([too_late, too_late, too_late], Verdict.IMPOSSIBLE, True),
    ([too_late, too_late, voted], Verdict.IMPOSSIBLE, True),
    ([too_late, too_late, silent], Verdict.IMPOSSIBLE, True),
    ([too_late, voted, voted], Verdict.WON, True),
    ([too_late, voted, vote_a], Verdict.SPLIT, True),
    ([too_late, held_a, held_a], Verdict.SKIP, True),
    ([too_late, held_a, voted], Verdict.SPLIT, True),  # a has no majority: the first server would report it as held
    ([too_late, ran, ran], Verdict.SKIP, True),
    ([too_late, voted, silent], Verdict.IMPOSSIBLE, False),
]


@pytest.mark.parametrize(("replies", "verdict", "is_settled"), TABLE)
def test_the_verdict_on_the_votes(replies: list[Any], verdict: Verdict, is_settled: bool) -> None:
    for first in range(len(replies)):  # the order of servers does not matter
        tally = VoteTally(MINE, replies[first:] + replies[:first])
        assert (tally.verdict(), tally.is_settled()) == (verdict, is_settled)


RECOVERIES: list[tuple[list[Any], Verdict, bool]] = [
    ([voted, voted, absent], Verdict.WON, True),
    ([voted, voted, silent], Verdict.WON, True),
    ([voted, voted, ran], Verdict.SKIP, True),  # the holder's release did not reach the other servers
    ([ran, silent, silent], Verdict.SKIP, True),
    ([absent, absent, voted], Verdict.SKIP, True),
    ([absent, absent, silent], Verdict.SKIP, True),
    ([absent, voted, silent], Verdict.IMPOSSIBLE, False),  # the third may have it
    ([absent, voted, quarantined], Verdict.IMPOSSIBLE, True),
    ([held_a, held_a, absent], Verdict.SKIP, True),
    ([vote_a, vote_a, voted], Verdict.SKIP, True),
    ([absent, voted, vote_a], Verdict.SPLIT, True),  # the vote will expire
]


@pytest.mark.parametrize(("replies", "verdict", "is_settled"), RECOVERIES)
def test_the_verdict_on_the_votes_for_a_recovery(replies: list[Any], verdict: Verdict, is_settled: bool) -> None:
    for first in range(len(replies)):
        tally = VoteTally(MINE, replies[first:] + replies[:first], recovers=True)
        assert (tally.verdict(), tally.is_settled()) == (verdict, is_settled)


def test_the_token_is_the_greatest_that_a_voter_could_give() -> None:
    tally = VoteTally(MINE, [(VOTED, 7), (VOTED, 9), (HELD, A), (VOTED, 8), silent])
    assert (tally.token, tally.voters) == (9, frozenset({0, 1, 3}))


def test_one_claim_of_a_split_is_ahead() -> None:
    assert VoteTally(MINE, [voted, voted, vote_a, vote_a, silent]).is_ahead(), "7 comes after 1"
    assert not VoteTally(MINE, [voted, voted, vote_b, vote_b, silent]).is_ahead()
    assert VoteTally(MINE, [voted, voted, vote_b, vote_a, silent]).is_ahead(), "more votes"
    assert not VoteTally(MINE, [voted, vote_a, vote_a, vote_b, silent]).is_ahead(), "fewer votes"
    assert not VoteTally(MINE, [vote_a, vote_b, silent]).is_ahead()
    assert VoteTally(MINE, [voted, held_a, held_b]).is_ahead(), "there is no other claim"
    for first, second in ((MINE, A), (MINE, B), (A, B)):
        mine = VoteTally(first, [voted, (OTHER, second), silent]).is_ahead()
        assert mine is not VoteTally(second, [(OTHER, first), voted, silent]).is_ahead(), "exactly one"


def test_the_error_says_what_each_server_lacks() -> None:
    tally = VoteTally(MINE, [voted, (QUARANTINED, 61_500), OSError("no route")])
    assert "1 of 3 servers did not reply (no route)" in tally.why_not()
    assert "1 of 3 are in quarantine for 0:01:01 or longer" in tally.why_not()
    assert [type(error) for error in tally.errors] == [OSError]


# merged_records()

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def record(claim: str, left: float, token: int = 1) -> LockRecord:
    return LockRecord(NAME, claim, NOW, NOW + timedelta(seconds=left), token, None, NOW)


def replies(found: list[LockRecord | None]) -> list[list[LockRecord]]:
    """Make the replies of servers with at most one record."""
    return [[] if each is None else [each] for each in found]


NAME = "job"
REQUEST = LockRequest(NAME, "100s")
a, b, free_a, free_b = record("a", 60, 2), record("b", 60, 1), record("a", -60, 2), record("b", -60, 1)


@pytest.mark.parametrize(
    ("found", "size", "expected"),
    [
        ([a, a, a], 3, ("a", True)),
        ([a, a, None], 3, ("a", True)),
        ([a, None, None], 3, None),
        ([a, free_b, free_b], 3, ("b", False)),  # a is a remnant
        ([free_a, b, b], 3, ("b", True)),
        ([free_a, free_b, free_b], 3, ("b", False)),
        ([a, free_b], 3, ("a", True)),  # the third may have it
        ([a, None], 3, ("a", True)),
        ([free_a, None], 3, ("a", False)),
        ([None, None], 3, None),
        ([free_a, free_a, a], 3, ("a", False)),  # released, but not on the third
        ([free_a, a, a], 3, ("a", True)),
        ([a, a, free_b, free_b, free_b], 5, ("b", False)),
        ([a, a, a, b, b], 5, ("a", True)),
        ([a, b, b, b, None], 5, ("b", True)),
        ([a, a, None, None, None], 5, None),
        ([], 3, None),
    ],
)
def test_a_lock_is_shown_as_held_if_a_majority_may_hold_it(
    found: list[LockRecord | None], size: int, expected: tuple[str, bool] | None
) -> None:
    for first in range(max(1, len(found))):
        merged = merged_records(replies(found[first:] + found[:first]), Majority(size))
        assert [(record.locked_by, record.is_held) for record in merged] == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("found", "size", "expected"),
    [
        ([a, a], 3, True),
        ([a, None], 3, False),
        ([a, free_a], 3, False),
        ([None, None], 3, True),
        ([a, b, free_b], 3, False),
        ([a, a, b, b], 5, False),
        ([a, b, a, a], 5, True),
        ([], 3, False),
    ],
)
def test_replies_decide_if_no_other_server_can_change_what_is_shown(
    found: list[LockRecord | None], size: int, expected: bool
) -> None:
    assert are_decided(replies(found), Majority(size)) is expected


def test_the_times_shown_are_those_a_majority_outlasts() -> None:
    (merged,) = merged_records(replies([record("a", 10, 5), record("a", 30, 7), record("a", 20, 6)]), Majority(3))
    assert (merged.remaining, merged.fencing_token) == (timedelta(seconds=20), 7)


def test_a_lock_that_has_ended_shows_the_same_times_whether_a_minority_still_holds_it_or_not() -> None:
    ended = [record("a", -2), record("a", -1)]
    (before,) = merged_records(replies([*ended, record("a", 0.001)]), Majority(3))
    (after,) = merged_records(replies([*ended, record("a", -0.001)]), Majority(3))
    assert before.lock_until == after.lock_until == ended[1].lock_until


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([False, False, None], False),  # None for a server without a record
        ([False, True, None], True),
        ([False, "silent", None], False),  # the silent server may have it
        ([False, "other", "another"], None),
        ([True, "other", "another"], True),
    ],
)
def test_i14_a_run_was_ended_if_one_server_says_so_and_is_dead_if_a_majority_has_it(
    found: list[Any], expected: bool | None
) -> None:
    servers = [
        replace(free_a if isinstance(each, bool) else record(str(each), -60), is_released=each is True)
        for each in found
        if each not in (None, "silent")
    ]
    empty = [None] * found.count(None)
    (merged,) = merged_records(replies([*servers, *empty]), Majority(3))
    assert (merged.locked_by, merged.is_released) == ("a", expected)


@pytest.mark.parametrize("undone", [1, 2])
def test_i14_a_run_that_is_being_undone_was_not_ended(undone: int) -> None:
    """The first servers have already given the fire time back, the last have not."""
    claimed = replace(record("a", 60), last_fire_time=NOW, is_released=False)
    given_back = replace(claimed, lock_until=NOW, last_fire_time=None, is_released=True)
    (merged,) = merged_records([[given_back]] * undone + [[claimed]] * (3 - undone), Majority(3))
    assert (merged.last_fire_time, merged.is_released) == (NOW, False)


# The steps of a program


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def programs(clock: FakeClock) -> QuorumPrograms:
    return QuorumPrograms(3, "shedlock", "1h", clock=clock)


def result(program: Any, *replies: list[Any]) -> Any:
    """Return the program's result for these replies."""
    next(program)
    for each in replies[:-1]:
        program.send(each)
    with pytest.raises(StopIteration) as done:
        program.send(replies[-1])
    return done.value.value


def granted(programs: QuorumPrograms) -> Any:
    return result(locking.acquire(programs, REQUEST), [voted] * 3, [1] * 3)


def call_of(command: Any, number: int = 0) -> Any:
    """Return the script call for a server."""
    server: Any = SimpleNamespace(number=number)
    return next(command.program(server))


def locked_by(command: Any) -> Any:
    return call_of(command).args[0]


def test_i1_a_server_under_two_names_is_no_majority(programs: QuorumPrograms) -> None:
    program = locking.acquire(programs, REQUEST)
    next(program)
    undo = program.send([(VOTED, 5, b"run id"), (VOTED, 5, b"run id"), SILENT])
    assert isinstance(undo, Undo), "nothing is confirmed"
    with pytest.raises(ProviderError, match="two of these servers are the same server"):
        program.send(None)


def test_i6_trust_counts_from_before_the_second_broadcast(programs: QuorumPrograms, clock: FakeClock) -> None:
    program = locking.acquire(programs, REQUEST)
    next(program)
    clock.advance(5)
    confirmation = program.send([voted, held_a, voted])
    assert confirmation.only == frozenset({0, 2}), "the voters only"
    clock.advance(3)
    with pytest.raises(StopIteration) as done:
        program.send([1, NotAddressed(), 1])
    lease = done.value.value
    assert lease.fencing_token == 5
    assert lease.trusted_for().total_seconds() == pytest.approx(99 - 0.002 - 3, abs=1e-5)


def test_i7_a_take_over_needs_a_majority_that_has_forgotten_nothing_to_know_the_token(programs: QuorumPrograms) -> None:
    """A majority that replies first may contain a server that was emptied, whose clock is behind."""
    program = locking.take_over(programs, REQUEST)
    read: Any = next(program)
    emptied, knows, ahead = [50, b"", 50, 0, b"e"], [51, b"20", 51, 1, b"k"], [40, b"70", 71, 1, b"a"]
    for replies in ([knows, emptied, SILENT], [emptied, emptied, SILENT], [emptied] * 3, [knows, SILENT, SILENT]):
        assert not read.is_settled(replies), "the broadcast waits for the others"
    assert read.is_settled([knows, ahead, SILENT])
    confirmation = program.send([emptied, knows, ahead])
    assert confirmation.only == frozenset({1, 2}), "an emptied server is not a part of this majority"
    calls = [call_of(confirmation, number) for number in (1, 2)]
    assert [(call.args[3], *call.args[6:]) for call in calls] == [(71, b"20", b"k"), (71, b"70", b"a")]


def test_i2_a_take_over_is_confirmed_only_by_servers_whose_record_it_has_read(programs: QuorumPrograms) -> None:
    program = locking.take_over(programs, REQUEST)
    next(program)
    confirmation = program.send([[51, b"20", 51, 1, b""], SILENT, [40, b"70", 71, 1, b""]])
    assert confirmation.only == frozenset({0, 2})
    assert isinstance(program.send([1, NotAddressed(), 0]), Pause), "one server's record has changed"
    assert isinstance(program.send(None), OnEach), "read again"


@pytest.mark.parametrize("replies", [[1, 0, 0], [0, 0, 0], [0, SILENT, 0], [1, NotAddressed(), 0]])
def test_i1_a_take_over_that_was_not_confirmed_frees_no_server_and_gets_a_new_id(
    programs: QuorumPrograms, replies: Any
) -> None:
    """Several at once may have replaced the former holder on every server, and it still trusts its lease."""
    program = locking.take_over(programs, REQUEST)
    next(program)
    reading: list[Any] = [[51, b"20", 51, 1, b""]] * 3
    first = locked_by(program.send(reading))
    assert isinstance(program.send(replies), Pause)
    program.send(None)  # the next command reads
    assert locked_by(program.send(reading)) != first, "a server that has confirmed gets the next token"
    program.close()


@pytest.mark.parametrize("replies", [[1, SILENT, SILENT], [1, SILENT, 0], [0, SILENT, SILENT]])
def test_i1_a_take_over_whose_outcome_is_unknown_frees_no_server(programs: QuorumPrograms, replies: Any) -> None:
    program = locking.take_over(programs, REQUEST)
    next(program)
    program.send([[51, b"20", 51, 1, b""]] * 3)
    with pytest.raises(ProviderUnreachable):
        program.send(replies)


@pytest.mark.parametrize("error", [TimedOut("a reply", sent=True), KeyboardInterrupt()], ids=["time limit", "Ctrl-C"])
def test_i1_a_take_over_that_is_interrupted_frees_no_server(programs: QuorumPrograms, error: BaseException) -> None:
    program = locking.take_over(programs, REQUEST)
    next(program)
    program.send([[51, b"20", 51, 1, b""]] * 3)
    with pytest.raises((ProviderUnreachable, KeyboardInterrupt)):
        program.throw(error)


def test_a_take_over_that_is_too_long_is_refused_before_anything_is_sent(programs: QuorumPrograms) -> None:
    with pytest.raises(ConfigurationError, match="longest_lease"):
        next(locking.take_over(programs, LockRequest(NAME, "25h")))


EARLY, LATE = ([clock, b"", clock, 1, b""] for clock in (1_700_000_000_000_000, 1_800_000_000_000_000))


@pytest.mark.parametrize(
    ("operation", "replies", "why"),
    [
        ("acquire", [too_late, too_late, voted], "later than the store's clock"),
        ("acquire", [too_late, too_late, SILENT], "later than the store's clock"),
        ("acquire", [too_late, SILENT, quarantined], "1 of 3 servers did not reply"),
        ("take_over", [EARLY, EARLY, LATE], "later than the store's clock"),
        ("take_over", [EARLY, EARLY, SILENT], "later than the store's clock"),
    ],
)
def test_i11_a_fire_time_that_is_too_late_for_a_majority(
    programs: QuorumPrograms, operation: str, replies: list[Any], why: str
) -> None:
    program = getattr(locking, operation)(programs, LockRequest(NAME, "100s", fire_time=NOW))
    next(program)
    reply: Any = replies
    if operation == "acquire":  # take-overs are not undone
        assert isinstance(program.send(replies), Undo)
        reply = None
    with pytest.raises(ProviderError, match=why) as caught:
        program.send(reply)
    assert isinstance(caught.value, ProviderUnreachable) is ("did not reply" in why)


@pytest.mark.parametrize("replies", [[1, 0, 0], [0, 0, NotAddressed()], [0, SILENT, 0]])
def test_a_claim_that_was_not_confirmed_is_undone_and_gets_a_new_id(programs: QuorumPrograms, replies: Any) -> None:
    """What was sent for it may arrive late, and must not fit the votes of the next try."""
    program = locking.acquire(programs, REQUEST)
    first = locked_by(next(program))
    program.send([voted] * 3)
    assert locked_by(program.send(replies)) == first, "the undo"
    assert isinstance(program.send([1, 0, 0]), Pause)
    assert locked_by(program.send(None)) != first


def test_a_split_ends_in_an_error_after_as_long_as_a_vote_lasts(programs: QuorumPrograms, clock: FakeClock) -> None:
    program = locking.acquire(programs, REQUEST)
    next(program)
    for _ in range(50):
        assert isinstance(program.send([voted, held_a, held_b]), Pause)
        program.send(None)
    clock.advance(3.1)
    assert isinstance(program.send([voted, held_a, held_b]), Pause), "sent while a vote of the dead may have lasted"
    program.send(None)
    program.send([voted, held_a, held_b])  # the claim is undone
    with pytest.raises(ProviderUnreachable, match="the servers are divided"):
        program.send([0, 0, 0])


@pytest.mark.parametrize(
    ("replies", "is_extended", "is_released"),
    [
        ([1, 1, 0], True, True),
        ([1, 1, SILENT], True, True),
        ([0, 0, 1], False, False),
        ([0, 0, SILENT], False, False),
        ([1, 0, SILENT], None, True),
        ([1, SILENT, SILENT], None, None),
        ([SILENT] * 3, None, None),
    ],
)
def test_i5_extend_and_release_count_a_majority(
    programs: QuorumPrograms, replies: list[Any], is_extended: bool | None, is_released: bool | None
) -> None:
    """None if the outcome is unknown."""
    lease = granted(programs)
    if is_extended is None:
        with pytest.raises(ProviderUnreachable):
            result(locking.extend(programs, lease, "100s"), replies)
        assert lease.is_trusted(), "until its old end"
    else:
        assert result(locking.extend(programs, lease, "100s"), replies) is (lease if is_extended else None)
        assert lease.is_trusted() is is_extended
    lease = granted(programs)
    if is_released is None:
        with pytest.raises(ProviderUnreachable):
            result(locking.release(programs, lease), replies)
    else:
        assert result(locking.release(programs, lease), replies) is is_released


@pytest.mark.parametrize("size", [1, 2, 4])
def test_even_numbers_are_refused(size: int) -> None:
    with pytest.raises(ConfigurationError, match="an odd number of servers"):
        QuorumPrograms(size, "shedlock", "1h")
