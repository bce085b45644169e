"""The specifications of docs/formal, and recorded histories as their traces. TLC itself decides."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from shedlock_py.model.request import trust_ends
from tests.faults.history import NEVER, History, Operation, Reader
from tests.formal.cases import Case, mutants
from tests.formal.tlc import TlcFailed, check, find_jar, find_java
from tests.formal.traces import Trace, judge
from tests.support.availability import missing

RECORDED = Path(__file__).parent / "redis-kill-9.jsonl"
"""Two lock names; some workers were killed: ``python -m tests.faults --only 1 --store redis --keep …``."""


pytestmark = pytest.mark.slow("runs TLC in Java")


@pytest.fixture(autouse=True)
def tlc() -> None:
    try:
        find_jar()
        find_java()
    except TlcFailed as error:
        missing(str(error), "make servers")


@pytest.mark.parametrize("case", [*mutants()][:1], ids=lambda case: case.name)
def test_i1_a_store_that_grants_a_held_lock(case: Case) -> None:
    """A single run of TLC. ``make test-all`` makes the other runs, with ``python -m tests.formal``."""
    assert check(case.module, case.config).violated == "I1_MutualExclusion"


ANOTHER_RUN = pytest.mark.matrix("another run of TLC; the specification has a mutant for each promise")


@pytest.fixture(scope="module")
def history() -> History:
    return Reader(RECORDED).update().history()


def busiest(history: History) -> str:
    names = [operation.name for operation in history.of("acquire", outcome="granted")]
    return max(sorted(set(names)), key=names.count)  # sorted: several names may be equally busy


def test_a_recorded_history_is_a_behaviour_of_the_specification(history: History) -> None:
    verdict = judge(Trace(history, busiest(history)))
    assert verdict.accepted, verdict.line


@pytest.mark.parametrize("promise", ["I1", *(pytest.param(each, marks=ANOTHER_RUN) for each in ("I2", "I6", "I7"))])
def test_an_altered_history_is_refused(history: History, promise: str) -> None:
    """I1: a second grant while the lock is held. I2: a confirmed release of a killed holder's lease, after its
    successor's grant.

    I6: trust that lasts too long. I7: a token that is not greater.
    """
    name = busiest(history)
    operations = [each for each in history.operations if each.name == name]
    grants = [each for each in operations if each.kind == "acquire" and each.outcome == "granted"]
    first, second = grants[2], grants[3]
    if promise == "I1":
        extra = _second_grant(first)
        altered = sorted([*operations, extra], key=lambda each: each.started)
    elif promise == "I2":
        releases = [each for each in operations if each.kind == "release" and each.outcome == "done"]
        killed = next(each for each in grants if each.claim not in {release.claim for release in releases})
        successor = next(each for each in grants if each.started > killed.started)
        assert successor.ended is not None
        late = replace(
            releases[0],
            worker=killed.worker,
            claim=killed.claim,
            token=killed.token,
            started=successor.ended + 1e-5,
            ended=successor.ended + 2e-5,
        )
        altered = sorted([*operations, late], key=lambda each: each.started)
    elif promise == "I6":
        later = replace(first, trusted_until=first.started + first.at_most * 1.5)
        altered = [later if each is first else each for each in operations]
    else:
        assert first.token is not None
        smaller = replace(second, token=first.token - 1)
        altered = [smaller if each is second else each for each in operations]
    verdict = judge(Trace(History(tuple(altered)), name))
    assert not verdict.accepted
    assert ("release" if promise == "I2" else "acquire") in verdict.line


def _second_grant(first: Operation) -> Operation:
    """A grant to a different worker, a moment after ``first`` was granted: before any release can have arrived."""
    assert first.ended is not None
    assert first.token is not None
    return replace(
        first,
        worker="another",
        claim="another claim",
        token=first.token + 1,
        started=first.ended,
        ended=first.ended + 1e-6,
        trusted_until=trust_ends(first.ended, timedelta(seconds=first.at_most)),
        trusted_before=NEVER,
    )
