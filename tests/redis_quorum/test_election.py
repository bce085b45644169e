"""What replies come to, without servers: votes counted, records seen together, and the steps of a program."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import ConfigurationError, LockRecord, LockRequest, ProviderUnreachable
from shedlock_py.providers.redis.election import HELD, OTHER, QUARANTINED, RAN, VOTED, Election, Verdict
from shedlock_py.providers.redis.quorum import QuorumAlgorithm
from shedlock_py.providers.redis.rounds import NoAnswer, NotAsked, OnEach, Pause
from shedlock_py.providers.redis.view import majority_view

US, A, B = (b"host#" + digit * 32 for digit in (b"7", b"1", b"9"))
ours, held_a, held_b, vote_a, vote_b = (VOTED, 5), (HELD, A), (HELD, B), (OTHER, A), (OTHER, B)
ran, quarantined, silent = (RAN, b""), (QUARANTINED, 5000), NoAnswer()

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
]


@pytest.mark.parametrize(("replies", "verdict", "is_settled"), TABLE)
def test_verdict(replies: list[Any], verdict: Verdict, is_settled: bool) -> None:
    for turn in range(len(replies)):  # no server is special
        election = Election(US, replies[turn:] + replies[:turn])
        assert (election.verdict(), election.is_settled()) == (verdict, is_settled)


def test_the_token_is_the_greatest_that_a_voter_could_give() -> None:
    election = Election(US, [(VOTED, 7), (VOTED, 9), (HELD, A), (VOTED, 8), silent])
    assert (election.token, election.voters) == (9, frozenset({0, 1, 3}))


def test_one_claim_of_a_split_is_ahead() -> None:
    assert Election(US, [ours, ours, vote_a, vote_a, silent]).is_ahead(), "7 comes after 1"
    assert not Election(US, [ours, ours, vote_b, vote_b, silent]).is_ahead()
    assert Election(US, [ours, ours, vote_b, vote_a, silent]).is_ahead(), "more votes"
    assert not Election(US, [ours, vote_a, vote_a, vote_b, silent]).is_ahead(), "fewer votes"
    assert not Election(US, [vote_a, vote_b, silent]).is_ahead()
    assert Election(US, [ours, held_a, held_b]).is_ahead(), "there is no other claim"
    for first, second in ((US, A), (US, B), (A, B)):
        mine = Election(first, [ours, (OTHER, second), silent]).is_ahead()
        assert mine is not Election(second, [(OTHER, first), ours, silent]).is_ahead(), "exactly one"


def test_why_not() -> None:
    election = Election(US, [ours, (QUARANTINED, 61_500), OSError("no route")])
    assert "1 of 3 servers did not answer (no route)" in election.why_not()
    assert "1 of 3 are in quarantine for 0:01:01 or longer" in election.why_not()
    assert isinstance(election.cause, OSError)
    assert Election(US, [quarantined] * 3).cause is None


# majority_view()

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
def test_majority_view(found: list[LockRecord | None], size: int, expected: tuple[str, bool] | None) -> None:
    for turn in range(max(1, len(found))):
        view = majority_view(found[turn:] + found[:turn], size)
        assert (view and (view.locked_by, view.is_held)) == expected


def test_the_times_shown_are_those_a_majority_outlasts() -> None:
    view = majority_view([record("a", 10, 5), record("a", 30, 7), record("a", 20, 6)], 3)
    assert view is not None
    assert (view.remaining, view.fencing_token) == (timedelta(seconds=20), 7)


# The steps of a program


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def of_three(clock: Clock) -> QuorumAlgorithm:
    return QuorumAlgorithm(3, "shedlock", "1h", clock)


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


def test_i7_a_take_over_asks_all_servers_how_far_the_tokens_are(clock: Clock) -> None:
    """A majority that answers first may have one in it that was emptied, whose clock is behind."""
    program = of_three(clock).take_over(LockRequest(NAME, "100s"))
    look = next(program)
    assert isinstance(look, OnEach)
    assert (look.only, look.is_settled) == (None, None)
    row = [b"", b"", b"", b"70", None]
    confirmation = program.send([[50, None], [51, None], [40, row]])
    assert isinstance(confirmation, OnEach)
    assert call_of(confirmation).args[3] == 71


def test_only_voters_are_asked_to_confirm(clock: Clock) -> None:
    program = of_three(clock).acquire(LockRequest(NAME, "100s"))
    next(program)
    confirmation = program.send([ours, held_a, ours])
    assert isinstance(confirmation, OnEach)
    assert confirmation.only == frozenset({0, 2})


@pytest.mark.parametrize("replies", [[1, 0, 0], [0, 0, NotAsked()], [0, NoAnswer(), 0]])
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
    ("replies", "is_lost"), [([1, 1, 0], False), ([0, 0, 1], True), ([0, 0, NoAnswer()], True), ([1, 1], False)]
)
def test_extend_counts_a_majority(clock: Clock, replies: list[Any], is_lost: bool) -> None:
    algorithm = of_three(clock)
    lease = granted(algorithm)
    program = algorithm.extend(lease, "100s")
    next(program)
    with pytest.raises(StopIteration) as done:
        program.send(replies)
    assert done.value.value is (None if is_lost else lease)
    assert lease.is_trusted() is not is_lost


@pytest.mark.parametrize("replies", [[1, 0, NoAnswer()], [1, NoAnswer(), NoAnswer()], [NoAnswer()] * 3])
def test_i5_extend_does_not_know(clock: Clock, replies: list[Any]) -> None:
    algorithm = of_three(clock)
    lease = granted(algorithm)
    program = algorithm.extend(lease, "100s")
    next(program)
    with pytest.raises(ProviderUnreachable):
        program.send(replies)
    assert lease.is_trusted(), "until its old end"


@pytest.mark.parametrize(
    ("replies", "is_done"), [([1, 1, 0], True), ([1, 0, 0], False), ([1, 0, NoAnswer()], True), ([0, 0, 0], False)]
)
def test_release_counts_a_majority(clock: Clock, replies: list[Any], is_done: bool) -> None:
    algorithm = of_three(clock)
    program = algorithm.release(granted(algorithm))
    next(program)
    with pytest.raises(StopIteration) as done:
        program.send(replies)
    assert done.value.value is is_done


@pytest.mark.parametrize("size", [1, 2, 4])
def test_even_numbers_are_refused(clock: Clock, size: int) -> None:
    with pytest.raises(ConfigurationError, match="an odd number of servers"):
        QuorumAlgorithm(size, "shedlock", "1h", clock)


def granted(algorithm: QuorumAlgorithm) -> Any:
    program = algorithm.acquire(LockRequest(NAME, "100s"))
    next(program)
    program.send([ours] * 3)
    with pytest.raises(StopIteration) as done:
        program.send([1] * 3)
    return done.value.value


def locked_by(command: Any) -> Any:
    """Whom a command speaks for."""
    return call_of(command).args[0]


def call_of(command: Any) -> Any:
    """The script that each server is to run."""

    class Server:
        def call(self, call: Any) -> Any:
            return call

    return command.program(Server())
