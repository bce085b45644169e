"""Mutants: the real code with one thing wrong in each, which the checker must find within one simulated hour.

Each replaces one method or constant of the real code while a simulation runs. It therefore uses private parts of that
code: a mutant is a wrong copy of an inner part.
"""

from tests.simulation.mutants import elections, holders, keepalives, records
from tests.simulation.mutants.mutant import ALL, Mutant

__all__ = ["ALL", "Mutant", "elections", "holders", "keepalives", "records"]
