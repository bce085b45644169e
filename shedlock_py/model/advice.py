"""Advice on ``lock_at_most_for``, from the durations in run history."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import timedelta

from shedlock_py.model.run import Run
from shedlock_py.model.text import in_words

FEWEST_RUNS = 10
"""Fewer runs give no advice."""
SHARE = 0.99
"""The share of the runs that the advice is for."""
ENOUGH = 3
"""A good ``lock_at_most_for`` is at least so many times the duration of these runs."""
FAR_TOO_LONG = 3
"""A ``lock_at_most_for`` of up to so many times a good value is not called too long."""
_MINUTES = (1, 2, 3, 5, 10, 15, 20, 30, 45)
_HOURS = (1, 2, 3, 4, 6, 8, 12, 24)
_STEPS = (*(timedelta(minutes=each) for each in _MINUTES), *(timedelta(hours=each) for each in _HOURS))


def advice(runs: Iterable[Run], lock_at_most_for: timedelta | None = None) -> str | None:
    """Compare the durations of ``runs`` with ``lock_at_most_for``. Return None if it fits, or the runs are too few.

    :param lock_at_most_for: the job's value, without keep-alive; None if it is not known.
    """
    ended = [run for run in runs if run.duration is not None and not (run.is_pause or run.is_demotion)]
    durations = sorted(run.duration for run in ended if run.duration is not None)
    number, lost = len(ended), sum(run.outcome == "lost" for run in ended)
    if number < FEWEST_RUNS:
        return None
    most = durations[-1] if lost else durations[math.ceil(SHARE * number) - 1]
    good = next((step for step in _STEPS if step >= ENOUGH * most), ENOUGH * most)
    present = "" if lock_at_most_for is None else f"lock_at_most_for is {in_words(lock_at_most_for)}"
    if lost:
        found = f"{lost} of {number} runs lost their lease, and the longest run took {in_words(most)}"
        if lock_at_most_for is None:
            return f"{found}. Without keep_alive, use a lock_at_most_for of {in_words(good)} or more"
        if most < lock_at_most_for:
            return f"{found}. {present}, which is longer: see the log for the reason"
        return f"{found}. {present}. Better: use {in_words(good)}, or keep_alive=True"
    found = f"{SHARE:.0%} of {number} runs took {in_words(most)} or less"
    if lock_at_most_for is None:
        return f"{found}. Without keep_alive, a lock_at_most_for of {in_words(good)} is enough"
    cure = f"Better: use {in_words(good)}, or keep_alive=True"
    if lock_at_most_for < 2 * most:
        return f"{found}. {present}: a slow run outlives its lease, and another replica starts the job. {cure}"
    if lock_at_most_for > FAR_TOO_LONG * good:
        return f"{found}. {present}: after a crash, nobody runs the job for so long. {cure}"
    return None
