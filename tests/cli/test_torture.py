"""``shedlock doctor --torture``: on sound stores, and on stores with faults."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from shedlock_py.operators import racing
from shedlock_py.operators.torture import LEAST, MEANINGS, Judge, Reply
from shedlock_py.provider import Check
from shedlock_py.settings.lookup import sync_provider
from tests.cli.harness import in_a_process, provider_at, run, take
from tests.support import broken_stores
from tests.support.locks import opened
from tests.support.polling import wait_until
from tests.support.stores import Store

PREFIX = "shedlock-torture-"
FOR_FULL = pytest.mark.slow("four processes compete for seconds")


@pytest.fixture(autouse=True)
def few_racers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each racer costs the start of a Python."""
    monkeypatch.setattr(racing, "RACERS", 2)


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return a function that gives the reference of a provider of ``broken_stores``. The locks are in a new file."""
    monkeypatch.setenv(broken_stores.FILE, str(tmp_path / "locks.json"))
    broken_stores.Sound().create_schema()
    return lambda name: f"tests.support.broken_stores:{name}"


def tortured(store: str, is_enough: Callable[[Judge], bool]) -> dict[str, Check]:
    """Torture a store until ``is_enough``, or for two minutes. Return the checks by name."""
    provider = sync_provider(store)
    try:
        judge, left = racing.torture(provider, store, timedelta(minutes=2), lambda judge, _: not is_enough(judge))
    finally:
        provider.close()
    assert left == []
    checks = {check.check: check for check in judge.checks()}
    assert list(checks)[-1] == "torture"
    return checks


def has_tried_all(judge: Judge) -> bool:
    return all(judge.counts[what] >= number for what, number in {**judge.needed, "late copies": 20}.items())


def count(verdict: str, what: str) -> int:
    found = re.search(rf"\b{what}: ([\d,]+)", verdict)
    assert found, verdict
    return int(found[1].replace(",", ""))


def is_sound(store: str) -> None:
    checks = tortured(store, has_tried_all)
    assert list(checks) == ["torture"], checks
    assert checks["torture"].status == "ok", checks
    verdict = checks["torture"].message
    assert re.match(r"no fault found in [1-9][\d,]* grants \(rounds of 2: ", verdict)
    for what, least in {**LEAST, "late copies": 20}.items():
        assert count(verdict, f"{what} of 2" if what == "rounds" else what) >= least


# With processes


@in_a_process
def test_no_fault_is_found_in_a_sqlite_file_and_only_its_own_records_are_deleted(store: str) -> None:
    provider = provider_at(store)
    provider.release(take(provider, "job"))
    is_sound(store)
    assert [record.name for record in provider_at(store).records()] == ["job"]


@FOR_FULL
@pytest.mark.parametrize("name", ["postgres", "redis", "etcd"])
def test_no_fault_is_found_on_a_server(name: str, make_store: Callable[..., Store]) -> None:
    url = make_store(name).where()
    with opened(url) as provider:
        provider.create_schema()
    is_sound(url)


FAULTS = {
    "GrantsToTwo": ("two holders", "acquired it at once, and it was granted to racer-"),
    "IgnoresFireTimes": ("fire times", "was granted to racer-"),
    "ExtendsStaleLeases": ("late copy", "rounds: an extend of racer-"),
    "ReleasesByName": ("late copy", "rounds: a release of racer-"),
    "GivesSmallTokens": ("fencing tokens", "was granted after racer-"),
    "ExpiresEarly": ("early expiry", "was granted at least 0."),
    "NeverExpires": ("late expiry", ": still refused "),
    "GrantsNothing": ("refused", "nobody was granted the lock in "),
    "ForgetsLeases": ("lost lease", "rounds: an extend by racer-"),
    "ReadsFromAReplica": ("old record", "rounds: racer-"),
    "ClockGoesBack": ("clock", "the store's time went back by 0.5s between two reads of racer-"),
    "FrontEndsDisagree": ("clock", "is 3.0s from that for racer-"),
    "KeepsTrust": ("stopped holder", "had the lock; then its lease was trusted"),
}


@FOR_FULL
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_in_the_right_words(name: str, broken: Callable[[str], str]) -> None:
    kind, words = FAULTS[name]

    def is_found(judge: Judge) -> bool:
        return any(words in example for example in judge.faults.get(kind, [])) or (
            kind == "refused" and judge.counts["rounds without a grant"] > 1
        )

    checks = tortured(broken(name), is_found)
    assert checks[kind].status == checks["torture"].status == "failed"
    assert words in checks[kind].message
    assert checks[kind].hint == MEANINGS[kind]
    assert re.match(r"[1-9][\d,]* faults? found in ", checks["torture"].message)
    assert broken_stores.Sound().records() == []


@FOR_FULL
def test_errors_are_counted_and_are_no_fault(broken: Callable[[str], str]) -> None:
    checks = tortured(broken("FailsAtTimes"), lambda judge: has_tried_all(judge) and judge.counts["errors"] > 0)
    assert [check.status for check in checks.values()] == ["ok"]
    assert count(checks["torture"].message, "errors") > 0
    assert checks["torture"].message.endswith("; the first error: ProviderUnreachable: no reply")


@FOR_FULL
def test_i5_an_outage_is_no_verdict(broken: Callable[[str], str]) -> None:
    done = run("doctor", "--torture", "--for", "2s", "--json", store=broken("Fails"))
    data = json.loads(done.stdout)
    assert (done.exit_code, data["ok"]) == (1, False)
    (check,) = data["checks"]
    assert (check["check"], check["status"]) == ("torture", "failed")
    assert check["message"].startswith("no verdict, too little was tried: 0 grants ")
    assert "ProviderUnreachable: no reply" in check["message"]
    assert "rounds: 10" in check["hint"]


@FOR_FULL
def test_ctrl_c_ends_it_with_a_report_and_without_records(broken: Callable[[str], str]) -> None:
    words = [sys.executable, "-m", "shedlock_py", "doctor", "--torture", "--store", broken("Sound")]
    with Popen(words, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True) as process:
        store = broken_stores.Sound()
        wait_until(lambda: len(store.records(PREFIX)) > 5, what="under way", timeout=60)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, also to the racers
        out, err = process.communicate(timeout=60)
    assert err == ""
    assert re.search("^(✓|ok|✗|FAILED) torture: no (fault found|verdict)", out.splitlines()[1])
    assert process.returncode in (0, 1)
    assert store.records() == []


def test_a_store_that_cannot_be_used_starts_no_racer(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    done = run("doctor", "--torture", store=f"sqlite:///{tmp_path}/empty.db")
    assert done.exit_code == 1
    assert "reach the store: " in done.stdout
    assert "no such table" in done.stdout
    done = run("doctor", "--torture", store="memory://")
    assert done.exit_code == 1
    assert "locks in memory guard nothing between processes" in done.stdout


def test_the_time_needs_the_flag(broken: Callable[[str], str]) -> None:
    done = run("doctor", "--for", "1m", store=broken("Sound"))
    assert (done.exit_code, done.stderr) == (64, "shedlock: --for needs --torture (see shedlock doctor --help)\n")


# The judge alone


def reply(racer: str = "a", sent: float = 0.0, took: float = 0.1, **values: Any) -> Reply:
    return Reply(racer, sent, sent + took, **values)


def grant(racer: str, sent: float, token: int, until: float | None = None, **values: Any) -> Reply:
    until = sent + 5 if until is None else until
    return reply(racer, sent, is_done=True, token=token, until=until, locked_by=f"{racer}#1", **values)


@pytest.fixture
def judge() -> Judge:
    return Judge(2)


def test_i1_two_grants_are_a_fault_only_while_both_leases_are_trusted(judge: Judge) -> None:
    judge.round("job", [grant("a", 0, 1), grant("b", 6, 2)])  # the request of b took so long
    assert judge.faults == {}
    judge.round("job", [grant("a", 10, 3), grant("b", 14, 4)])
    assert list(judge.faults) == ["two holders"]


def test_a_round_with_an_error_does_not_count(judge: Judge) -> None:
    assert judge.round("job", [grant("a", 0, 1), reply("b", error="no reply")]) is None
    assert (judge.counts["rounds"], judge.counts["errors"], judge.counts["grants"]) == (0, 1, 1)


def test_a_refusal_after_the_end_of_the_trust_is_no_lost_lease(judge: Judge) -> None:
    lease = grant("a", 0, 1)
    judge.kept("job", "an extend", lease, reply(sent=4.95, until=5.0))
    assert judge.faults == {}
    judge.kept("job", "an extend", lease, reply(sent=4.8, until=5.0))
    assert list(judge.faults) == ["lost lease"]


def test_i3_i6_a_grant_between_the_end_of_the_trust_and_the_grace_is_right(judge: Judge) -> None:
    former = grant("a", 0, 1, until=0.99)
    for sent in (0.5, 6.0):
        judge.attempt("job", 1.0, former, reply(sent=sent))
    judge.attempt("job", 1.0, former, grant("b", 0.95, 2))
    assert judge.faults == {}
    judge.attempt("job", 1.0, former, grant("b", 0.8, 3))
    assert list(judge.faults) == ["early expiry"]
    assert judge.attempt("job", 1.0, former, reply(sent=6.2))
    assert list(judge.faults) == ["early expiry", "late expiry"]


def test_a_store_with_a_coarse_clock_may_keep_leases_longer_and_differ_by_its_clock_error() -> None:
    judge = Judge(2, clock_error=1.0)
    judge.attempt("job", 1.0, grant("a", 0, 1, until=0.99), reply(sent=9.0))
    judge.clock(reply(read_at=100.0), reply("b", read_at=101.9), reply(read_at=100.0))
    assert judge.faults == {}
    judge.clock(reply(read_at=100.0), reply("b", read_at=102.3), reply(read_at=100.0))
    assert list(judge.faults) == ["clock"]


def test_i7_tokens_are_compared_for_each_name(judge: Judge) -> None:
    for name, token in (("job", 5), ("other", 3), ("job", 6)):
        judge.granted(name, grant("a", 0, token))
    assert judge.faults == {}
    judge.granted("job", grant("a", 0, 6))
    assert list(judge.faults) == ["fencing tokens"]
    judge.granted("java", reply(is_done=True))
    assert judge.number["fencing tokens"] == 1


def test_i11_an_older_fire_time_is_a_fault_only_after_a_newer_grant(judge: Judge) -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    judge.fire_time("job", when, [reply("a"), reply("b")], grant("a", 1, 1))
    assert judge.faults == {}
    judge.fire_time("job", when, [grant("a", 2, 2), reply("b")], grant("a", 3, 3))
    assert list(judge.faults) == ["fire times"]


def test_the_clock_may_drift_and_the_time_of_a_reading_is_not_exact(judge: Judge) -> None:
    judge.clock(reply(read_at=100.0), reply("b", read_at=100.3, took=0.4), reply(read_at=100.0))
    # Half a second in forty: too long ago to be a jump.
    judge.clock(*(reply(racer, 40.0, read_at=140.5) for racer in "aba"))
    assert judge.faults == {}
    judge.clock(*(reply(racer, 41.0, read_at=141.8) for racer in "aba"))
    assert judge.faults == {"clock": ["the store's time jumped ahead by 0.2s between two reads of a"]}
