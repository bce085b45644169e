"""Print the path of one warm guarded call on SQLite: modules, Python calls, changes of module.

Run ``python -m scripts.trace_call`` from the root of the project; ``--list`` prints each call as well.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

from shedlock_py import configure, scheduler_lock

PACKAGE = "shedlock_py"


@scheduler_lock("trace", lock_at_most_for="1m")
def task() -> None:
    """Do nothing."""


def trace_call() -> list[tuple[str, CodeType]]:
    """Return the package's Python functions that one call enters: module and code."""
    calls: list[tuple[str, CodeType]] = []
    frames: set[FrameType] = set()  # a generator has an event each time that it continues, and counts once

    def on_event(frame: FrameType, event: str, _argument: object) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.partition(".")[0] == PACKAGE and frame not in frames:
            frames.add(frame)
            calls.append((module, frame.f_code))

    sys.setprofile(on_event)
    try:
        task()
    finally:
        sys.setprofile(None)
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print each call")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder, 'locks.db')}"
        configure(url, create_schema=True)
        for _ in range(3):  # the first call connects
            task()
        calls = trace_call()
    if arguments.list:
        for module, code in calls:
            print(f"{module:45} {code.co_qualname}")
    modules = [module for module, _ in calls]
    changes = sum(former != module for former, module in pairwise(modules))
    print(f"{len(set(modules))} modules, {len(calls)} calls, {changes} changes of module")


if __name__ == "__main__":
    main()
