"""Check the specifications of docs/formal with TLC.

    python -m tests.formal [NAME...]

Prints what TLC found for each specification, documented limit and mutant (if their names contain one of NAME).
Exits with 1 if a promise is broken, or if TLC missed a limit or a mutant.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from tests.formal.cases import Case, limits, mutants, specifications
from tests.formal.tlc import Result, TlcFailed, check


def main(arguments: Sequence[str]) -> int:
    cases = [*specifications(), *limits(), *mutants()]
    chosen = [case for case in cases if not arguments or any(part in case.name for part in arguments)]
    if not chosen:
        print("no such specification; there are:", *(case.name for case in cases), sep="\n  ")
        return 2
    failed = sum(not _run(case) for case in chosen)
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _run(case: Case) -> bool:
    """Print one line. Return whether TLC found the expected result."""
    started = time.monotonic()
    try:
        result = check(case.module, case.config)
    except TlcFailed as error:
        print(f"FAILED {case.name}: {error}", flush=True)
        return False
    is_right = result.violated == case.violated
    print(
        f"{'ok    ' if is_right else 'FAILED'} {case.name}: {line(result)} in {time.monotonic() - started:.0f} s",
        flush=True,
    )
    if not is_right:
        print(result.output if result.violated else f"       TLC must find {case.violated} broken", flush=True)
    return is_right


def line(result: Result) -> str:
    found = f"{result.violated} broken" if result.violated else f"all promises hold, depth {result.depth}"
    return f"{found}; {result.states:,} states, {result.distinct:,} distinct,"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
