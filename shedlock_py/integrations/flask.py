"""A Flask extension that configures the locks of an application, and starts and stops its schedulers and electors."""

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

    :meth:`init_app` configures. It may be called before a fork.

    Call :meth:`start` in each worker after the fork: in gunicorn's ``post_worker_init``, in uWSGI's ``@postfork``, or
    right after ``init_app`` if the server does not fork.

    Call :meth:`stop` when the worker ends, for example in gunicorn's ``worker_exit``. Then no new run begins, running
    jobs may take the time ``drain``, and all items of ``start`` stop in reverse order. Without ``stop()`` the process
    waits for its jobs as long as they take, because Python joins their threads.

    :param provider: a URL; or a user-supplied provider, which stays open. None means ``app.config["SHEDLOCK_STORE"]``.
    :param start: items that run while the worker runs: a scheduler of APScheduler, an elector, ``lead(…)``.
    :param create_schema: call ``create_schema()`` in :meth:`start`. All workers may do this at once.
    :param drain: how long :meth:`stop` waits for running jobs. Choose less than the server gives a worker to end
        (gunicorn's ``graceful_timeout``: 30 s).
    :param defaults: options of :func:`configure`: ``default_lock_at_most_for``, ``listeners``, …
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
        """The provider; None before :meth:`init_app`."""
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
        """Configure the locks of this process. This does not connect to the store.

        :raises ConfigurationError: no provider is given, or a value cannot work.
        """
        given = self._given if self._given is not None else app.config.get("SHEDLOCK_STORE")
        if given is None:
            raise ConfigurationError("no store: give ShedLock(…) a URL, or set app.config['SHEDLOCK_STORE']")
        self.provider = provider_from_url(given) if isinstance(given, str) else given
        configure(self.provider, **self._defaults)
        app.extensions["shedlock"] = self

    def start(self) -> None:
        """Create the tables, and start all items. They stop at :meth:`stop`, or when this process ends.

        :raises RuntimeError: this process has called ``start()`` already, or has not called ``init_app()``.
        """
        if self.provider is None:
            raise RuntimeError("call init_app(app) first")
        if self._owner is not None and self._owner.is_current():
            raise RuntimeError("ShedLock.start() was called in this process already")
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
        """Wait for running jobs, stop all items, and close the connections. Do nothing in a forked child.

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
            except Exception:  # the other items must stop, too
                logger.exception("%r did not stop", item)
        is_used = warn_of_running(self.provider)
        if not is_used and (isinstance(self._given, str) or self._given is None):
            getattr(self.provider, "close", lambda: None)()
