"""The docs' tables of stores are up to date, and each store has its page and its extras."""

import tomllib

import pytest

from scripts.docs_tables import CELLS, COMMAND, PARTS, PROJECT, written
from shedlock_py.model.stores import STORES
from tests.support.stores import STORES as TESTED


@pytest.mark.parametrize("page", sorted({page for page, *_ in PARTS}))
def test_the_committed_page_has_the_tables_that_the_script_writes(page: str) -> None:
    assert (PROJECT / page).read_text(encoding="utf-8") == written(page), f"the stores have changed; run {COMMAND}"


def test_each_page_of_a_store_has_its_cells() -> None:
    assert {store.page for store in STORES.values()} == CELLS.keys()
    assert [page for page in CELLS if not (PROJECT / "docs" / "providers" / f"{page}.md").is_file()] == []


def test_the_extras_of_each_store_are_in_pyproject() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    modules = {store.module for store in STORES.values() if store.extra}
    assert {extra for store in STORES.values() for extra in (store.extra, store.async_extra) if extra} <= extras.keys()
    (everything,) = extras["all"]
    assert modules <= set(everything.partition("[")[2].rstrip("]").split(","))


def test_the_tests_start_each_store_and_have_the_checks_that_the_docs_name() -> None:
    assert {each.scheme for each in TESTED.values()} == STORES.keys() - {"memory"}
    for each in TESTED.values():
        named = CELLS[each.facts.page]["doctor"][0]
        assert [check for check in each.checks if f"`{check}`" not in named] == [], each.scheme
