"""The machine of a run."""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.contenders import CONTENDERS

ROOT = Path(__file__).resolve().parents[1]


def describe() -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "processor": _field("/proc/cpuinfo", "model name"),
        "processors": os.cpu_count(),
        "memory_gb": round(int((_field("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 2**20, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "fsync_us": round(fsync_us()),
        "load_at_begin": os.getloadavg()[0],
        "versions": _versions(),
    }


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", "shedlock_py"], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


def _field(path: str, name: str) -> str:
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "unknown")


def fsync_us() -> float:
    """Measure a durable write of 4 KB, the largest part of a commit."""
    took = []
    with tempfile.TemporaryFile(dir="/tmp") as file:
        for number in range(100):
            os.pwrite(file.fileno(), b"x" * 4096, 4096 * number)
            begin = perf_counter()
            os.fsync(file.fileno())
            took.append(perf_counter() - begin)
    return median(took) * 1e6


def _versions() -> dict[str, str]:
    names = {contender.package for contender in CONTENDERS if contender.package} | {"SQLAlchemy", "shedlock_py"}
    found = {}
    for package in sorted(names, key=str.lower):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
