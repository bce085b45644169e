"""All states of three servers and two claims: no violation, and each part of the algorithm is needed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stores.redis_quorum.model import Model, Violation

LONG = pytest.mark.matrix("more states of the same model, which no change of the package changes: some seconds each")


STATES = pytest.mark.slow("ten thousands of states")


@pytest.mark.parametrize(
    ("restarts", "clocks"),
    [
        pytest.param(0, (9, 1, 1), marks=STATES),
        pytest.param(0, (1, 1, 9), marks=STATES),
        pytest.param(0, (1, 1, 1), marks=STATES),
        pytest.param(1, (9, 1, 1), marks=STATES),
        pytest.param(1, (1, 1, 9), marks=LONG),
        pytest.param(1, (1, 1, 1), marks=LONG),
    ],
    ids=str,
)
def test_i1_and_i7_hold(clocks: tuple[int, ...], restarts: int) -> None:
    assert Model(clocks=clocks, restarts=restarts).check() > 9_000, "states"


@LONG
@pytest.mark.parametrize(("take_overs", "restarts"), [(1, 0), (1, 1), (2, 0)])
def test_i1_i2_and_i7_hold_with_take_overs(take_overs: int, restarts: int) -> None:
    assert Model(restarts=restarts, take_overs=take_overs).check() > 40_000, "states"


@pytest.mark.parametrize(
    ("left_out", "broken"),
    [
        ({"has_second_broadcast": False, "restarts": 0}, "I7"),
        ({"has_quarantine": False}, "I1"),
        pytest.param({"needs_vote": False}, "I1", marks=STATES),
        pytest.param({"is_conditional": False, "take_overs": 1, "restarts": 0}, "I2", marks=STATES),
        ({"checks_memory": False, "take_overs": 1}, "I1|I7"),
    ],
    ids=str,
)
def test_each_part_is_needed(left_out: dict[str, Any], broken: str) -> None:
    with pytest.raises(Violation, match=broken):
        Model(**left_out).check()
