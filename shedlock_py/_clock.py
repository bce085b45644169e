"""The one local clock that the library reads: monotonic, and counting the time a machine was suspended."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

# time.monotonic() stands still while Linux is suspended; the store's clock, and so the lease, does not.
monotonic: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds on a clock that never goes back and does not stop in suspend."""
