"""The Python on the pages runs: the blocks of one page are one script, run in an empty directory.

Any warning is an error. Test addresses replace the pages' addresses, which belong to no server. The pages on stores
without SQL, the tutorial and README have other tests. Blocks with a title come from files that ``tests/programs``
runs.
"""

import re
from pathlib import Path

import pytest

from shedlock_py.model.stores import STORES
from tests.guides.documents import DOCS, README, blocks, check_script, script_of
from tests.support.database import DatabaseServer

DATABASE = "pages"
ADDRESS = re.compile(r"([a-z]+(?:\+[a-z0-9]+)?)://user:secret@db\.example/app")

ELSEWHERE = (
    *(f"providers/{store.page}" for store in STORES.values() if store.extra and not store.is_sql),
    "providers/writing",
    "tutorial.md",
)

FINALLY = {
    # The page serves until SIGTERM. This thread sends SIGTERM as soon as a handler is installed.
    "long-jobs.md": """
import os, signal
def terminate():
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=terminate, daemon=True).start()
try:
    serve()
except SystemExit as exit:
    assert exit.code == 143
else:
    raise AssertionError("SIGTERM did not end it")
""",
}
"""Code to run at the end of pages that only define functions."""

NOT_RUN = {
    "how-to/by-word.md": "a function for aiocron, which is not installed",
    "how-to/django-schedulers.md": "a function for django-q2, which is not installed",
    "how-to/flask.md": "needs Flask-APScheduler, which is not installed",
    "reference/django.md": "a part of a settings file: the keys are those of tests/django/site_tests.py",
    "providers/redis.md": "needs Sentinels and a cluster: test_sentinel.py and test_cluster.py of tests/stores/redis",
}
"""The pages with blocks marked ``norun``, and the reasons."""

SCRIPTS = {
    name: script + FINALLY.get(name, "")
    for name, script in ((str(path.relative_to(DOCS)), script_of(path.read_text())) for path in DOCS.rglob("*.md"))
    if script and not name.startswith(ELSEWHERE)
}


@pytest.mark.parametrize("page", sorted(SCRIPTS))
def test_the_python_of_a_page_runs(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    script = SCRIPTS[page]
    found = ADDRESS.search(script)
    if found is None:
        check_script(script, tmp_path)
        return
    scheme = found[1].partition("+")[0].replace("postgresql", "postgres")
    server: DatabaseServer = request.getfixturevalue(f"{scheme}_server")
    with server.new_database(DATABASE):
        check_script(ADDRESS.sub(lambda found: server.url(found[1], DATABASE), script), tmp_path)


def test_these_pages_are_run() -> None:
    assert set(SCRIPTS) >= {
        "guards.md", "behaviour.md", "design.md", "long-jobs.md", "observability/index.md",
        "how-to/testing.md", "how-to/fencing-a-transaction.md", "how-to/multi-tenant.md", "how-to/apscheduler.md",
        "providers/sqlite.md", "providers/memory.md", "providers/README.md", "providers/postgresql.md",
        "providers/mysql.md",
    }  # fmt: skip
    assert set(FINALLY) <= set(SCRIPTS)


def test_what_is_not_run_has_a_reason() -> None:
    marked = {
        str(path.relative_to(DOCS))
        for path in DOCS.rglob("*.md")
        if not all(block.is_run for block in blocks(path.read_text()))
    }
    assert marked == set(NOT_RUN)
    assert "norun" not in README.read_text()
