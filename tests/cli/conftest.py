from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.rig import file_store
from tests.cli.runs import Runs


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    """Runs on a SQLite file."""
    runs = Runs(file_store(tmp_path), tmp_path)
    try:
        yield runs
    finally:
        runs.close()
