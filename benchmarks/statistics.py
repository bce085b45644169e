"""Make figures from samples. The machine is noisy, so comparisons use medians, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Spread:
    """A median over rounds, with its quartiles."""

    middle: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), quantile(values, 0.25), quantile(values, 0.75))


def quantile(values: Sequence[float], fraction: float) -> float:
    """Interpolate between the two nearest values."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def ratio(values: Sequence[float | None], floor: Sequence[float | None]) -> Spread | None:
    """Compare each round with the floor's same round, so that a slow round does not show.

    A None stands for a round without a measurement.
    """
    pairs = [(value, base) for value, base in zip(values, floor, strict=True) if value is not None and base]
    return spread([value / base for value, base in pairs if base]) if pairs else None
