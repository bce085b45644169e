"""The Python on the pages runs: the blocks of one page are one script, run in an empty directory.

Any warning is an error. An address on a page is that of a server that does not exist; it is replaced by the tests' own.
The pages on providers, the how-to guides and the tutorial have tests of their own; README has, too.
"""

import re
from pathlib import Path

import pytest

from tests.guides.examples.scripts import PROJECT, run_python
from tests.guides.pages.pages import DOCS, blocks
from tests.support.database import DatabaseServer

DATABASE = "pages"
ADDRESS = re.compile(r"([a-z]+(?:\+[a-z0-9]+)?)://user:secret@db\.example/app")

ELSEWHERE = ("providers/", "how-to/", "tutorial.md")

FINALLY = {
    # It serves until SIGTERM, which comes here as soon as somebody listens.
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
"""What runs at the end of a page that only defines something."""

NOT_RUN = {
    "providers/redis.md": "needs Sentinels and a cluster: test_sentinel.py and test_cluster.py of tests/stores/redis",
}
"""The pages that have blocks marked ``norun``, and why."""


def pages() -> list[str]:
    """Those with Python that is run here."""
    names = [str(path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*.md"))]
    return [name for name in names if not name.startswith(ELSEWHERE) and list(blocks((DOCS / name).read_text()))]


def script_of(page: str) -> str:
    return "\n".join(code for words, code in blocks((DOCS / page).read_text()) if words != "norun")


@pytest.mark.parametrize("page", pages())
def test_the_python_of_a_page_runs(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    assert script_of(page)
    script = script_of(page) + FINALLY.get(page, "")
    server: DatabaseServer | None = None
    if ADDRESS.search(script):
        server = request.getfixturevalue("postgres_server")
        assert server is not None
        server.drop_database(DATABASE)
        server.create_database(DATABASE)
        script = ADDRESS.sub(lambda found: server.url(found[1], DATABASE), script)
    assert ".example" not in script, "an address was not replaced"
    path = tmp_path / "page.py"
    path.write_text(script)
    done = run_python(path.name, cwd=tmp_path, timeout=100)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    if server is not None:
        server.drop_database(DATABASE)


def test_these_pages_are_run() -> None:
    assert {"index.md", "guards.md", "behaviour.md", "design.md", "durations.md", "long-jobs.md"} <= set(pages())
    assert set(FINALLY) <= set(pages())


def test_what_is_not_run_has_a_reason() -> None:
    marked = {
        str(path.relative_to(DOCS))
        for path in DOCS.rglob("*.md")
        if any(words == "norun" for words, _ in blocks(path.read_text()))
    }
    assert marked == set(NOT_RUN)
    assert "norun" not in (PROJECT / "README.md").read_text()
