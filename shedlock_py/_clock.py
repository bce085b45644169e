"""The one local clock that the library reads: monotonic, and counting the time a machine was suspended."""

from __future__ import annotations

import time

if hasattr(time, "CLOCK_BOOTTIME"):
    # time.monotonic() stands still while Linux is suspended; the store's clock, and so the lease, does not.
    def monotonic() -> float:
        """Seconds on a clock that never goes back and does not stop in suspend (clock_gettime(2), CLOCK_BOOTTIME)."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    monotonic = time.monotonic
