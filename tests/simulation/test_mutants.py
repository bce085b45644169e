"""The checker finds each mutant within one simulated hour: it is not blind, and the schedules are not too tame.

The seed is fixed, so the result is always the same. `make simulate` tries other seeds, and more of them.
"""

from __future__ import annotations

import pytest

from tests.simulation.mutants import ALL, Mutant
from tests.simulation.trials import try_mutant

SEED = 1


def test_there_are_at_least_thirty() -> None:
    assert len(ALL) >= 30


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", ALL.values(), ids=ALL.keys())
def test_a_mutant_is_found_within_an_hour(mutant: Mutant) -> None:
    detection = try_mutant(mutant, [SEED])
    print(f"{mutant.wrong}\n{detection}")
    assert detection.is_found, str(detection)
