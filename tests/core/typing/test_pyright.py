"""What mypy sees of the types, pyright sees as well; ``make check`` runs mypy."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.slow("runs pyright")
@pytest.mark.skipif(
    find_spec("basedpyright") is None and "CI" not in os.environ,
    reason="basedpyright, which is pyright with its Node.js, is not installed",
)
def test_pyright_agrees() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "-p", str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "0 errors" in checked.stdout
