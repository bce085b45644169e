"""The checker finds each mutant within one simulated hour: it is not blind, and the schedules are not too tame.

The seed is fixed, so the result is always the same. `make test` tries a sample, `make test-full` a larger sample,
`make test-all` all mutants, and `make simulate` tries them with more seeds.
"""

from __future__ import annotations

import pytest

from tests.simulation.mutants import ALL, Mutant
from tests.simulation.trials import HOURS, try_mutant

SEED = 1
SAMPLE = (
    "leadership is a flag",
    "a renewal counts from its reply",
    "a node leads at once",
    "a leader resigns before its callbacks end",
    "a node that resigned never stands again",
    "a demotion is ignored",
    "a failed extension passes for a success",
    "an undo by name",
    "a release leaves no mark",
    "a task that raises keeps its fire time",
)
SLOW_SAMPLE = (
    "no undo is sent",
    "an undo keeps the fire time",
    "a grant is written without the version",
    "a hold is written without the version",
    "any conflict passes for a grant",
    "the local clock decides",
    "the latest time decides",
)
SHORT = 0.2
"""Hours of the first try: one cycle of faults shows most mutants."""


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    if name in SLOW_SAMPLE:
        return [pytest.mark.slow("simulates the commands of a real store, or a whole hour")]
    return [] if name in SAMPLE else [pytest.mark.matrix("simulates an hour; a sample of the mutants runs before")]


MUTANTS = [pytest.param(ALL[name], id=name, marks=marks_of(name)) for name in ALL]


def test_there_are_at_least_thirty() -> None:
    assert len(ALL) >= 30


@pytest.mark.not_quick("mutants test the simulation, not the library")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found_within_an_hour(mutant: Mutant) -> None:
    detection = try_mutant(mutant, [SEED], SHORT)
    if not detection.is_found:
        detection = try_mutant(mutant, [SEED], HOURS)
    print(f"{mutant.wrong}\n{detection}")
    assert detection.is_found, str(detection)
