"""Read by gunicorn from the directory in which it is started."""

from typing import Any

workers = 3


def post_worker_init(worker: Any) -> None:
    """In the worker, after the fork and with the application loaded."""
    from app import start_worker

    start_worker()


def worker_exit(server: Any, worker: Any) -> None:
    """No new run begins, and the jobs that run may end."""
    from app import shedlock

    shedlock.stop()
