"""All events of one lock in any order: no promise is broken, and each part of the programs and commands is needed.

The token rounds of the quorum have their own model, tests/stores/redis_quorum/model.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.exhaustive.mutants import MUTANTS
from tests.exhaustive.scenes import SCENES, Scene
from tests.exhaustive.search import Search, Violation
from tests.simulation.stores import ModelStore, open_store

NAMES = ("sql", "redis", "mongodb", "memory")
"""Stores with commands that contain no moments. The clock of the search always shows the same moment."""
SHORT = {
    "retries": ("sql", "redis", "mongodb"),
    "minimum, late extension": ("memory",),
    "late, by hand": ("redis",),
    "one fire time": ("sql", "redis", "mongodb"),
    "clock stands still": ("sql", "redis", "mongodb", "memory"),
    "take over of a deleted record": ("mongodb",),
    "recover, by hand": ("sql", "redis", "mongodb", "memory"),
    "recover, sent twice": ("sql", "redis", "mongodb"),
    "two recoveries": ("redis",),
}
"""Scenes of ``make test-full``."""
IN_MAKE_TEST = (("sql", "clock stands still"), ("redis", "clock stands still"), ("mongodb", "one fire time"))
OTHERS = pytest.mark.matrix("searches for minutes: another scene, or another store's commands")


def opened(name: str) -> ModelStore:
    if name == "redis":
        pytest.importorskip("lupa", reason="no Lua for the scripts of Redis: pip install lupa (no wheel for 3.15)")
    return open_store(name)


def _searches() -> Iterator[Any]:
    for name, scene in SCENES.items():
        for store in NAMES:
            if store == "memory" and scene.has_retries:
                continue  # no connection that could break
            yield pytest.param(store, name, marks=_marks_of(store, name))


def _marks_of(store: str, scene: str) -> list[pytest.MarkDecorator]:
    if (store, scene) in IN_MAKE_TEST:
        return []
    return [pytest.mark.slow("searches for seconds")] if store in SHORT.get(scene, ()) else [OTHERS]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("store", "scene"), list(_searches()))
def test_no_promise_is_broken_in_any_state(store: str, scene: str, record_property: Any) -> None:
    search = _search(store, opened(store), SCENES[scene])
    search.check()
    record_property("states", search.states)
    print(f"{store}, {scene}: {search.states} states, {search.records.executions} executions")
    assert search.states > 1000


SLOW_MUTANTS = (
    "overtaken extensions are done",
    "extensions are done once",
    "extensions do not carry the token",
    "extensions forget each other",
    "a retry begins anew",
)


@pytest.mark.not_quick("mutants test the search, not the library")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, marks=pytest.mark.slow("searches for seconds") if change in SLOW_MUTANTS else [])
        for change in MUTANTS
    ],
)
def test_without_one_part_of_the_programs_a_promise_is_broken(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[change]
    store = opened(mutant.store)
    mutant.apply(monkeypatch, store)
    with pytest.raises(Violation) as found:
        _search(mutant.store, store, mutant.scene).check()
    print(f"with it ({change}):\n{found.value}\n")
    assert mutant.broken in str(found.value).splitlines()[-1]


def _search(name: str, store: ModelStore, scene: Scene) -> Search:
    return Search(name, store, scene.plans, scene.by_hand, scene.clock_stands_still)
