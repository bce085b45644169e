"""A discrete-event simulation of many processes that run the real programs, in virtual time, from one seed."""

from tests.simulation.schedule import (
    KINDS,
    LIMITS,
    Entry,
    Fault,
    Mutant,
    Outcome,
    Schedule,
    Violation,
    draw,
)
from tests.simulation.simulation import simulate

__all__ = ["KINDS", "LIMITS", "Entry", "Fault", "Mutant", "Outcome", "Schedule", "Violation", "draw", "simulate"]
