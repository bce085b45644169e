import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.harness import close_providers, file_store
from tests.cli.runs import Runs


@pytest.fixture(autouse=True)
def _closed_providers() -> Iterator[None]:
    yield
    close_providers()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert not blocked, "`shedlock run` in this process: the servers and commands that later tests start would not end"


@pytest.fixture
def store(tmp_path: Path) -> str:
    """The URL of a new SQLite store."""
    return file_store(tmp_path)


@pytest.fixture
def runs(store: str, tmp_path: Path) -> Iterator[Runs]:
    """Runs on a SQLite file."""
    runs = Runs(store, tmp_path)
    try:
        yield runs
    finally:
        runs.close()
