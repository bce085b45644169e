import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.harness import close_providers, file_store
from tests.cli.runs import Runs
from tests.support.database import DatabaseServer

DATABASE = "tests_cli_runs"


@pytest.fixture(autouse=True)
def _closed_providers() -> Iterator[None]:
    yield
    close_providers()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert not blocked, "`shedlock run` in this process: the servers and commands that later tests start would not end"


@pytest.fixture
def store(tmp_path: Path) -> str:
    return file_store(tmp_path)


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print as on a terminal of ``COLUMNS``, for commands in this process."""
    monkeypatch.setattr("shedlock_py.cli.tables.is_on_terminal", lambda: True)


@pytest.fixture
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runs]:
    """Runs on a SQLite file, and with ALSO_ON_ASYNCPG on PostgreSQL too."""
    with ExitStack() as stack:
        if getattr(request, "param", "sqlite") == "sqlite":
            runs = Runs(request.getfixturevalue("store"), tmp_path)
        else:
            server: DatabaseServer = request.getfixturevalue("postgres_server")
            stack.enter_context(server.new_database(DATABASE))
            runs = Runs(server.url("postgresql+psycopg", DATABASE), tmp_path)
            runs.provider.create_schema()
            runs.store = server.url(request.param, DATABASE)
        stack.callback(runs.close)
        yield runs
