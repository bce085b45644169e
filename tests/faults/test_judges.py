"""Tests of the scenarios' own judges, beside the checker: their excuses, their measurements, their findings."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, pairwise, permutations

import pytest

from shedlock_py import InMemoryLockProvider
from tests.faults.checker import Finding, Report, Rules
from tests.faults.history import NEVER, History, Mark, Operation
from tests.faults.scenarios import (
    clocks,
    deletions,
    elections,
    exhaustion,
    fire_times,
    herds,
    late_runs,
    members,
    odd_replies,
    once,
    operators,
    recoveries,
    servers,
    settings,
    soak,
)
from tests.faults.scenarios.clocks import HOUR, Jump, is_excused
from tests.faults.scenarios.herds import Outcome
from tests.faults.scenarios.soak import Sample
from tests.support.connections import unserved
from tests.support.locks import acquired
from tests.support.polling import wait_until
from tests.support.ports import LOOPBACK

RULES = Rules(late=0.5)
HELD = Operation("w1", "acquire", "job", 0.0, 0.1, "granted", "c1", 1, at_most=2.0, trusted_until=1.9)
NEXT = Operation("w2", "acquire", "job", 0.6, 0.7, "granted", "c2", 2, at_most=2.0, trusted_until=2.5)
THIRD = Operation("w3", "acquire", "job", 0.9, 1.0, "granted", "c3", 3, at_most=2.0, trusted_until=2.8)
SKIP = Operation("w3", "acquire", "job", 0.52, 0.55, "skipped", at_most=2.0)
LOST = Operation("w1", "release", "job", 0.8, 0.9, "lost", "c1", 1, trusted_before=1.9)


def history(*operations: Operation, marks: tuple[Mark, ...] = ()) -> History:
    return History(tuple(sorted(operations, key=lambda operation: operation.started)), marks)


def rules(report: Report) -> set[str]:
    return {finding.rule for finding in report.findings}


# Deletions, and stores that forget

DELETED = Mark("deleted", "everybody", 0.3, 0.4)
EXTENDED = replace(HELD, kind="extend", started=0.42, ended=0.45, outcome="done")


@pytest.mark.parametrize(
    ("operations", "mark", "found"),
    [
        ((HELD, NEXT), DELETED, set()),
        ((replace(HELD, token=3), NEXT), DELETED, {"token"}),
        ((HELD, NEXT), replace(DELETED, before=2.0, after=2.1), {"overlap"}),
        ((HELD, EXTENDED, NEXT), DELETED, {"deletion"}),
        ((HELD, NEXT, THIRD), DELETED, {"overlap"}),
    ],
)
def test_what_a_deletion_excuses(operations: tuple[Operation, ...], mark: Mark, found: set[str]) -> None:
    report = deletions.judge(history(*operations, marks=(mark,)), RULES)
    assert rules(report) >= found
    assert bool(rules(report)) is bool(found)
    assert report.excused_overlap >= 1.2, "measured all the same"


@pytest.mark.parametrize(
    ("operations", "found"),
    [
        ((HELD, NEXT), set()),
        ((HELD, NEXT, THIRD), {"overlap"}),
        ((HELD, replace(NEXT, started=0.1, ended=0.15, trusted_until=2.07)), {"overlap"}),
        ((replace(HELD, token=3), NEXT), {"token"}),
    ],
)
def test_what_a_store_that_forgets_excuses(operations: tuple[Operation, ...], found: set[str]) -> None:
    cut = Mark("cut", "w1", 0.2, 0.4)
    report = servers.judge(history(*operations, marks=(cut,)), RULES, servers.FORGOTTEN)
    assert rules(report) == found
    assert report.worst_overlap > 1.0, "measured all the same"


# A member that is cut off

FAILED = replace(SKIP, outcome="error")


@pytest.mark.parametrize(
    ("attempt", "found"),
    [
        (FAILED, set()),
        (SKIP, {"cut off"}),
        (replace(NEXT, worker="w3", started=1.95, ended=1.98, trusted_until=3.9), {"cut off"}),
        (replace(SKIP, started=0.3), set()),
        (replace(SKIP, ended=2.05), set()),
        (replace(SKIP, worker="w2"), set()),
    ],
)
def test_who_reaches_only_a_member_that_is_cut_off_is_told_nothing(attempt: Operation, found: set[str]) -> None:
    marks = (Mark("cut", "w1", 0.2, 0.4), Mark("healed", "w3", 2.0, 2.1))
    assert rules(members.judge(history(HELD, attempt, marks=marks), RULES)) == found


# Force releases, take-overs and prunes by an operator

FREED = Operation("m", "force_release", "job", 0.4, 0.5, "done")
TAKEN = replace(NEXT, worker="m", kind="take_over")
PRUNED = Operation("m", "prune", "", 0.4, 0.5, "done")
DONE = replace(LOST, outcome="done", at_most=0.1)
STALE = Operation("w1", "write", "job", 1.0, 1.1, "done", "c1", 1)
FRESH = Operation("w2", "write", "job", 0.8, 0.9, "done", "c2", 2, trusted_until=2.5)
GONE = Operation("w2", "release", "job", 0.75, 0.8, "done", "c2", 2)
FREE = replace(FREED, outcome="free")
UNKNOWN = replace(FREED, outcome="error")
READ_FIRST = replace(FREED, at_store=(0.41, 0.46))
KEPT = replace(HELD, at_least=2.0)
EARLY = replace(DONE, started=0.2, ended=0.3, trusted_until=NEVER)


@pytest.mark.parametrize(
    ("operations", "found"),
    [
        ((HELD, FREED, NEXT, LOST), set()),
        ((HELD, TAKEN, LOST), set()),
        ((HELD, replace(TAKEN, token=1), LOST), {"token"}),
        # The former holder does nothing to the lock any more. Its request may have come first.
        ((HELD, FREED, NEXT, DONE), {"own writes"}),
        ((HELD, TAKEN, replace(DONE, kind="extend")), {"own writes"}),
        ((HELD, FREED, replace(DONE, started=0.45)), set()),
        # The name is free at once, and held again after a take-over.
        ((HELD, FREED, SKIP, LOST), {"grant lost"}),
        ((HELD, FREED, replace(SKIP, started=0.45), LOST), set()),
        ((replace(HELD, at_least=1.0), FREED, replace(SKIP, started=0.62, ended=0.65), LOST), {"grant lost"}),
        ((HELD, TAKEN, replace(SKIP, started=1.0, ended=1.1), LOST), set()),
        ((HELD, TAKEN, replace(SKIP, started=2.8, ended=2.9), LOST), {"grant lost"}),
        # Tokens do not restart.
        ((HELD, FREED, replace(NEXT, token=1), LOST), {"token"}),
        ((HELD, FREED, PRUNED, replace(NEXT, token=0), LOST), {"token"}),
        ((HELD, FREED, NEXT, FRESH, STALE), {"stale write"}),
        ((HELD, FREED, NEXT, FRESH, replace(STALE, outcome="refused")), set()),
        # Leases other than the freed lease.
        ((HELD, FREED, NEXT, GONE, THIRD, LOST), set()),
        ((HELD, FREED, replace(NEXT, at_least=1.0), GONE, THIRD, LOST), {"minimum hold"}),
        ((HELD, FREED, NEXT, THIRD, LOST), {"overlap"}),
        # A prune excuses nothing.
        ((HELD, PRUNED, NEXT, LOST), {"overlap", "lost"}),
        ((HELD, PRUNED, LOST), {"lost"}),
        ((HELD, PRUNED, replace(LOST, trusted_before=0.85)), set()),
        # An operation that was sent twice: the first copy may have done it, or has done it.
        ((HELD, FREED, NEXT, replace(DONE, kind="release", at_store=(0.65,), requests=2)), set()),
        ((HELD, FREED, NEXT, replace(DONE, kind="release", at_store=(0.65,))), {"own writes"}),
        ((HELD, replace(LOST, kind="release", at_store=(0.65, 0.68), replied_at=0.68)), set()),
        ((HELD, replace(LOST, kind="release", at_store=(0.65, 0.68), replied_at=0.65)), {"lost"}),
        # A force release that finds the name free.
        ((HELD, FREE), {"force release"}),
        ((HELD, replace(FREE, at_store=(0.45, 0.47))), set()),
        ((HELD, replace(FREE, at_store=(0.45,))), {"force release"}),
        ((replace(HELD, trusted_until=0.45), FREE), set()),
        ((HELD, replace(DONE, started=0.2, ended=0.3, trusted_until=NEVER), FREE), set()),
        ((replace(HELD, ended=0.45), FREE), set()),
        ((HELD, FREED, replace(FREE, started=0.45, ended=0.55)), set()),
        # A force release without a reply may have been done, or not.
        ((HELD, UNKNOWN, NEXT, LOST), set()),
        ((HELD, UNKNOWN, SKIP, DONE), set()),
        ((KEPT, replace(UNKNOWN, started=0.05), EARLY, replace(SKIP, started=1.5, ended=1.6)), set()),
        ((KEPT, replace(UNKNOWN, started=0.05), EARLY, replace(SKIP, started=2.3, ended=2.4)), {"grant lost"}),
        # If the moment of a copy at the store is known, the copy frees the lease that was read before, and no other
        # lease.
        ((HELD, replace(FREED, at_store=(0.45,)), NEXT, LOST), set()),
        ((HELD, replace(FREED, started=-0.2, ended=-0.1, at_store=(-0.15, 0.5)), NEXT, LOST), {"overlap", "lost"}),
        ((HELD, replace(FREED, started=-0.2, ended=-0.1, at_store=(-0.15, 1.5)), NEXT, LOST), {"overlap", "lost"}),
        # Its first request only reads.
        ((replace(HELD, at_store=(0.05,)), READ_FIRST, replace(SKIP, started=0.43, ended=0.44)), set()),
        ((replace(HELD, at_store=(0.05,)), READ_FIRST, replace(SKIP, started=0.49, ended=0.5)), {"grant lost"}),
    ],
)
def test_what_an_operator_excuses(operations: tuple[Operation, ...], found: set[str]) -> None:
    report = operators.judge(history(*operations), RULES)
    assert rules(report) == found
    if operations == (HELD, FREED, NEXT, LOST):
        assert report.excused_overlap == pytest.approx(0.1), "from the next grant until the former holder's release"


# Fire times

RUN = replace(HELD, fire_time=100.0)
ENDED = replace(HELD, kind="release", started=0.2, ended=0.3, outcome="done")
AGAIN = replace(NEXT, fire_time=100.0)
LATE = replace(SKIP, started=1.0, ended=1.1, fire_time=100.0)
TWICE = replace(LATE, started=0.15, ended=0.5, fire_time=100.2, at_store=(0.2, 0.45), replied_at=0.2)
AFTER_A_CRASH = replace(AGAIN, started=2.4, ended=2.5, trusted_until=4.3)


@pytest.mark.parametrize(
    ("operations", "marks", "found"),
    [
        ((RUN, ENDED, AGAIN), (), {"fire time"}),
        ((RUN, ENDED, replace(AGAIN, fire_time=100.2)), (), set()),
        ((RUN, ENDED, replace(AGAIN, name="other job")), (), set()),
        ((RUN, AFTER_A_CRASH), (Mark("killed", "w1", 0.2, 0.3),), {"fire time"}),
        ((RUN, replace(AFTER_A_CRASH, fire_time=100.2)), (Mark("killed", "w1", 0.2, 0.3),), set()),
        ((RUN, ENDED, replace(AGAIN, fire_time=99.8)), (), {"fire time"}),
        # A skip of a fire time that has passed, or may have been granted; and a skip without a reason.
        ((RUN, ENDED, LATE), (), set()),
        ((RUN, ENDED, replace(LATE, fire_time=99.8)), (), set()),
        ((replace(RUN, outcome="error", claim="", at_most=0.05), LATE), (), set()),
        ((RUN, ENDED, replace(LATE, fire_time=100.2)), (), {"grant lost"}),
        # A second copy of a skipped acquire uses up the fire time, and locks the name without a holder.
        ((RUN, ENDED, TWICE, replace(LATE, started=3.0, ended=3.1, fire_time=100.2)), (), set()),
        ((RUN, ENDED, TWICE, replace(LATE, started=3.0, ended=3.1, fire_time=100.4)), (), {"grant lost"}),
        ((RUN, ENDED, TWICE, replace(LATE, started=2.4, ended=2.45, fire_time=100.4)), (), set()),
        (
            (RUN, ENDED, replace(TWICE, started=0.4, ended=0.7, at_store=(0.45, 0.6), replied_at=0.45)),
            (),
            {"grant lost"},
        ),
        ((RUN, ENDED, replace(LATE, fire_time=None)), (), {"grant lost"}),
    ],
)
def test_i11_one_run_of_a_fire_time(
    operations: tuple[Operation, ...], marks: tuple[Mark, ...], found: set[str]
) -> None:
    assert rules(fire_times.judge(history(*operations, marks=marks), Rules())) == found


# Recoveries

DEAD = Operation("w1", "acquire", "job", 0.0, 0.01, "granted", "c1", 1, 0.3, fire_time=100.0)
FINISHED = Operation("w1", "release", "job", 0.2, 0.21, "done", "c1", 1)
RECOVERED = Operation("w2", "recover", "job", 0.5, 0.51, "granted", "c2", 2, 0.3, fire_time=100.0)
LATER_RUN = Operation("w3", "acquire", "job", 0.4, 0.41, "granted", "c3", 2, 0.05, fire_time=100.2)


@pytest.mark.parametrize(
    ("operations", "found"),
    [
        ((DEAD, RECOVERED), set()),
        ((DEAD, RECOVERED, replace(RECOVERED, worker="w3", started=0.9, ended=0.91, claim="c3", token=3)), set()),
        ((DEAD, replace(RECOVERED, outcome="skipped", claim="", token=None)), set()),
        ((DEAD, FINISHED, RECOVERED), {"recovery"}),
        ((DEAD, replace(FINISHED, outcome="lost"), RECOVERED), set()),
        ((DEAD, LATER_RUN, replace(RECOVERED, token=3)), {"recovery"}),
        ((DEAD, RECOVERED, replace(DEAD, worker="w3", started=0.9, ended=0.91, claim="c3", token=3)), {"fire time"}),
    ],
)
def test_i14_what_may_be_recovered(operations: tuple[Operation, ...], found: set[str]) -> None:
    assert rules(recoveries.judge(history(*operations), Rules())) == found


# Late runs, and run_once

DUE = datetime(2030, 1, 1, tzinfo=UTC)
AFTER, LATEST = DUE + late_runs.EVERY, DUE + 2 * late_runs.EVERY


@pytest.mark.parametrize(
    ("runs", "missed", "found"),
    [
        ([DUE, AFTER, LATEST], [], set()),
        ([DUE, AFTER, LATEST], [AFTER], set()),
        ([DUE, LATEST], [AFTER], set()),
        ([DUE, LATEST], [], {"silent loss"}),
        ([DUE, AFTER, AFTER], [], {"fire time"}),
    ],
)
def test_i14_each_fire_time_runs_once_or_is_missed(
    runs: list[datetime], missed: list[datetime], found: set[str]
) -> None:
    assert {finding.rule for finding in late_runs.judge(Counter(runs), Counter(missed))} == found


GRANTED = Operation("w1", "acquire", "key", 0.0, 0.01, "granted", "c1", 1, 0.3, fire_time=100.0)
DONE = Operation("w1", "task", "key", 0.02, 0.1, "done", "c1", 1)
ENDED = Operation("w1", "release", "key", 0.11, 0.12, "done", "c1", 1)
LEARNED = Operation("w2", "once", "key", 0.0, 0.2, "learned")
READ = Operation("w2", "record", "key", 0.3, 0.31, "done")
EARLY = replace(READ, started=0.1, ended=0.13)
TOO_LATE = replace(LEARNED, ended=0.4, outcome="error", error="TaskNotDone: …")
AGAIN = Operation("w2", "acquire", "key", 0.5, 0.51, "granted", "c2", 2, 0.3, fire_time=100.0)


@pytest.mark.parametrize(
    ("operations", "found"),
    [
        ((GRANTED, DONE, ENDED, LEARNED), set()),
        ((GRANTED, DONE, ENDED, LEARNED, AGAIN), {"once"}),
        ((GRANTED, DONE, ENDED, LEARNED, replace(AGAIN, kind="recover")), {"once"}),
        ((GRANTED, replace(DONE, outcome="error"), ENDED, AGAIN), set()),
        ((GRANTED, replace(DONE, outcome="error"), ENDED, LEARNED), {"once"}),
        ((GRANTED, DONE, replace(ENDED, outcome="error"), replace(AGAIN, kind="recover")), set()),
        ((GRANTED, DONE, replace(LEARNED, ended=0.105)), {"once"}),
        ((GRANTED, DONE, ENDED, TOO_LATE, READ), {"once"}),
        ((GRANTED, DONE, ENDED, TOO_LATE, EARLY), set()),
        ((GRANTED, replace(DONE, outcome="error"), ENDED, TOO_LATE, READ), set()),
        ((GRANTED, replace(LEARNED, outcome="stuck")), {"once"}),
    ],
)
def test_i14_a_key_is_done_once(operations: tuple[Operation, ...], found: set[str]) -> None:
    assert rules(once.judge(history(*operations), Rules())) == found


# Clocks that jump


@pytest.mark.parametrize(
    ("rule", "at", "expected"),
    [
        ("overlap", 9.0, False), ("overlap", 10.3, True), ("overlap", 10.2 + clocks.BEHAVIOUR.at_most, False),
        ("overlap", 20.3, False), ("grant lost", 10.3, False), ("grant lost", 20.3, True), ("crash bound", 29.9, True),
        ("grant lost", 30.5, False), ("token", 10.3, False), ("stale write", 10.3, False), ("trust", 20.3, False),
    ],
)  # fmt: skip
def test_only_what_a_jump_explains_is_excused(rule: str, at: float, expected: bool) -> None:
    jumps = [Jump(HOUR, 10.0, 10.1), Jump(-HOUR, 20.0, 20.1), Jump(HOUR, 30.0, 30.1)]
    assert is_excused(Finding(rule, "job", "", at), jumps) is expected


def test_by_the_plain_rule_a_clock_that_is_set_forward_shows_at_least_as_much_as_ever() -> None:
    for sizes in permutations(elections.SIZES):
        shown = [0.0, *chain.from_iterable((size, 0.0) for size in elections.in_order(sizes, "expired")), HOUR]
        assert all(now == max(shown[: i + 2]) for i, (before, now) in enumerate(pairwise(shown)) if now > before)


# Herds


@pytest.mark.parametrize(
    ("outcome", "rule"),
    [
        (Outcome(["a", "a"], 0), "overlap"), (Outcome([], 2), "overlap"),
        (Outcome(["a"], 0, ["ProviderUnreachable: no"]), "error"), (Outcome(["a"], 0), "hang"),
    ],
)  # fmt: skip
def test_two_grants_errors_and_missing_replies_of_a_herd_are_found(outcome: Outcome, rule: str) -> None:
    report = Report()
    herds.judge(report, ["a"], outcome, attempts=2)
    assert rule in rules(report)


# Odd replies


@pytest.mark.parametrize("is_given_up", [True, False])
def test_i1_a_grant_of_a_lock_that_another_replica_trusts_is_found(is_given_up: bool) -> None:
    report = Report()
    holders = odd_replies.Holders(report)
    leases = [acquired(InMemoryLockProvider(), "job") for _ in range(2)]
    for lease in leases:
        holders.add(lease)
        if is_given_up:
            holders.remove(lease)
    assert rules(report) == (set() if is_given_up else {"overlap"})


# Outages: electors that wait for a store


def failing_electors(part: Callable[[int, int], float]) -> list[Operation]:
    """Failures, by elector and number. Each pause after a failure is this part of the pause that is due."""
    operations = []
    for elector in range(exhaustion.WAITERS):
        moment = elector / 100
        for number in range(6):
            operations.append(Operation(f"n{elector}", "record", "e", moment, moment + 0.01, "error"))
            longest = min(exhaustion.RETRY * 2 ** (number + 1), exhaustion.LEASE)
            moment += 0.01 + part(elector, number) * longest
    return operations


@pytest.mark.parametrize(
    ("part", "found"),
    [
        (lambda elector, number: 0.5 + elector / 100, set()),
        (lambda elector, number: 1.5, set()),  # a busy machine
        (lambda elector, number: 0.3 + elector / 100, {"pace"}),
        (lambda elector, number: 0.5 / 2**number, {"pace"}),  # ever faster
    ],
)
def test_electors_that_hurry_in_an_outage_are_found(part: Callable[[int, int], float], found: set[str]) -> None:
    report = Report()
    exhaustion.judge(report, failing_electors(part))
    assert rules(report) == found


# Settings: conflicts that a database undoes again and again


@pytest.mark.parametrize(
    ("failed", "finds"),
    [
        ([], False),
        (["ProviderError: could not serialize access due to concurrent update"], False),
        (["ProviderError: Deadlock found when trying to get lock"] * 2, True),
        (["ProviderError: anything else"], True),
    ],
)
def test_few_errors_of_conflicts_are_excused_and_no_others(failed: list[str], finds: bool) -> None:
    granted = [Operation("w1", "acquire", "a", i, i + 0.1, "granted") for i in range(150)]
    errors = [Operation("w1", "acquire", "a", i, i + 0.1, "error", error=error) for i, error in enumerate(failed)]
    report = Report()
    settings.judge_errors(report, History((*granted, *errors)), "here")
    assert bool(report.findings) == finds


# Leaks

BEFORE = Sample(memory=100_000, descriptors=40, threads=6, connections=6)


@pytest.mark.parametrize("change", [{"memory": 105_000}, {"descriptors": 50}, {"threads": 12}, {"connections": 12}])
def test_a_leak_is_what_grows_and_stays(change: dict[str, int]) -> None:
    after = replace(BEFORE, **change)
    assert soak.compare([BEFORE] * 5 + [after] * 5, Report())
    assert not soak.compare([BEFORE, after] * 5 + [after, BEFORE] * 5, Report()), "it goes up and down"


# When a disturbance is over


def test_a_request_of_a_client_that_gave_up_is_seen_until_it_is_served() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        address = server.getsockname()
        client = socket.create_connection(address)
        client.sendall(b"a request")
        client.close()
        wait_until(lambda: unserved([address]) == 1, what="the kernel knows that the client is gone")
        served, _ = server.accept()
        assert served.recv(20) == b"a request"
        assert unserved([address]) == 1
        served.close()
        wait_until(lambda: unserved([address]) == 0, what="the kernel knows that the server is done")
