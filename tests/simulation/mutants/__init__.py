"""Mutants: the real code with one fault. The checker must find every mutant within one simulated hour.

A mutant replaces one public method or constant of the real code while a simulation runs.
"""

from tests.simulation.mutants import dates, elections, holders, keepalives, once, records, recoveries
from tests.simulation.mutants.mutant import ALL, Mutant

__all__ = ["ALL", "Mutant", "dates", "elections", "holders", "keepalives", "once", "records", "recoveries"]
