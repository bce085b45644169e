"""From samples to figures. The machine is noisy: what counts is decided round by round, by medians."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Spread:
    """A median over rounds, and the quarter and three-quarter points beside it."""

    middle: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), quantile(values, 0.25), quantile(values, 0.75))


def quantile(values: Sequence[float], fraction: float) -> float:
    """Between the two nearest values, in proportion."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def ratio(values: Sequence[float | None], floor: Sequence[float | None]) -> Spread | None:
    """Of each round to the floor of the same round: what slows a whole round down does not show.

    None in a place: that round was not measured.
    """
    pairs = [(value, base) for value, base in zip(values, floor, strict=True) if value is not None and base]
    return spread([value / base for value, base in pairs if base]) if pairs else None
