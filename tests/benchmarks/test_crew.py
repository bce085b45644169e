"""Client processes: what one cannot do is said, and an answer that comes late is not taken for another's."""

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks import crew
from benchmarks.contenders import US, find
from benchmarks.crew import Crew, Rates, figures
from benchmarks.servers import RunningStore


@pytest.fixture
def processes() -> Iterator[Crew]:
    with Crew(2) as processes:
        yield processes


@pytest.mark.parametrize("running_store", ["sqlite"], indirect=True)
def test_each_client_has_a_lock_of_its_own(running_store: RunningStore, processes: Crew) -> None:
    ours = find("sqlite", US)
    processes.open(ours, running_store.site, 2)
    assert processes.run(ours, "cycle", 2, 0.2) > 0
    processes.close(ours, 2)


@pytest.mark.parametrize("running_store", ["sqlite"], indirect=True)
def test_skips_of_a_lock_that_nobody_has_are_an_error(running_store: RunningStore, processes: Crew) -> None:
    ours = find("sqlite", US)
    processes.open(ours, running_store.site, 1)
    with pytest.raises(RuntimeError, match="was granted although somebody has it"):
        processes.run(ours, "skip", 1, 0.2)
    processes.close(ours, 1)  # it goes on


@pytest.mark.parametrize("running_store", ["sqlite"], indirect=True)
def test_async_contenders_are_refused(running_store: RunningStore, processes: Crew) -> None:
    with pytest.raises(RuntimeError, match="is async"):
        processes.open(find("sqlite async", US), running_store.site, 1)


def test_an_answer_that_comes_late_is_not_taken_for_that_to_the_next_question(
    processes: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = multiprocessing.Pipe()
    late: list[Any] = [(1, "an old answer"), (2, 7)]
    for answer in late:
        theirs.send(answer)
    monkeypatch.setattr(processes, "_pipes", [ours])
    monkeypatch.setattr(processes, "_asked", 1)
    assert processes._all(1, ("close",)) == [7]
    monkeypatch.setattr(crew, "_PATIENCE", 0.01)
    with pytest.raises(TimeoutError):
        processes._all(1, ("close",))


def test_a_share_is_that_of_the_floor_in_the_same_round() -> None:
    floor, ours = Rates(find("sqlite", "floor"), [100, 10, 1000]), Rates(find("sqlite", US), [50, 5, 500])
    found = figures([floor, ours, Rates(find("sqlite", "huey"))])
    assert set(found) == {"floor", US}
    assert (found[US]["per_second"], found[US]["share"]["middle"]) == (50, 0.5)
