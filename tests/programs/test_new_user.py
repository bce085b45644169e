"""The first lines that a new user writes, in four replicas at once: each scheduled run takes place once."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.forked import Program

REPLICAS = 4
BEGIN = """
import sys, time
from pathlib import Path
from shedlock_py import attempt, configure, hold, scheduler_lock
url, name, directory, replica = sys.argv[1:]
configure(url, create_schema=True, holder=f"replica-{replica}")

def meet(where):  # goes on when all replicas are there
    Path(directory, f"{where}-{replica}").touch()
    while len([*Path(directory).glob(f"{where}-*")]) < 4:
        time.sleep(0.01)

meet("begin")
"""


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/locks.db?timeout=30s"
    server = request.getfixturevalue(f"{request.param}_server")
    return str(server.url() if request.param == "redis" else server.url("postgresql"))


def replicas(script: str, url: str, directory: Path, *, codes: Sequence[int] = (0,)) -> list[str]:
    """Run the script in four replicas at once. Return their output lines, sorted."""
    name = f"job-{uuid4().hex[:8]}"
    words = [["-c", BEGIN + script, url, name, str(directory), str(number)] for number in range(REPLICAS)]
    started = [Program(each, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for each in words]
    ended = [(*program.communicate(timeout=60), program.returncode) for program in started]
    assert {code for _, _, code in ended} <= {*codes}, ended
    return sorted(line for out, _, _ in ended for line in out.splitlines())


def test_i1_a_block_of_hold_runs_with_the_lock_or_not_at_all(url: str, tmp_path: Path) -> None:
    script = """
try:
    with hold(name, lock_at_most_for="1m"):
        print("mail sent to every customer")
        meet("tried")
finally:
    meet("tried")
"""
    assert replicas(script, url, tmp_path, codes=(0, 1)) == ["mail sent to every customer"]


def test_i1_an_attempt_is_true_where_the_task_ran(url: str, tmp_path: Path) -> None:
    script = """
if attempt(name, lambda: meet("tried"), lock_at_most_for="1m"):
    print("ran")
else:
    print("skipped")
    meet("tried")
"""
    assert Counter(replicas(script, url, tmp_path)) == {"ran": 1, "skipped": REPLICAS - 1}


def test_i1_replicas_that_wait_run_one_after_the_other(url: str, tmp_path: Path) -> None:
    """Each replica reads a number, waits, and writes the next: two replicas at once would write the same number."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    script = f"""
with hold(name, lock_at_most_for="1m", wait="50s"):
    number = int(Path({str(counter)!r}).read_text())
    time.sleep(0.3)
    Path({str(counter)!r}).write_text(str(number + 1))
"""
    replicas(script, url, tmp_path)
    assert counter.read_text() == str(REPLICAS)


def test_i11_a_short_task_runs_once_per_slot(url: str, tmp_path: Path) -> None:
    """It ends at once, so each replica finds the lock free."""
    script = """
@scheduler_lock(name, once_per="3000d")
def job():
    print("ran")

for _ in range(20):
    job()
    time.sleep(0.01)
"""
    assert replicas(script, url, tmp_path) == ["ran"]


def test_i11_a_message_that_all_replicas_get_is_handled_once(url: str, tmp_path: Path) -> None:
    script = """
from datetime import datetime, timedelta, timezone

@scheduler_lock(name, fire_time=lambda sent_at: sent_at)
def handle(sent_at):
    print(sent_at.isoformat())

for minute in range(5):
    handle(datetime(2026, 3, 1, 12, minute, tzinfo=timezone.utc))
    meet(f"minute {minute}")
"""
    assert replicas(script, url, tmp_path) == [f"2026-03-01T12:0{minute}:00+00:00" for minute in range(5)]
