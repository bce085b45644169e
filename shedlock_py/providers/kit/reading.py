"""Reads run history: validates the arguments, runs the store's program, and sorts its result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.run import Run, newest_first
from shedlock_py.model.text import quoted
from shedlock_py.providers.kit.store_programs import StorePrograms
from shedlock_py.runtime.program import Program


def read_runs(programs: StorePrograms, name: str, limit: int) -> Program[Any, Any, list[Run]]:
    _require_history(programs, limit)
    runs = [run for run in (yield from programs.runs(name, limit)) if run.name == name]
    return newest_first(runs, min(limit, programs.history))


def read_recent_runs(
    programs: StorePrograms, names: Iterable[str], limit: int
) -> Program[Any, Any, dict[str, list[Run]]]:
    _require_history(programs, limit)
    found: dict[str, list[Run]] = {name: [] for name in names}
    limit = min(limit, programs.history)
    if found:
        for run in (yield from programs.recent_runs(list(found), limit)):
            if run.name in found:
                found[run.name].append(run)
    return {name: newest_first(runs, limit) for name, runs in found.items()}


def _require_history(programs: StorePrograms, limit: int) -> None:
    if not programs.history:
        what = "this provider keeps no run history: open it with history=50, in the URL ?history=50"
        raise ConfigurationError(what if programs.keeps_history else "this store keeps no run history")
    given: object = limit
    if not isinstance(given, int) or given < 1:
        raise ConfigurationError(f"limit must be how many runs to read, at least 1, not {quoted(limit)}")
