"""Progress of a run, on the standard error."""

from __future__ import annotations

import sys
from time import monotonic

_began = monotonic()


def say(text: str) -> None:
    print(f"{monotonic() - _began:6.0f} s  {text}", file=sys.stderr, flush=True)
