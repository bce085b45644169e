"""Read by gunicorn from the directory in which it is started."""

from typing import Any

workers = 3


def post_worker_init(worker: Any) -> None:
    """In the worker, after the fork and with the application loaded."""
    from app import start_scheduler

    start_scheduler()


def worker_exit(server: Any, worker: Any) -> None:
    """Wait for the running jobs, which release their locks."""
    from app import scheduler

    if scheduler.running:
        scheduler.shutdown()
