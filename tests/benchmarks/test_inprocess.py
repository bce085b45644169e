"""What is compared with without a store: the floor is a lease, and imports are measured as they are met with."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import inprocess, instructions
from benchmarks.contenders.base import SECONDS
from benchmarks.inprocess import least, name_in_a_dict
from benchmarks.plan import Plan


@pytest.mark.parametrize("floor", [least, name_in_a_dict])
def test_a_floor_runs_one_at_a_time_and_gives_back(
    floor: Callable[[str], Callable[..., Callable[[], int | None]]],
) -> None:
    inner: list[int | None] = []

    def work() -> int:
        inner.append(guarded())
        return 1

    guarded = floor("bench")(work)
    assert (guarded(), inner) == (1, [None])
    assert (guarded(), inner) == (1, [None, None])


def test_the_floor_lets_somebody_else_in_at_the_end_of_a_lease_and_gives_back_only_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(inprocess, "monotonic", lambda: now)
    entered, finish = threading.Event(), threading.Event()
    decorate = least("bench")

    def overtake() -> int:
        entered.set()
        assert finish.wait(30)
        return 1

    overtaking = threading.Thread(target=decorate(overtake))

    def overrun() -> int:
        nonlocal now
        now += SECONDS + 1
        overtaking.start()
        assert entered.wait(30)
        return 1

    assert decorate(overrun)() == 1
    assert decorate(lambda: 1)() is None  # the other's is valid, although the first has given back meanwhile
    finish.set()
    overtaking.join(30)
    assert decorate(lambda: 1)() == 1


def test_what_is_imported_comes_from_bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    with inprocess.bytecode() as environment:
        inprocess.modules("import shedlock_py", environment)
        cached = "import shedlock_py, os\nprint(shedlock_py.__cached__, os.path.exists(shedlock_py.__cached__))"
        done = subprocess.run(
            [sys.executable, "-c", cached], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        assert done[0].startswith(environment["PYTHONPYCACHEPREFIX"])
        assert done[1] == "True"
    assert not Path(environment["PYTHONPYCACHEPREFIX"]).exists()


def test_without_valgrind_the_page_says_that_instructions_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    plan = Plan.smoke()
    assert instructions.measure(plan) == {}
    assert [one.reason for one in plan.absent] == ["valgrind is not installed"]
