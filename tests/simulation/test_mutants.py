"""The checker finds each mutant within one simulated hour: it is not blind, and the schedules are not too tame.

The seed is fixed, so the result is always the same. `make test` tries a sample; `make test-all` tries all mutants, and
`make simulate` tries them with more seeds.
"""

from __future__ import annotations

import pytest

from tests.simulation.mutants import ALL, Mutant
from tests.simulation.trials import try_mutant

SEED = 1
SAMPLE = (
    "leadership is a flag",
    "a renewal counts from its reply",
    "a node leads at once",
    "a leader resigns before its callbacks end",
    "a node that resigned never stands again",
    "a demotion is ignored",
    "no undo is sent",
    "a failed extension passes for a success",
    "an undo keeps the fire time",
    "a grant is written without the version",
    "a hold is written without the version",
    "any conflict passes for a grant",
    "the local clock decides",
    "the latest time decides",
    "an undo by name",
)
MUTANTS = [pytest.param(ALL[name], id=name, marks=[] if name in SAMPLE else [pytest.mark.matrix]) for name in ALL]


def test_there_are_at_least_thirty() -> None:
    assert len(ALL) >= 30


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found_within_an_hour(mutant: Mutant) -> None:
    detection = try_mutant(mutant, [SEED])
    print(f"{mutant.wrong}\n{detection}")
    assert detection.is_found, str(detection)
