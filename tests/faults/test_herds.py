"""The short form of scenario 12: 200 attempts at one instant from eight processes; many names."""

import subprocess
import sys

import pytest

from tests.faults.checker import Report
from tests.faults.registry import Budget
from tests.faults.scenarios import herds
from tests.faults.scenarios.herds import Outcome
from tests.support.stores import Store

NAMES = 100


@pytest.mark.parametrize(
    "store",
    ["sqlite sync", "postgres async", "mariadb sync", "redis sync", "mongodb sync"],
    indirect=True,
)
def test_200_attempts_at_one_instant(store: Store) -> None:
    report = herds.herd(store, Budget(0), 1)
    assert report.findings == []
    _assert_all_answered(report, names=2, attempts=2 * herds.PROCESSES * herds.EACH)  # cold, and warm


@pytest.mark.parametrize("store", ["postgres async"], indirect=True)
def test_many_names(store: Store) -> None:
    report = herds.race(store, Budget(0), NAMES)
    assert report.findings == []
    _assert_all_answered(report, names=NAMES, attempts=4 * NAMES)


def _assert_all_answered(report: Report, *, names: int, attempts: int) -> None:
    """On a busy machine some give up after their time limit, the one that the store grants the lock perhaps too."""
    granted, skipped, gave_up = (report.counts[f"acquire {outcome}"] for outcome in ("granted", "skipped", "error"))
    assert granted + skipped + gave_up == attempts
    assert granted <= names
    assert gave_up or granted == names
    assert skipped


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


@pytest.mark.parametrize("store", ["sqlite sync"], indirect=True)
def test_after_a_herd_that_failed_there_is_another(store: Store) -> None:
    unknown = herds.Herd({**store.arguments(), "family": "unknown"}, [["a"]], processes=1, each=1)
    with pytest.raises(AssertionError, match="a herd failed"):
        herds.run(store, unknown)
    (outcome,), _ = herds.run(store, herds.Herd(store.arguments(), [["a"]], processes=1, each=1))
    assert outcome.granted == ["a"]


FORKED = """
import ctypes, os, socket, sys, threading
from shedlock_py._clock import monotonic
from shedlock_py.providers.sqlalchemy.forks import _process
from shedlock_py.providers.sqlalchemy.watchdog import watchdog

def child():
    sys.setswitchinterval(1e-6)
    died = []
    threading.excepthook = died.append
    everybody = threading.Barrier(20)
    ours, theirs = zip(*(socket.socketpair() for _ in range(20)))

    def ask(one):
        everybody.wait(30)
        _process.notice_fork()  # as each statement does
        own = watchdog.begin(one.fileno(), monotonic() + 60)
        everybody.wait(30)
        watchdog.end(own)

    threads = [threading.Thread(target=ask, args=(one,)) for one in ours]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    own = watchdog.begin(ours[0].fileno(), monotonic() + 0.05)
    theirs[0].settimeout(30)
    cut = theirs[0].recv(1) == b""
    watchdog.end(own)
    watching = sum(thread.name == "shedlock-watchdog" for thread in threading.enumerate())
    return 0 if cut and watching == 1 and not died else 1

watchdog._thread = threading.Thread()  # not a real one: Python does not survive a fork by C while it waits for its turn
fork = {"Python": os.fork, "C": ctypes.PyDLL(None).fork}[sys.argv[1]]
for _ in range(20):
    pid = fork()
    if pid == 0:
        os._exit(child())
    if os.waitpid(pid, 0)[1]:
        sys.exit("the time limits of a forked process do not work")
"""


@pytest.mark.parametrize("kind", ["Python", "C"])
def test_time_limits_in_a_forked_process_with_many_threads(kind: str) -> None:
    """What the herd found: threads of a new child raced for PostgreSQL's watchdog, and it died."""
    done = subprocess.run([sys.executable, "-c", FORKED, kind], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
