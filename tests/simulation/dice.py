"""Random numbers that depend on their purpose, and not on the number of earlier draws.

So a message has the same delay after a fault was dropped from the schedule.
"""

from __future__ import annotations

from random import Random

_MASK = (1 << 64) - 1
_FLOAT = 1.0 / (1 << 53)


class Dice:
    """A sequence of numbers from 0 to 1 (SplitMix64), for one message or one step of one node."""

    __slots__ = ("_state",)

    def __init__(self, seed: int, number: int) -> None:
        self._state = (seed ^ (number * 0xD1342543DE82EF95)) & _MASK

    def __call__(self) -> float:
        self._state = state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((state ^ (state >> 31)) >> 11) * _FLOAT


def seed_of(*parts: object) -> int:
    """Return a seed of 64 bits for :class:`Dice`."""
    return Random("/".join(map(str, parts))).getrandbits(64)
