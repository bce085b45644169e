"""What replies come to, without servers: votes counted, records seen together, and the steps of a program."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import ConfigurationError, LockRecord, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.kit import Undo
from shedlock_py.providers.redis.quorum.broadcast import NoReply, NotAddressed, OnEach, Pause
from shedlock_py.providers.redis.quorum.merged import is_decided, merged_record
from shedlock_py.providers.redis.quorum.programs import QuorumPrograms
from shedlock_py.providers.redis.quorum.tally import (
    HELD,
    OTHER,
    QUARANTINED,
    RAN,
    TOO_LATE,
    VOTED,
    Verdict,
    VoteTally,
)

US, A, B = (b"host#" + digit * 32 for digit in (b"7", b"1", b"9"))
ours, held_a, held_b, vote_a, vote_b = (VOTED, 5), (HELD, A), (HELD, B), (OTHER, A), (OTHER, B)
SILENT = NoReply("no reply")
ran, quarantined, too_late, silent = (RAN, b""), (QUARANTINED, 5000), (TOO_LATE, b""), SILENT

# The replies, the verdict, and whether servers that are silent so far need not be waited for.
TABLE: list[tuple[list[Any], Verdict, bool]] = [
    ([ours, ours, ours], Verdict.WON, True),
    ([ours, ours, silent], Verdict.WON, True),
    ([ours, ours, held_a], Verdict.WON, True),
    ([ours, ours, vote_a], Verdict.WON, True),
    ([ours, ours, quarantined], Verdict.WON, True),
    ([ours, ours, ran], Verdict.WON, True),
    ([held_a, held_a, silent], Verdict.SKIP, True),
    ([held_a, held_a, ours], Verdict.SKIP, True),
    ([held_a, ours, silent], Verdict.SKIP, False),  # a's lease may be on the third
    ([held_a, ours, quarantined], Verdict.SKIP, True),  # or may have been
    ([held_a, vote_a, ours], Verdict.SKIP, True),  # a is being granted
    ([held_a, ours, vote_b], Verdict.SPLIT, True),  # a is a remnant
    ([held_a, held_b, ours], Verdict.SPLIT, True),
    ([vote_a, vote_a, ours], Verdict.SKIP, True),
    ([vote_a, vote_a, silent], Verdict.SKIP, True),
    ([vote_a, ours, silent], Verdict.SPLIT, True),  # a vote that is not known gives nobody a lease
    ([vote_a, ours, vote_b], Verdict.SPLIT, True),
    ([ran, ran, ours], Verdict.SKIP, True),
    ([ran, ours, silent], Verdict.IMPOSSIBLE, False),  # a claim that failed may have left it on the first
    ([ran, ours, quarantined], Verdict.IMPOSSIBLE, True),
    ([held_a, silent, silent], Verdict.IMPOSSIBLE, False),  # too few to say that it is held
    ([ran, silent, silent], Verdict.IMPOSSIBLE, False),
    ([ran, ours, vote_a], Verdict.SPLIT, True),
    ([ours, silent, silent], Verdict.IMPOSSIBLE, False),
    ([ours, quarantined, silent], Verdict.IMPOSSIBLE, False),
    ([ours, quarantined, quarantined], Verdict.IMPOSSIBLE, True),
    ([quarantined] * 3, Verdict.IMPOSSIBLE, True),
    ([silent] * 3, Verdict.IMPOSSIBLE, False),
    ([ours, ours, vote_a, vote_a, vote_b], Verdict.SPLIT, True),
    ([ours, ours, vote_a, vote_a, silent], Verdict.SPLIT, True),
    ([ours, ours, silent, silent, silent], Verdict.IMPOSSIBLE, False),
    ([ours, ours, held_a, silent, silent], Verdict.SKIP, False),
    ([ours, ours, held_a, held_b, silent], Verdict.SPLIT, True),
    ([ours, ours, held_a, held_a, silent], Verdict.SKIP, False),
    ([ours, ours, held_a, held_a, held_a], Verdict.SKIP, True),
    ([ours, ours, ours, held_a, held_a], Verdict.WON, True),
    ([ran, ran, ours, ours, silent], Verdict.IMPOSSIBLE, False),
    ([ran, ran, ours, ours, ours], Verdict.WON, True),
    ([vote_a, vote_a, held_a, ours, ours], Verdict.SKIP, True),
    ([too_late, too_late, too_late], Verdict.IMPOSSIBLE, True),
    ([too_late, too_late, ours], Verdict.IMPOSSIBLE, True),
    ([too_late, too_late, silent], Verdict.IMPOSSIBLE, True),
    ([too_late, ours, ours], Verdict.WON, True),
    ([too_late, ours, vote_a], Verdict.SPLIT, True),
    ([too_late, held_a, held_a], Verdict.SKIP, True),
    ([too_late, held_a, ours], Verdict.SPLIT, True),  # a has no majority: the first would say that it is held
    ([too_late, ran, ran], Verdict.SKIP, True),
    ([too_late, ours, silent], Verdict.IMPOSSIBLE, False),
]


@pytest.mark.parametrize(("replies", "verdict", "is_settled"), TABLE)
def test_verdict(replies: list[Any], verdict: Verdict, is_settled: bool) -> None:
    for first in range(len(replies)):  # no server is special
        tally = VoteTally(US, replies[first:] + replies[:first])
        assert (tally.verdict(), tally.is_settled()) == (verdict, is_settled)


def test_the_token_is_the_greatest_that_a_voter_could_give() -> None:
    tally = VoteTally(US, [(VOTED, 7), (VOTED, 9), (HELD, A), (VOTED, 8), silent])
    assert (tally.token, tally.voters) == (9, frozenset({0, 1, 3}))


def test_one_claim_of_a_split_is_ahead() -> None:
    assert VoteTally(US, [ours, ours, vote_a, vote_a, silent]).is_ahead(), "7 comes after 1"
    assert not VoteTally(US, [ours, ours, vote_b, vote_b, silent]).is_ahead()
    assert VoteTally(US, [ours, ours, vote_b, vote_a, silent]).is_ahead(), "more votes"
    assert not VoteTally(US, [ours, vote_a, vote_a, vote_b, silent]).is_ahead(), "fewer votes"
    assert not VoteTally(US, [vote_a, vote_b, silent]).is_ahead()
    assert VoteTally(US, [ours, held_a, held_b]).is_ahead(), "there is no other claim"
    for first, second in ((US, A), (US, B), (A, B)):
        mine = VoteTally(first, [ours, (OTHER, second), silent]).is_ahead()
        assert mine is not VoteTally(second, [(OTHER, first), ours, silent]).is_ahead(), "exactly one"


def test_why_not() -> None:
    tally = VoteTally(US, [ours, (QUARANTINED, 61_500), OSError("no route")])
    assert "1 of 3 servers did not reply (no route)" in tally.why_not()
    assert "1 of 3 are in quarantine for 0:01:01 or longer" in tally.why_not()
    assert isinstance(tally.cause, OSError)
    assert VoteTally(US, [quarantined] * 3).cause is None


# merged_record()

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def record(claim: str, left: float, token: int = 1) -> LockRecord:
    return LockRecord(NAME, claim, NOW, NOW + timedelta(seconds=left), token, None, NOW)


NAME = "job"
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
        ([a, free_b], 3, ("a", True)),  # it may be on the third
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
def test_merged_record(found: list[LockRecord | None], size: int, expected: tuple[str, bool] | None) -> None:
    for first in range(max(1, len(found))):
        merged = merged_record(found[first:] + found[:first], size)
        assert (merged and (merged.locked_by, merged.is_held)) == expected


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
def test_is_decided(found: list[LockRecord | None], size: int, expected: bool) -> None:
    """Whether the servers that have not replied can change what is shown."""
    assert is_decided(found, size) is expected


def test_the_times_shown_are_those_a_majority_outlasts() -> None:
    merged = merged_record([record("a", 10, 5), record("a", 30, 7), record("a", 20, 6)], 3)
    assert merged is not None
    assert (merged.remaining, merged.fencing_token) == (timedelta(seconds=20), 7)


# The steps of a program


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def of_three(clock: Clock) -> QuorumPrograms:
    return QuorumPrograms(3, "shedlock", "1h", clock=clock)


def test_i6_trust_counts_from_before_the_second_round(clock: Clock) -> None:
    program = of_three(clock).acquire(LockRequest(NAME, "100s"))
    next(program)
    clock.now = 5
    program.send([ours] * 3)
    clock.now = 8
    with pytest.raises(StopIteration) as done:
        program.send([1, 1, 0])
    lease = done.value.value
    assert lease.fencing_token == 5
    assert lease.trusted_for().total_seconds() == pytest.approx(5 + 99 - 0.002 - 8, abs=1e-6)


def test_i7_a_take_over_needs_a_majority_that_has_forgotten_nothing_to_know_the_token(clock: Clock) -> None:
    """A majority that replies first may have one in it that was emptied, whose clock is behind."""
    program = of_three(clock).take_over(LockRequest(NAME, "100s"))
    read = next(program)
    assert isinstance(read, OnEach)
    assert read.is_settled is not None
    emptied, knows, ahead = [50, b"", 50, 0, b"e"], [51, b"20", 51, 1, b"k"], [40, b"70", 71, 1, b"a"]
    for replies in ([knows, emptied, SILENT], [emptied, emptied, SILENT], [emptied] * 3, [knows, SILENT, SILENT]):
        assert not read.is_settled(replies), "the others are waited for"
    assert read.is_settled([knows, ahead, SILENT])
    confirmation = program.send([emptied, knows, ahead])
    assert isinstance(confirmation, OnEach)
    assert confirmation.only == frozenset({1, 2}), "one that forgets is not a part of this majority"
    calls = [call_of(confirmation, number) for number in (1, 2)]
    assert [(call.args[3], *call.args[6:]) for call in calls] == [(71, b"20", b"k"), (71, b"70", b"a")]


def test_i2_a_take_over_is_confirmed_only_by_servers_whose_record_it_has_read(clock: Clock) -> None:
    program = of_three(clock).take_over(LockRequest(NAME, "100s"))
    next(program)
    confirmation = program.send([[51, b"20", 51, 1, b""], SILENT, [40, b"70", 71, 1, b""]])
    assert isinstance(confirmation, OnEach)
    assert confirmation.only == frozenset({0, 2})
    assert isinstance(program.send([1, NotAddressed(), 0]), Pause), "the record of one has changed: read again"
    assert isinstance(program.send(None), OnEach)


@pytest.mark.parametrize("operation", ["acquire", "take_over"])
def test_i11_a_fire_time_that_is_too_late_for_a_majority(clock: Clock, operation: str) -> None:
    request = LockRequest(NAME, "100s", fire_time=datetime(2026, 1, 1, tzinfo=UTC))
    early, late = 1_700_000_000_000_000, 1_800_000_000_000_000
    programs = of_three(clock)
    behind, right = [early, b"", early, 1, b""], [late, b"", late, 1, b""]
    cases: dict[str, list[list[Any]]] = {
        "acquire": [[too_late, too_late, ours], [too_late, too_late, SILENT]],
        "take_over": [[behind, behind, right], [behind, behind, SILENT]],
    }
    for replies in cases[operation]:
        program = getattr(programs, operation)(request)
        next(program)
        assert isinstance(program.send(replies), Undo)
        with pytest.raises(ProviderError, match="later than the store's clock") as caught:
            program.send(None)
        assert not isinstance(caught.value, ProviderUnreachable)


def test_i5_silent_servers_are_not_blamed_on_the_fire_time(clock: Clock) -> None:
    program = of_three(clock).acquire(LockRequest(NAME, "100s", fire_time=NOW))
    next(program)
    assert isinstance(program.send([too_late, SILENT, quarantined]), Undo)
    with pytest.raises(ProviderUnreachable, match="1 of 3 servers did not reply"):
        program.send(None)


def test_only_voters_are_asked_to_confirm(clock: Clock) -> None:
    program = of_three(clock).acquire(LockRequest(NAME, "100s"))
    next(program)
    confirmation = program.send([ours, held_a, ours])
    assert isinstance(confirmation, OnEach)
    assert confirmation.only == frozenset({0, 2})


@pytest.mark.parametrize("replies", [[1, 0, 0], [0, 0, NotAddressed()], [0, SILENT, 0]])
def test_a_claim_that_was_not_confirmed_is_undone_and_gets_a_new_id(clock: Clock, replies: list[Any]) -> None:
    """What was sent for it may arrive late, and must not fit the votes of the next try."""
    program = of_three(clock).acquire(LockRequest(NAME, "100s"))
    first = locked_by(next(program))
    program.send([ours] * 3)
    assert locked_by(program.send(replies)) == first, "the undo"
    assert isinstance(program.send([1, 0, 0]), Pause)
    assert locked_by(program.send(None)) != first


def test_a_split_ends_in_an_error_after_as_long_as_a_vote_lasts(clock: Clock) -> None:
    program = of_three(clock).acquire(LockRequest(NAME, "100s"))
    next(program)
    for _ in range(50):
        assert isinstance(program.send([ours, held_a, held_b]), Pause)
        program.send(None)
    clock.now = 3.1
    assert isinstance(program.send([ours, held_a, held_b]), Pause), "asked while a vote of the dead may have lasted"
    program.send(None)
    program.send([ours, held_a, held_b])  # undone
    with pytest.raises(ProviderUnreachable, match="the servers are divided"):
        program.send([0, 0, 0])


@pytest.mark.parametrize(
    ("replies", "is_lost"),
    [([1, 1, 0], False), ([0, 0, 1], True), ([0, 0, SILENT], True), ([1, 1], False)],
)
def test_extend_counts_a_majority(clock: Clock, replies: list[Any], is_lost: bool) -> None:
    programs = of_three(clock)
    lease = granted(programs)
    program = programs.extend(lease, "100s")
    next(program)
    with pytest.raises(StopIteration) as done:
        program.send(replies)
    assert done.value.value is (None if is_lost else lease)
    assert lease.is_trusted() is not is_lost


@pytest.mark.parametrize(
    "replies",
    [[1, 0, SILENT], [1, SILENT, SILENT], [SILENT] * 3],
)
def test_i5_extend_does_not_know(clock: Clock, replies: list[Any]) -> None:
    programs = of_three(clock)
    lease = granted(programs)
    program = programs.extend(lease, "100s")
    next(program)
    with pytest.raises(ProviderUnreachable):
        program.send(replies)
    assert lease.is_trusted(), "until its old end"


@pytest.mark.parametrize(
    ("replies", "is_done"),
    [([1, 1, 0], True), ([1, 0, 0], False), ([1, 0, SILENT], True), ([0, 0, 0], False)],
)
def test_release_counts_a_majority(clock: Clock, replies: list[Any], is_done: bool) -> None:
    programs = of_three(clock)
    program = programs.release(granted(programs))
    next(program)
    with pytest.raises(StopIteration) as done:
        program.send(replies)
    assert done.value.value is is_done


@pytest.mark.parametrize("size", [1, 2, 4])
def test_even_numbers_are_refused(clock: Clock, size: int) -> None:
    with pytest.raises(ConfigurationError, match="an odd number of servers"):
        QuorumPrograms(size, "shedlock", "1h", clock=clock)


def granted(programs: QuorumPrograms) -> Any:
    program = programs.acquire(LockRequest(NAME, "100s"))
    next(program)
    program.send([ours] * 3)
    with pytest.raises(StopIteration) as done:
        program.send([1] * 3)
    return done.value.value


def locked_by(command: Any) -> Any:
    """Whom a command speaks for."""
    return call_of(command).args[0]


def call_of(command: Any, number: int = 0) -> Any:
    """The script that a server is to run."""

    class Server:
        pass

    server: Any = Server()
    server.number = number
    return next(command.program(server))
