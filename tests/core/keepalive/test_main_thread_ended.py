"""A job in a thread goes on after the main thread has ended, and so do its heartbeats.

Python 3.12.0 and 3.12.1 start no more threads from that moment: there, a heartbeat that needs a new thread fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import shedlock_py

OTHERS = sorted(Path.home().glob(".pyenv/versions/3.1[234]*/bin/python3"))
INTERPRETERS = [
    sys.executable,
    *(pytest.param(str(path), marks=pytest.mark.slow("on another Python")) for path in OTHERS),
]
pytestmark = pytest.mark.not_quick("starts a Python")

SCRIPT = """
import sys, threading, time
from shedlock_py import InMemoryLockProvider, LeaseLost, configure, hold

lost, has_begun = [], threading.Event()
configure(listeners=[lambda event: lost.append(event) if isinstance(event, LeaseLost) else None])

class Counting(InMemoryLockProvider):
    extensions = 0
    def extend(self, lease, lock_at_most_for):
        self.extensions += 1
        return super().extend(lease, lock_at_most_for)

def job():
    store = Counting()
    on_lost = lambda lost: None
    with hold("job", lock_at_most_for=0.6, keep_alive={keep_alive}, on_lost=on_lost, provider=store) as lease:
        has_begun.set()
        threading.main_thread().join()
        time.sleep(2)
        print(lease.is_trusted(), store.extensions >= 4, flush=True)
    print([event.reason for event in lost], flush=True)

threading.Thread(target=job).start()
has_begun.wait()
"""


def run(interpreter: str, *, keep_alive: bool) -> list[str]:
    done = subprocess.run(
        [interpreter, "-c", SCRIPT.replace("{keep_alive}", str(keep_alive))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(shedlock_py.__file__).parent.parent)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_heartbeats_go_on_where_threads_can_start_and_the_lease_is_reported_lost_elsewhere(interpreter: str) -> None:
    version = subprocess.run([interpreter, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    is_lost = version in ("3.12.0", "3.12.1")
    outcome = ["False False", "['unreachable']"] if is_lost else ["True True", "[]"]
    assert run(interpreter, keep_alive=True) == outcome


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_a_lost_lease_is_reported(interpreter: str) -> None:
    """The loss is reported at the end of the task, where no thread can be started."""
    assert run(interpreter, keep_alive=False) == ["False False", "['overrun']"]
