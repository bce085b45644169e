"""For Flask: an extension that configures the locks of an application, and starts and stops what needs them."""

from __future__ import annotations

import atexit
from collections.abc import Iterable
from typing import Any

from shedlock_py.errors import ConfigurationError
from shedlock_py.events import logger
from shedlock_py.integrations import drain_schedulers, stop_item, warn_of_running
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.provider import LockProvider
from shedlock_py.runtime.process import OwningProcess
from shedlock_py.settings.defaults import configure
from shedlock_py.settings.urls import provider_from_url

__all__ = ["ShedLock"]


class ShedLock:
    """An extension: ``shedlock = ShedLock("postgresql://…", start=[scheduler])``, and ``shedlock.init_app(app)``.

    :meth:`init_app` configures; it may be called before a fork. :meth:`start` belongs into each worker, after the fork:
    gunicorn's ``post_worker_init``, uWSGI's ``@postfork``, or the line after ``init_app`` where nothing forks. Call
    :meth:`stop` when the worker ends, as in gunicorn's ``worker_exit``. No new run begins then, jobs that run have the
    time ``drain``, and all is stopped, in reverse order. A process that ends without it waits for the jobs as long as
    they take, because Python joins their threads.

    :param provider: a URL, or a provider of yours, which is not closed. None: ``app.config["SHEDLOCK_STORE"]``.
    :param start: what runs while the worker does: a scheduler of APScheduler, an elector, ``lead(…)``.
    :param create_schema: call ``create_schema()`` in :meth:`start`, which is safe in all workers at once.
    :param drain: how long :meth:`stop` waits for jobs that run. Shorter than the server's time for the end of a worker
        (gunicorn's ``graceful_timeout``: 30 s).
    :param defaults: as for :func:`configure`: ``default_lock_at_most_for``, ``listeners``, …
    """

    def __init__(
        self,
        provider: LockProvider | str | None = None,
        *,
        start: Iterable[Any] = (),
        create_schema: bool = True,
        drain: Duration = "20s",
        **defaults: Any,
    ) -> None:
        self.provider: LockProvider | None = None
        """From :meth:`init_app` on."""
        self._given = provider
        self._items = list(start)
        self._creates_schema = create_schema
        self._drain = parse_duration(drain, "drain", zero=True).total_seconds()
        self._defaults = defaults
        self._started: list[Any] = []
        self._owner: OwningProcess | None = None
        for item in self._items:
            if not (hasattr(item, "start") and (hasattr(item, "shutdown") or hasattr(item, "stop"))):
                raise ConfigurationError(f"start=[…]: {item!r} is no scheduler, elector or lead(…)")

    def init_app(self, app: Any) -> None:
        """Configure the locks of this process. Nothing is connected yet.

        :raises ConfigurationError: there is no provider, or a value cannot work.
        """
        given = self._given if self._given is not None else app.config.get("SHEDLOCK_STORE")
        if given is None:
            raise ConfigurationError("no store: give ShedLock(…) a URL, or set app.config['SHEDLOCK_STORE']")
        self.provider = provider_from_url(given) if isinstance(given, str) else given
        configure(self.provider, **self._defaults)
        app.extensions["shedlock"] = self

    def start(self) -> None:
        """Create the tables, and start everything; it stops when this process ends, or by :meth:`stop`.

        :raises RuntimeError: it was started in this process, or ``init_app`` was not called.
        """
        if self.provider is None:
            raise RuntimeError("call init_app(app) first")
        if self._owner is not None and self._owner.is_current():
            raise RuntimeError("it was started in this process already")
        self._owner, self._started = OwningProcess(), []
        atexit.register(self.stop)
        try:
            if self._creates_schema:
                self.provider.create_schema()
            for item in self._items:
                item.start()
                self._started.append(item)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Wait for the jobs that run, stop everything, and close the connections. Does nothing in a forked child.

        A job that still runs keeps its thread, its lease and the connections.
        """
        if self._owner is None or not self._owner.is_current():
            return
        self._owner = None
        atexit.unregister(self.stop)
        drain_schedulers(self._started, self._drain)
        while self._started:
            item = self._started.pop()
            try:
                stop_item(item)
            except Exception:  # the others must stop, too
                logger.exception("%r did not stop", item)
        is_used = warn_of_running(self.provider)
        if not is_used and (isinstance(self._given, str) or self._given is None):
            getattr(self.provider, "close", lambda: None)()
