"""The how-to guides show files unchanged. Their Python runs in ``tests/programs``."""

from __future__ import annotations

import re
from pathlib import Path

from tests.guides.documents import PAGES, Page

NAMES = [
    "alembic",
    "apscheduler",
    "arq-dramatiq",
    "by-word",
    "celery",
    "cron",
    "django-schedulers",
    "django",
    "fastapi",
    "fencing-a-transaction",
    "flask",
    "job-store",
    "kubernetes",
    "lost-runs",
    "migrations",
    "monitoring-services",
    "multi-tenant",
    "nightly-mail",
    "one-scheduler-more",
    "one-scheduler",
    "overdue-jobs",
    "page",
    "pause-a-job",
    "run-history",
    "shedlock-java",
    "systemd",
    "task-queues",
    "testing",
]

NOT_SHOWN = {
    "alembic": {"alembic.ini", "migrations/versions/.gitkeep"},
    "django_project": {"manage.py"},
}
"""Files as the tools generate them, or empty files."""


def test_these_are_the_guides() -> None:
    assert [page.name for page in PAGES] == NAMES


def test_every_block_is_understood() -> None:
    """Tests would overlook a fence with another spelling."""
    fences = {page.name: len(re.findall(r"^ *(?:```|~~~)", page.text, re.MULTILINE)) for page in PAGES}
    assert fences == {page.name: 2 * len(page.blocks) for page in PAGES}


def differences() -> list[str]:
    """The blocks that are not as in their file, and the files that no page shows."""
    found, shown, files = list[str](), set[Path](), set[Path]()
    for page in PAGES:
        for block in page.blocks:
            if block.title:
                name, _, excerpt = block.title.partition(" (")
                text = (page.examples / name).read_text()
                if block.text not in text if excerpt else block.text != text:
                    found.append(f"{page.name}: {block.title}")
                shown.add(page.examples / name)
        hidden = NOT_SHOWN.get(page.examples.name, set())
        files |= {path for path in page.files() if str(path.relative_to(page.examples)) not in hidden}
    return found + [f"{path} is not shown" for path in sorted(files - shown)]


def test_what_is_shown_of_a_file_is_in_it() -> None:
    assert len([block for page in PAGES for block in page.blocks if block.title]) > 30
    assert differences() == []


def test_each_example_has_a_page() -> None:
    directories = {path.name for path in PAGES[0].examples.parent.iterdir() if path.is_dir()} - {"__pycache__"}
    assert directories == {page.examples.name for page in PAGES if page.files()}


def test_what_you_see_is_what_the_programs_write() -> None:
    for name in ("apscheduler", "fastapi", "flask"):
        (block,) = Page(name).of("text")
        assert len(re.findall(r"^tick in process \d+$", block.text, re.MULTILINE)) == len(block.text.splitlines()), name
