"""docs/how-to/flask.md: three gunicorn workers, one run for each fire time."""

from pathlib import Path

import pytest

from tests.guides.documents import Page
from tests.guides.how_to.applications import LATE, WORKERS, application, copied, get, once_each
from tests.support.ports import free_port


def command(port: int, *options: str) -> str:
    """The page's own."""
    (gunicorn,) = Page("flask").commands("gunicorn ")
    return " ".join([gunicorn, *options, f"--bind 127.0.0.1:{port}"])


@pytest.mark.parametrize("options", [[], ["--preload"]], ids=["each worker loads the app", "loaded before the fork"])
def test_as_many_runs_as_fire_times(options: list[str], tmp_path: Path) -> None:
    directory, port = copied("flask", tmp_path, more=LATE), free_port()
    with application(command(port, *options), directory) as app:
        begin, end = app.watch()
        assert app.ran(begin, end) == once_each(begin, end)
        assert int(get(port, "/ticks")) >= len(once_each(begin, end))
        assert app.terminate() == [0]
        app.check_rows(directory / "app.db")


def test_without_locks_each_worker_runs_it(tmp_path: Path) -> None:
    directory, port = copied("flask", tmp_path), free_port()
    with application(command(port), directory, SHEDLOCK_ACTIVE="0") as app:
        begin, end = app.watch()
        assert app.ran(begin, end) == once_each(begin, end, times=WORKERS)
