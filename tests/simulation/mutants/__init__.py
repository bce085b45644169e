"""Mutants: the real code with one thing wrong in each, which the checker must find within one simulated hour.

Each replaces one public method or constant of the real code while a simulation runs.
"""

from tests.simulation.mutants import dates, elections, holders, keepalives, once, records, recoveries
from tests.simulation.mutants.mutant import ALL, Mutant

__all__ = ["ALL", "Mutant", "dates", "elections", "holders", "keepalives", "once", "records", "recoveries"]
