"""Run history on Redis. ``lua/history.lua`` writes the runs into the lock records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast, get_args

from shedlock_py.model.lease import RunOutcome
from shedlock_py.model.run import Run
from shedlock_py.providers.kit import StorePrograms, refused
from shedlock_py.providers.redis.commands import EPOCH, MICROSECOND, Call, Command
from shedlock_py.runtime.program import Program

_NUMBER = re.compile(rb"-?[0-9]{1,18}")


def runs_kept(programs: StorePrograms) -> int:
    """Return the number of runs that a script must keep. If 0, it writes no history."""
    return programs.history if programs.is_history_on() else 0


def run_script(call: Call, name: str, programs: StorePrograms) -> Program[Command, Any, Any]:
    """Return the reply to a script. If the script could not write history, pause history."""
    reply = yield call
    if isinstance(reply, bytes):
        result, _, why = reply.partition(b" ")
        programs.history_failed(refused("history", name, why.decode(errors="replace")))
        return int(result)
    return reply


def to_runs(name: str, key: bytes, reply: Sequence[bytes]) -> list[Run]:
    """Parse the reply of ``runs.lua``.

    :raises ValueError: another program has changed a run. The message says how to fix it.
    """
    runs = []
    for field, value in zip(reply[::2], reply[1::2], strict=True):
        if field.startswith(b"run:") and value:
            try:
                runs.append(_to_run(name, value))
            except (ValueError, OverflowError) as error:
                where = f"{key.decode()} {field.decode(errors='replace')}"
                raise ValueError(
                    f"a run of this lock is not what history wrote ({error}). Read it with HGET {where}, and delete "
                    f"it with HDEL {where}."
                ) from error
    return runs


def newest_of(reply: Sequence[bytes], limit: int) -> list[bytes]:
    """Return the unparsed fields and values of the newest ``limit`` runs of a record."""
    runs = [pair for pair in zip(reply[::2], reply[1::2], strict=True) if pair[0].startswith(b"run:") and pair[1]]
    runs.sort(key=lambda pair: (digits := pair[1].partition(b"\n")[0]).isdigit() and int(digits[:18]), reverse=True)
    return [part for pair in runs[:limit] for part in pair]


def _to_run(name: str, value: bytes) -> Run:
    token, started, fire_time, next_fire_time, locked_by, *end = value.split(b"\n", 7)
    if len(end) not in (0, 3):
        raise ValueError(f"{len(end) + 5} lines")
    ended, outcome, error = end or (b"", b"", b"")
    if end and _text(outcome) not in get_args(RunOutcome):
        raise ValueError(f"the outcome {_text(outcome)[:40]!r}")
    return Run(
        name=name,
        fencing_token=_number(token),
        locked_by=_text(locked_by),
        started=EPOCH + _number(started) * MICROSECOND,
        ended=EPOCH + _number(ended) * MICROSECOND if end else None,
        outcome=cast(RunOutcome, _text(outcome)) if end else None,
        error=_text(error) or None,
        fire_time=EPOCH + _number(fire_time) * MICROSECOND if fire_time else None,
        next_fire_time=EPOCH + _number(next_fire_time) * MICROSECOND if next_fire_time else None,
    )


def _number(value: bytes) -> int:
    if not _NUMBER.fullmatch(value):
        raise ValueError(f"{value[:40].decode(errors='replace')!r} is not a number")
    return int(value)


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
