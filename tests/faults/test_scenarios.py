"""The short form of the scenarios: each once, on a few stores, as quickly as possible. I1 to I7, I10 to I12.

``make faults`` runs all scenarios on every store, sync and async. Not here: the full disks of MariaDB and MySQL, which
hang commits for half a minute, and standbys without faults.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.faults import small_disks
from tests.faults.checker import Report
from tests.faults.registry import Budget, Run, all_scenarios
from tests.faults.scenarios import (
    deletions,
    exhaustion,
    failover,
    fire_times,
    giving_up,
    herds,
    interrupts,
    late_runs,
    members,
    network,
    odd_replies,
    old_records,
    once,
    operators,
    processes,
    recoveries,
    schedulers,
    servers,
    soak,
    switchovers,
)
from tests.support.stores import Store

ALL_MIXED = (
    "sqlite sync, postgres async, mariadb sync, mysql async, redis sync, quorum sync, mongodb async, etcd sync, "
    "kubernetes async"
)
TAKEN_OVER = "take-over"
"""A count that the report has as a list of durations."""
REFUSED = {"acquire error": 6, "acquire granted": 4}
DELETED = {"deleted": deletions.DELETIONS_PER_TRIAL, "after deletion lost": 1}
ACTIONS = {f"{kind} {outcome}": number for kind, outcome, number in operators.ACTIONS}
WITHOUT_PRUNE = {what: number for what, number in ACTIONS.items() if what != "prune done"}
"""For stores that prune no young record: here a prune depends on chance."""
SOAKED = {"acquire granted": soak.SIZE * 60}


def outage(store: Store, budget: Budget, seed: int) -> Report:
    return exhaustion.outage_of(store, 2.5)


def a_hundred_names(store: Store, budget: Budget, seed: int) -> Report:
    return herds.race(store, budget, 100)


def a_few_rounds(store: Store, budget: Budget, seed: int) -> Report:
    store.options = {**store.options, "timeout": "30s"}  # the time limit is not under test
    return herds.race_of_sixteen(store, budget, 10)


def short_soak(store: Store, budget: Budget, seed: int, provider: str | None = None) -> Report:
    """Find only leaks of megabytes: pools may still fill. A leak with each grant grows by 60 to 90 descriptors."""
    counts = {"descriptors": 20, "threads": 20, "connections": 15}
    return soak.soak_for(store, 0.0, seed, grants=60, memory=16 * 1024, counts=counts, provider=provider)


def member_killed(store: Store, budget: Budget, seed: int) -> Report:
    return members.members(store, budget, seed, members.kill_any, rounds=2, grants=8)


def leader_stopped(store: Store, budget: Budget, seed: int) -> Report:
    return members.members(store, budget, seed, members.stop_leader, rounds=1, grants=8)


def leader_cut_off(store: Store, budget: Budget, seed: int) -> Report:
    return members.members(store, budget, seed, members.cut_leader_off, rounds=1, grants=8)


def late_copies(store: Store, budget: Budget, seed: int) -> Report:
    return network.late_takeovers(store, Budget(0, least=6), seed)


SHORT: list[tuple[Run, str, Mapping[str, int]]] = [
    # By scenario: the stores, and how often at least these events must have happened.
    (processes.kills, ALL_MIXED, {"killed": processes.KILLS_PER_TRIAL, TAKEN_OVER: 1}),
    (processes.stops, "sqlite async, postgres sync, redis async, dynamodb sync",
     {"stopped": processes.STOPS_PER_TRIAL, "resumed": processes.STOPS_PER_TRIAL, "write refused": 1}),
    (servers.killed, "postgres sync, etcd async, s3 sync, kubernetes sync", {"cut": 1}),
    (member_killed, "etcd sync, etcd async", {"cut": 2, "acquire granted": 20}),
    (leader_stopped, "etcd sync, etcd async", {"cut": 1, "acquire granted": 10}),
    (leader_cut_off, "etcd sync, etcd async", {"cut": 1, "healed": 1, "acquire granted": 10, TAKEN_OVER: 1}),
    (members.majority_stopped, "etcd sync, etcd async", {"cut": 1, "acquire error": 3}),
    (servers.stopped, "mongodb async", {"cut": 1}),
    (servers.restarted, "mariadb async, mysql sync, dynamodb async", {"cut": 1}),
    (servers.minority, "quorum sync", {"cut": 1}),
    (network.both_ways, "postgres async, quorum sync, etcd sync, s3 async, kubernetes async",
     {"cut": 1, "healed": 1, TAKEN_OVER: 1}),
    (network.to_the_store, "mariadb sync", {"cut": 1, "healed": 1, TAKEN_OVER: 1}),
    (network.to_the_worker, "postgres sync, redis async, etcd async, kubernetes sync",
     {"cut": 1, "healed": 1, TAKEN_OVER: 1}),
    (network.closed, "redis sync", {"cut": 1, "healed": 1, TAKEN_OVER: 1}),
    (network.reply_to_acquire, "postgres async, redis sync, etcd sync, s3 sync, kubernetes async",
     {"reply lost": network.LOSSES_PER_TRIAL}),
    (network.reply_to_extend, "mariadb sync, mysql async, quorum async, etcd async, s3 sync, "
     "kubernetes sync",
     {"reply lost": network.LOSSES_PER_TRIAL}),
    (network.reply_to_release, "mongodb sync, etcd sync, dynamodb async, s3 async, kubernetes async",
     {"reply lost": network.LOSSES_PER_TRIAL}),
    (network.slow, "redis async, etcd sync", {"acquire granted": 6}),
    (fire_times.fire_times,
     "sqlite async, postgres sync, mariadb async, mysql sync, redis sync, quorum async, mongodb sync, etcd async, "
     "kubernetes sync",
     {"killed": fire_times.KILLS_PER_TRIAL, "acquire granted": fire_times.FIRE_TIMES_PER_TRIAL,
      "fire time refused": 1}),
    (recoveries.recoveries, f"{ALL_MIXED}, dynamodb sync, s3 async",
     {"killed": recoveries.KILLS_PER_TRIAL, "recover granted": recoveries.RECOVERIES_PER_TRIAL}),
    (late_runs.away_at_the_fire_time, f"{ALL_MIXED}, dynamodb sync, s3 async",
     {"outage": late_runs.OUTAGES_PER_TRIAL, "run": 2 * late_runs.OUTAGES_PER_TRIAL}),
    (old_records.old_records, f"{ALL_MIXED}, dynamodb sync, s3 async",
     {"operator acted": 5, "operator refused": 20, "holder kept": 5}),
    (odd_replies.wrong_date, "etcd sync, s3 async, kubernetes async, dynamodb sync",
     {"odd reply": 3, "acquire granted": 10}),
    (odd_replies.other_reply, "etcd async, kubernetes sync", {"odd reply": 3, "acquire granted": 1}),
    (once.once, f"{ALL_MIXED}, dynamodb sync, s3 async",
     {"killed": 1, "recover granted": 1, "once ran": once.KEYS, "once learned": once.KEYS}),
    (fire_times.wrong_clock,
     "sqlite async, postgres sync, mariadb sync, redis async, quorum sync, mongodb async, etcd sync, kubernetes async",
     {"acquire error": fire_times.REFUSALS, "acquire granted": fire_times.GRANTS}),
    (giving_up.giving_up,
     "sqlite async, postgres async, mariadb async, mysql async, redis async, quorum async, mongodb async, etcd async, "
     "kubernetes async",
     {"acquire cancelled": 1}),
    (interrupts.interrupts, "redis sync", {"interrupted": 1}),
    (late_copies, "postgres sync, mariadb async, mysql sync, redis sync, mongodb async, etcd sync, "
     "dynamodb sync, s3 sync, kubernetes async", {"late copy": 6}),
    (deletions.record_deleted, "sqlite sync, mariadb async, mongodb sync, etcd async, s3 sync, "
     "kubernetes sync", DELETED),
    (deletions.dropped, "postgres async, redis async private", DELETED),
    (deletions.quorum_emptied, "quorum sync private", DELETED),
    (deletions.minority_emptied, "quorum sync private", {"emptied": 1}),
    (deletions.replaced, "sqlite sync, sqlite async", {"deleted": deletions.DELETIONS_PER_TRIAL}),
    (operators.operators,
     "sqlite sync, postgres async, mariadb sync, mysql async, redis async, quorum sync, mongodb async",
     {**ACTIONS, "write refused": 1}),
    (operators.operators, "etcd sync, s3 async, kubernetes async", {**WITHOUT_PRUNE, "write refused": 1}),
    (operators.without_extra_columns, "postgres sync, mariadb async, mysql sync", ACTIONS),
    (switchovers.switchover, "postgres sync, postgres async", {"switchover": 1}),
    (failover.cancelled_acquire, "postgres sync", {"commit cancel": 1}),
    (failover.synchronous_split, "postgres async", {"cut": 1}),
    (failover.majority, "quorum sync", {"acquire error": 1}),
    (failover.emptied_and_split, "quorum async", {"cut": 1}),
    (herds.herd, "sqlite sync, postgres async, mariadb sync, mysql sync, redis sync, mongodb sync, etcd sync, s3 sync, "
     "kubernetes sync",
     {"acquire granted": 1, "acquire skipped": 1}),
    (a_few_rounds, "dynamodb sync, s3 async", {"acquire granted": 10, "acquire skipped": 150}),
    (a_hundred_names, "postgres async", {"acquire granted": 90, "acquire skipped": 100}),
    (exhaustion.full, "sqlite async, postgres async", REFUSED),
    (exhaustion.full_log, "postgres sync", REFUSED),
    (exhaustion.full, "redis async", REFUSED),
    (exhaustion.read_only, "redis sync, postgres async, mariadb sync, mysql async", REFUSED),
    (exhaustion.no_descriptors,
     "sqlite sync, postgres sync, postgres async, mariadb async, redis sync, redis async, quorum sync", {}),
    (outage, "redis async private, postgres sync private",
     # The first to fail may have been under way when the outage began.
     {"attempt in outage": (exhaustion.FAILURES - 1) * exhaustion.WAITERS}),
    (short_soak, "sqlite sync, postgres async, mariadb sync, redis async, mongodb sync, etcd async, s3 sync, "
     "kubernetes sync", SOAKED),
    (network.silent_neighbour, "postgres sync, redis sync, etcd sync", {"heartbeat": 6, "poller without an answer": 8}),
    (schedulers.job_store_fails, "sqlite sync, postgres sync", {"update failed": 4, "run": 20}),
]  # fmt: skip
NAMES = {scenario.run: scenario.name for scenario in all_scenarios()} | {
    outage: "outage with 50 waiters",
    a_hundred_names: "100 names",
    a_few_rounds: "16 racers",
    short_soak: "soak",
    late_copies: "late copy of a take-over",
    member_killed: "etcd: one of three members killed",
    leader_stopped: "etcd: the leader stands still",
    leader_cut_off: "etcd: the leader is cut off",
}
IN_MAKE_TEST: dict[Run, str] = {
    # A cheap scenario of each kind of fault. The contract tries crashes, lost replies and outages on every store.
    processes.kills: "redis sync",
    processes.stops: "redis async",
    servers.killed: "postgres sync",
    network.to_the_store: "mariadb sync",
    network.closed: "redis sync",
    network.reply_to_extend: "quorum async",
    fire_times.fire_times: "sqlite async",
    recoveries.recoveries: "redis sync",
    once.once: "redis async",
    giving_up.giving_up: "redis async",
    late_copies: "mariadb async",
    deletions.record_deleted: "sqlite sync",
    operators.operators: "mongodb async",
    exhaustion.full: "redis async",
    network.silent_neighbour: "postgres sync",
    schedulers.job_store_fails: "sqlite sync",
}
IN_MAKE_TEST_FULL: dict[Run, str] = {
    # Scenarios that `make test-full` runs on some of their stores only. Each store runs some scenarios.
    processes.kills: "redis sync, postgres async",
    processes.stops: "redis async",
    servers.killed: "postgres sync",
    servers.restarted: "mariadb async",
    member_killed: "etcd sync",
    leader_stopped: "etcd async",
    leader_cut_off: "etcd sync",
    members.majority_stopped: "etcd async",
    network.both_ways: "quorum sync",
    network.to_the_worker: "redis async",
    network.reply_to_acquire: "postgres async",
    network.reply_to_extend: "quorum async",
    network.reply_to_release: "mongodb sync",
    network.slow: "redis async",
    fire_times.fire_times: "sqlite async",
    recoveries.recoveries: "redis sync, sqlite sync",
    late_runs.away_at_the_fire_time: "redis sync, postgres async",
    odd_replies.wrong_date: "etcd sync, dynamodb sync",
    odd_replies.other_reply: "etcd async",
    once.once: "redis async, sqlite sync",
    old_records.old_records: "sqlite sync, redis async, etcd sync",
    fire_times.wrong_clock: "postgres sync",
    giving_up.giving_up: "redis async, mongodb async",
    late_copies: "mariadb async",
    deletions.record_deleted: "sqlite sync, mongodb sync",
    deletions.replaced: "sqlite sync",
    operators.operators: "mongodb async, mysql async",
    operators.without_extra_columns: "mariadb async",
    switchovers.switchover: "postgres async",
    herds.herd: "mysql sync",
    exhaustion.full: "sqlite async, redis async",
    exhaustion.read_only: "mysql async",
    exhaustion.no_descriptors: "redis sync",
    outage: "redis async private",
    short_soak: "postgres async",
    network.silent_neighbour: "postgres sync",
    schedulers.job_store_fails: "sqlite sync",
}


def marks_of(run: Run, where: str) -> list[pytest.MarkDecorator]:
    if where in IN_MAKE_TEST.get(run, "").split(", "):
        return []
    if where in IN_MAKE_TEST_FULL.get(run, where).split(", "):
        return [pytest.mark.slow("starts workers, and waits for their leases")]
    return [pytest.mark.matrix("another store or client shows that this scenario finds nothing")]


CASES = [
    pytest.param(run, where, happened, id=f"{NAMES.get(run, run)}-{where}", marks=marks_of(run, where))
    for run, places, happened in SHORT
    for where in places.split(", ")
]
NEED_MOUNTS = {
    (exhaustion.full, "sqlite async"),
    (exhaustion.full, "postgres async"),
    (exhaustion.full_log, "postgres sync"),
}


@pytest.fixture(scope="session")
def can_mount() -> str:
    """Return the reason why this user may not mount anything, or ""."""
    try:
        with small_disks.tmpfs("64k"):
            return ""
    except OSError as error:
        return str(error)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a scheduler's thread, on purpose
@pytest.mark.parametrize(("run", "store", "happened"), CASES, indirect=["store"])
def test_no_promise_is_broken(
    run: Run, store: Store, happened: Mapping[str, int], can_mount: str, request: pytest.FixtureRequest
) -> None:
    where = request.node.callspec.params["store"]
    if can_mount and (run, where) in NEED_MOUNTS:
        pytest.skip(can_mount)
    report = run(store, Budget(0), 1)
    assert [f"{finding.rule}: {finding.text}" for finding in report.findings] == []
    assert report.trials > 0
    counts = report.counts | {TAKEN_OVER: len(report.takeovers)}
    assert {what: counts.get(what, 0) for what, least in happened.items() if counts.get(what, 0) < least} == {}


@pytest.mark.slow("repeats a scenario until two leases overlap")
@pytest.mark.parametrize(
    ("run", "store", "happened"),
    [
        (failover.replica_behind, "redis sync", "cut"),
        (failover.redis_split, "redis async", "cut"),
        (servers.forgetful, "redis async", "write refused"),
    ],
    indirect=["store"],
)
def test_what_is_not_promised_is_measured_and_tokens_tell(run: Run, store: Store, happened: str) -> None:
    """Two leases at once are allowed here, for a time that depends on luck. The scenario must still detect them."""
    report = Report()
    for seed in range(5):
        report.add(run(store, Budget(0), seed))
        if report.worst_overlap > 0 and report.counts[happened]:
            break
    assert report.findings == []
    assert report.worst_overlap > 0
    assert report.counts[happened] > 0


# Controls: each scenario finds the fault that it looks for


def rules(report: Report) -> set[str]:
    return {finding.rule for finding in report.findings}


@pytest.mark.parametrize(
    "store", ["redis sync", pytest.param("redis async", marks=pytest.mark.slow("another client"))], indirect=True
)
def test_a_lock_without_fire_times_is_found(store: Store) -> None:
    provider = "tests.faults.mutants:open_forgetful"
    assert rules(fire_times.one_trial(store, 1, provider=provider, kills=0)) == {"fire time"}


@pytest.mark.slow("waits for grants that do not come")
@pytest.mark.parametrize("store", ["redis sync"], indirect=True)
def test_without_a_tolerance_a_clock_a_day_ahead_stops_the_job_everywhere(store: Store) -> None:
    with pytest.raises(AssertionError, match="grants to the right clocks"):
        fire_times.one_trial_with_a_wrong_clock(store, 1, provider="tests.faults.mutants:open_tolerant", timeout=2.0)


@pytest.mark.parametrize("store", ["redis async"], indirect=True)
def test_a_release_in_place_of_the_undo_is_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving_up, "TIMEOUT", 0.5)
    monkeypatch.setattr(giving_up, "CALLERS", 5)
    assert rules(giving_up.run_trial(store, 1, undoes=False)) == {"fire time"}


@pytest.mark.slow("grants hundreds of leases")
@pytest.mark.parametrize("store", ["sqlite sync"], indirect=True)
def test_a_leak_is_found(store: Store) -> None:
    report = short_soak(store, Budget(0), 1, provider="tests.faults.mutants:Leaking")
    assert [finding.rule for finding in report.findings] == ["flat"]
    assert report.findings[0].text.startswith("descriptors grew")
