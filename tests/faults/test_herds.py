"""The short form of scenario 12: 200 attempts at one instant from eight processes; many names."""

import subprocess
import sys

import pytest

from tests.faults.checker import Report
from tests.faults.registry import Budget
from tests.faults.scenarios import herds
from tests.faults.scenarios.herds import Outcome
from tests.faults.stores import Store

NAMES = 100


@pytest.mark.parametrize(
    "fault_store",
    ["sqlite sync", "postgres async", "mariadb sync", "redis sync", "mongodb sync"],
    indirect=True,
)
def test_200_attempts_at_one_instant(fault_store: Store) -> None:
    report = herds.herd(fault_store, Budget(0), 1)
    assert report.findings == []
    assert report.counts["acquire granted"] == 2  # cold, and warm
    assert report.counts["acquire skipped"] == 2 * (herds.PROCESSES * herds.EACH - 1)


@pytest.mark.parametrize("fault_store", ["postgres async"], indirect=True)
def test_many_names(fault_store: Store) -> None:
    report = herds.race(fault_store, Budget(0), NAMES)
    assert report.findings == []
    assert report.counts["acquire granted"] == NAMES
    assert report.counts["acquire skipped"] == 3 * NAMES


@pytest.mark.parametrize(
    ("outcome", "rule"),
    [
        (Outcome(["a", "a"], 0), "overlap"),
        (Outcome([], 2), "overlap"),
        (Outcome(["a"], 0, ["ProviderUnreachable: no"]), "error"),
        (Outcome(["a"], 0), "hang"),
    ],
)
def test_what_is_found(outcome: Outcome, rule: str) -> None:
    report = Report()
    herds._judge(report, ["a"], outcome, attempts=2)
    assert rule in {finding.rule for finding in report.findings}


FORKED = """
import os, socket, sys, threading
from shedlock_py.providers.sqlalchemy.engines import watchdog

def child():
    sys.setswitchinterval(1e-6)
    died = []
    threading.excepthook = died.append
    everybody = threading.Barrier(20)
    ours, theirs = zip(*(socket.socketpair() for _ in range(20)))

    def ask(one):
        everybody.wait(30)
        with watchdog.limit(one.fileno(), 60.0):
            everybody.wait(30)

    threads = [threading.Thread(target=ask, args=(one,)) for one in ours]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    with watchdog.limit(ours[0].fileno(), 0.05):
        theirs[0].settimeout(30)
        cut = theirs[0].recv(1) == b""
    watching = sum(thread.name == "shedlock-watchdog" for thread in threading.enumerate())
    return 0 if cut and watching == 1 and not died else 1

for _ in range(20):
    pid = os.fork()
    if pid == 0:
        os._exit(child())
    if os.waitpid(pid, 0)[1]:
        sys.exit("the time limits of a forked process do not work")
"""


def test_time_limits_in_a_forked_process_with_many_threads() -> None:
    """What the herd found: threads of a new child raced for PostgreSQL's watchdog, and it died."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
