"""The how-to guides are true: what they show of a file is that file. Their other Python: ``pages/test_blocks.py``."""

from __future__ import annotations

import re

import pytest

from tests.guides.documents import PAGES, Page
from tests.guides.how_to.applications import RUN

NAMES = [
    *("alembic", "apscheduler", "celery", "cron", "django", "fastapi", "fencing-a-table"),
    *(
        "flask",
        "kubernetes",
        "multi-tenant",
        "one-scheduler",
        "overdue-jobs",
        "page",
        "pause-a-job",
        "run-history",
        "shedlock-java",
    ),
    *("systemd", "task-queues", "testing"),
]

on_each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def test_these_are_the_guides() -> None:
    assert [page.name for page in PAGES] == NAMES


@on_each_page
def test_every_block_is_understood(page: Page) -> None:
    """No test would read a fence that is written in another way."""
    fences = re.findall(r"^ *(?:```|~~~)", page.text, re.MULTILINE)
    assert len(fences) == 2 * len(page.blocks)


@on_each_page
def test_what_is_shown_of_a_file_is_in_it(page: Page) -> None:
    shown = set()
    for block in page.blocks:
        if block.title:
            name, _, excerpt = block.title.partition(" (")
            text = (page.examples / name).read_text()
            if excerpt:
                assert block.text in text, block.title
            else:
                assert block.text == text, block.title
            shown.add(name)
    assert {str(path.relative_to(page.examples)) for path in page.files()} - shown <= NOT_SHOWN.get(page.name, set())


NOT_SHOWN = {
    "alembic": {"alembic.ini", "migrations/versions/.gitkeep"},
    "django": {"manage.py"},
}
"""As the tools write them, or empty."""


def test_each_example_has_a_page() -> None:
    directories = {path.name for path in PAGES[0].examples.parent.iterdir() if path.is_dir()} - {"__pycache__"}
    assert directories == {page.examples.name for page in PAGES if page.files()}


@pytest.mark.parametrize("name", ["apscheduler", "fastapi", "flask"])
def test_what_you_see_is_what_the_programs_write(name: str) -> None:
    (block,) = Page(name).of("text")
    assert len(RUN.findall(block.text)) == len(block.text.splitlines())
