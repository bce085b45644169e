"""docs/how-to/fencing-a-transaction.md: no stale write goes through."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guides.documents import Page, script_of
from tests.support.scripts import run_python

SCRIPT = script_of(Page("fencing-a-transaction").text)
CHECK = " WHERE last_token <= :token"
VERIFY = "        provider.verify(stale, connection)\n"


def run(script: str, directory: Path) -> tuple[int, str]:
    (directory / "page.py").write_text(script)
    done = run_python("page.py", cwd=directory)
    return done.returncode, done.stdout + done.stderr


def test_on_a_server(server_url: str, tmp_path: Path) -> None:
    assert SCRIPT.count("sqlite:///app.db") == 1
    script = SCRIPT.replace("sqlite:///app.db", server_url)
    code, output = run(script, tmp_path)
    assert code == 0, output
    assert "lock 'report': a later holder has written the report" in output


@pytest.mark.parametrize("part", [CHECK, VERIFY], ids=["the check of the token", "verify"])
def test_without_it_the_stale_write_goes_through(part: str, tmp_path: Path) -> None:
    assert SCRIPT.count(part) == 1
    code, output = run(SCRIPT.replace(part, ""), tmp_path)
    assert code == 1
    assert "AssertionError: a stale write went through" in output
