"""Instructions of one call, where valgrind is installed: the same on every run to within a thousandth.

Not with ``--quick``, for a profiler makes everything fifty times as slow.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.plan import Absent, Plan
from benchmarks.servers import running

CALLS = 100
_SCRIPT = """
import os, sys
from shedlock_py import InMemoryLockProvider, LockRequest, provider_from_url, scheduler_lock
if sys.argv[1] == "memory":
    call = scheduler_lock("bench", "1m", provider=InMemoryLockProvider())(lambda: 1)
else:
    provider, request = provider_from_url(sys.argv[1]), LockRequest("bench", "1m")
    provider.create_schema()
    assert provider.acquire(request)
    call = lambda: provider.acquire(request)
for times in (50, int(sys.argv[2]), 2 * int(sys.argv[2])):
    for _ in range(times):
        call()
    os.getppid()  # where callgrind writes down what it has counted, and begins anew
"""


def measure(plan: Plan) -> dict[str, float]:
    """Of a call of a decorated function with its lock in memory, and of a skip on stores."""
    if shutil.which("valgrind") is None:
        plan.absent.append(Absent("all", "all", "instructions", "valgrind is not installed"))
        return {}
    found = {"decorator, in memory": count("memory")}
    for name in ("redis", "postgres", "sqlite"):
        if name in plan.stores:
            with plan.reported(name, "instructions"), running(name) as store:
                found[f"skip, {name}"] = count(store.site.url())
    return found


def count(url: str) -> float:
    with tempfile.TemporaryDirectory(prefix="shedlock-bench-") as directory:
        out = Path(directory, "out")
        tool = ["valgrind", "--tool=callgrind", "--dump-before=getppid", f"--callgrind-out-file={out}"]
        subprocess.run(
            [*tool, sys.executable, "-c", _SCRIPT, url, str(CALLS)],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            check=True,
            capture_output=True,
        )
        once, twice = (_total(out.with_suffix(f".{number}")) for number in (2, 3))
    return (twice - once) / CALLS


def _total(dump: Path) -> int:
    found = re.search(r"^totals: (\d+)", dump.read_text(), re.MULTILINE)
    assert found
    return int(found[1])
