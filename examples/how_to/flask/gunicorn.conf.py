"""gunicorn reads this file from the directory where you start it."""

from typing import Any

workers = 3


def post_worker_init(worker: Any) -> None:
    """In each worker, after the fork."""
    from app import shedlock

    shedlock.start()


def worker_exit(server: Any, worker: Any) -> None:
    """No new run begins, and the running jobs may end."""
    from app import shedlock

    shedlock.stop()
