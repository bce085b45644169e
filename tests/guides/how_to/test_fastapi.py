"""docs/how-to/fastapi.md: three uvicorn workers, one run for each fire time."""

from pathlib import Path

from shedlock_py import provider_from_url
from tests.guides.documents import Page
from tests.guides.how_to.applications import LATE_ASYNC, WORKERS, application, copied, get, once_each
from tests.support.polling import wait_until
from tests.support.ports import free_port

LONG_JOB = """

@scheduler.scheduled_job("date", id="long")
@scheduler_lock("long", lock_at_most_for="1h")
async def long() -> None:
    logger.info("long has begun")
    await asyncio.sleep(3600)
"""


def command(port: int) -> str:
    """The page's own."""
    (uvicorn,) = Page("fastapi").commands("uvicorn ")
    return f"{uvicorn} --port {port}"


def test_as_many_runs_as_fire_times(tmp_path: Path) -> None:
    directory, port = copied("fastapi", tmp_path, more=LATE_ASYNC), free_port()
    with application(command(port), directory) as app:
        begin, end = app.watch()
        assert app.ran(begin, end) == once_each(begin, end)
        assert int(get(port, "/ticks")) >= len(once_each(begin, end))
        assert app.terminate() == [0]
        app.check_rows(directory / "app.db")


def test_without_locks_each_worker_runs_it(tmp_path: Path) -> None:
    directory, port = copied("fastapi", tmp_path), free_port()
    with application(command(port), directory, SHEDLOCK_ACTIVE="0") as app:
        begin, end = app.watch()
        assert app.ran(begin, end) == once_each(begin, end, times=WORKERS)


def test_a_job_that_is_cancelled_at_the_end_releases_its_lock(tmp_path: Path) -> None:
    directory, port = copied("fastapi", tmp_path, more=LONG_JOB), free_port()
    provider = provider_from_url(f"sqlite:///{directory}/app.db")
    with application(command(port), directory) as app:
        wait_until(lambda: "long has begun" in app.log.read_text(), timeout=30, what="the long job")
        record = provider.record("long")
        assert record is not None
        assert record.is_held
        assert app.terminate() == [0]
        record = provider.record("long")
        assert record is not None
        assert not record.is_held
