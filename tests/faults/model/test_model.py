"""All that can happen to one lock: no promise is broken, and each part of the algorithm is needed.

The token rounds of the quorum have a model of their own, tests/stores/redis_quorum/model.py.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.faults.model.checker import Model, Violation

FULL = bool(os.environ.get("FAULTS_FULL"))
DIALECTS = ("sql", "redis", "mongodb")

QUIET: dict[str, Any] = {"at_most": 2}
MINIMUM: dict[str, Any] = {"at_most": 2, "at_least": 1, "lengths": (1,)}
RETRIES: dict[str, Any] = {"at_most": 2, "retries": 1}
EXTENSIONS: dict[str, Any] = {"at_most": 1, "lengths": (1, 2)}
BY_HAND: dict[str, Any] = {"at_most": 1, "lengths": (1,), "by_hand": ("delete", "force release")}
TAKE_OVER: dict[str, Any] = {
    "at_most": 2, "lengths": (1,), "by_hand": ("force release",), "forceful": frozenset({1}),
}  # fmt: skip
LATE: dict[str, Any] = {"at_most": 1, "retries": 1, "lengths": (2,)}
LATE_BY_HAND: dict[str, Any] = {"at_most": 2, "retries": 1, "by_hand": ("force release",)}
TWICE: dict[str, Any] = {"at_most": 2, "claims": 1, "retries": 1, "lengths": (1, 2)}
THREE: dict[str, Any] = {"at_most": 2, "claims": 3}

EVERYWHERE = {"retries": RETRIES}
# Where SQL and MongoDB do not differ.
TWO_KINDS = {"late": LATE, "late, by hand": LATE_BY_HAND, "extensions sent twice": TWICE}
# Where the dialects do not differ, one of them will do, but for the full run.
ONCE = {"minimum": MINIMUM, "extensions": EXTENSIONS, "by hand": BY_HAND, "take over": TAKE_OVER}
if FULL:
    ONCE["three"] = THREE
SCENES = [(dialect, name) for name in EVERYWHERE for dialect in DIALECTS]
SCENES += [(dialect, name) for name in TWO_KINDS for dialect in (DIALECTS if FULL else ("sql", "redis"))]
SCENES += [(dialect, name) for name in ONCE for dialect in (DIALECTS if FULL else ("redis",))]


@pytest.mark.parametrize(("dialect", "scene"), SCENES)
def test_no_promise_is_broken(dialect: str, scene: str, record_property: Any) -> None:
    states = Model(dialect, **{**EVERYWHERE, **TWO_KINDS, **ONCE}[scene]).check()
    record_property("states", states)
    print(f"{dialect}, {scene}: {states} states")
    assert states > 1000


MUTATIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    # What is changed: the dialect that it is changed in, what happens there, and the promise that it breaks.
    "releases by name": ("sql", QUIET, "I2"),
    "trust counts from the reply": ("sql", QUIET, "I6"),
    "trust is a flag": ("sql", QUIET, "I6"),
    "tokens without the clock": ("sql", BY_HAND, "I7"),
    "expired leases are extended": ("sql", BY_HAND, "alive again"),
    "retries are not recognised": ("redis", RETRIES, "a skip was faked"),
    "late extensions": ("redis", {**MINIMUM, "lengths": (2,)}, "held again for nobody"),
    "the minimum hold counts from the operation": ("sql", MINIMUM, "I4"),
    "extensions cut the minimum hold": ("sql", {**MINIMUM, "at_least": 2}, "I4"),
    "extensions add up": ("sql", EXTENSIONS, "I3"),
    "nothing stays in doubt": ("sql", EXTENSIONS, "I6"),
    "a shorter extension is trusted late": ("sql", {"at_most": 2, "lengths": (1,)}, "I6"),
    # Found here, in shedlock_py itself, and mended.
    "extensions forget each other": ("sql", EXTENSIONS, "I6"),
    "a retry begins anew": ("sql", LATE, "I6"),
    "a retry prolongs": ("sql", LATE_BY_HAND, "alive again"),  # as MySQL did it
    "ended claims are granted again": ("redis", LATE_BY_HAND, "granted again for nobody"),
    "extensions do not carry the token": ("mongodb", LATE, "trusts token 1 after"),
    "extensions are done once": ("sql", TWICE, "I6"),
    "overtaken extensions are done": ("redis", TWICE, "I6"),
    "take-overs of any record": ("sql", TAKE_OVER, "I1"),
}


@pytest.mark.parametrize("change", MUTATIONS)
def test_each_part_is_needed(change: str) -> None:
    dialect, scene, broken = MUTATIONS[change]
    with pytest.raises(Violation) as found:
        Model(dialect, **scene, changes=frozenset({change})).check()
    print(f"without it ({change}):\n{found.value}\n")
    assert broken in str(found.value).splitlines()[-1]
