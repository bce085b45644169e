"""Messages from listeners to other services. A worker thread sends them, so that a slow or dead service delays nothing.

A message is dropped if :data:`MOST_WAITING` messages wait already, if its second attempt fails, or if it has waited for
:data:`LONGEST_WAIT`: late news is wrong news.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Generic, TypeVar

from shedlock_py.events import logger
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.runtime.process import PerProcess, monotonic
from shedlock_py.runtime.threads import EXIT_SECONDS, WorkerPool, finish_at_exit

Message = TypeVar("Message")

MOST_WAITING = 1000
"""How many messages of one outbox may wait."""
LONGEST_WAIT = 60.0
"""Seconds after which a waiting message is dropped."""
RETRY_SECONDS = 1.0
"""Seconds between the two attempts to deliver a message."""


class DeliveryFailed(Exception):
    """The service did not accept a message. The text is for logs, so it must not contain a secret."""

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        """:param is_final: the service would refuse it again."""
        super().__init__(why)
        self.is_final = is_final


class _State:
    def __init__(self) -> None:
        self.waiting: set[Future[Any]] = set()
        self.lock = threading.Lock()
        self.dropped = 0
        self.has_warned = False


class Outbox(Generic[Message]):
    """Messages to one service, sent in their order, one at a time.

    In a forked child the outbox is empty and has its own thread. The parent sends the parent's messages.
    """

    def __init__(self, name: str, open_sender: Callable[[], Callable[[Message], None]]) -> None:
        """:param name: the kind of message, for logs.
        :param open_sender: returns the function that sends a message, or raises :class:`DeliveryFailed`. It is called
            once in each process, in the worker.
        """
        self._name = name
        self._pool = WorkerPool(1, f"shedlock-{name.replace(' ', '-')}")
        self._senders = PerProcess(open_sender)
        self._state = PerProcess(_State)

    @property
    def dropped(self) -> int:
        """How many messages this process could not deliver."""
        return self._state.get().dropped

    def put(self, message: Message) -> None:
        """Send ``message`` soon. Never waits for the service, and never raises because of it."""
        waiting = self._state.get().waiting
        if len(waiting) >= MOST_WAITING:
            self._drop(f"{MOST_WAITING} others are waiting to be sent")
            return
        try:
            future = self._pool.submit(partial(self._deliver, message, monotonic() + LONGEST_WAIT))
        except RuntimeError as error:  # no thread can be started
            self._drop(str(error))
            return
        waiting.add(future)
        future.add_done_callback(waiting.discard)
        finish_at_exit(future)

    def flush(self, timeout: Duration = EXIT_SECONDS) -> bool:
        """Wait until all messages were sent or dropped. Return False if that takes longer than ``timeout``."""
        seconds = parse_duration(timeout, "timeout", zero=True).total_seconds()
        return not wait(set(self._state.get().waiting), seconds).not_done

    # In the worker

    def _deliver(self, message: Message, useful_until: float) -> None:
        for is_last in (False, True):
            if monotonic() >= useful_until:
                self._drop(f"not sent within {LONGEST_WAIT:g} s")
                return
            try:
                self._senders.get()(message)
            except DeliveryFailed as error:
                if is_last or error.is_final:
                    self._drop(str(error))
                    return
                time.sleep(RETRY_SECONDS)
            except BaseException as error:  # even SystemExit; its text may quote a secret
                self._drop(f"unexpected {type(error).__name__}")
                return
            else:
                self._state.get().has_warned = False  # the service works again, so its next failure is news
                return

    def _drop(self, why: str) -> None:
        state = self._state.get()
        with state.lock:
            state.dropped += 1
            level = logging.DEBUG if state.has_warned else logging.WARNING
            state.has_warned = True
        logger.log(level, "%s: a message is dropped, jobs are not affected: %s", self._name, why)
