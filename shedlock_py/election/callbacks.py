"""The callbacks of an elector, and which calls of them have not returned yet."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

from shedlock_py.events import Event, LeaderChanged, LeadershipStarted, LeadershipStopped, logger

Callback = Callable[[], Any]


class CallbackCall:
    """One call of a callback."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback = callback


_current_calls: ContextVar[tuple[CallbackCall, ...]] = ContextVar("shedlock_current_calls", default=())
"""The calls, of any elector, that the current code is part of."""


class Callbacks:
    """The callbacks of one elector.

    :param name: the election, for log lines.
    :param wake: called when a call has returned.
    """

    def __init__(
        self,
        name: str,
        wake: Callable[[], None],
        on_started_leading: Callback | None,
        on_stopped_leading: Callback | None,
        on_new_leader: Callable[[str], Any] | None,
    ) -> None:
        self._name = name
        self._wake = wake
        self._started: list[Callback] = []
        self._stopped: list[Callback] = []
        self._renewed: list[Callback] = []
        self._new_leader = on_new_leader
        self._calls: set[CallbackCall] = set()
        self.add(on_started_leading, on_stopped_leading)

    def add(
        self,
        on_started_leading: Callback | None = None,
        on_stopped_leading: Callback | None = None,
        on_renewed: Callback | None = None,
    ) -> None:
        """Add callbacks to the ones that are there."""
        self._started += [on_started_leading] if on_started_leading else []
        self._stopped += [on_stopped_leading] if on_stopped_leading else []
        self._renewed += [on_renewed] if on_renewed else []

    def call_for(self, event: Event) -> None:
        """Call the callbacks that an event is for. Does not wait for them."""
        match event:
            case LeadershipStarted():
                self._call(self._started)
            case LeadershipStopped():
                self._call(self._stopped)
            case LeaderChanged(_, holder) if self._new_leader is not None:
                self._call([partial(self._new_leader, holder)])

    def call_renewed(self) -> None:
        """Call the callbacks for a renewal. Does not wait for them."""
        self._call(self._renewed)

    def forget_calls(self) -> None:
        """Forget the calls of a former start, perhaps of the parent process: the next leadership waits for its own."""
        self._calls = set()

    def are_running(self) -> bool:
        """Whether a call has not returned yet, or has yet to begin."""
        return bool(self._calls)

    def include_current_code(self) -> bool:
        """Whether the current code is part of a callback of this elector that has not returned yet."""
        return any(call in self._calls for call in _current_calls.get())

    def _call(self, callbacks: list[Callback]) -> None:
        raise NotImplementedError

    def _begin(self, callback: Callback) -> CallbackCall:
        call = CallbackCall(callback)
        self._calls.add(call)
        return call

    def _enter(self, call: CallbackCall) -> None:
        _current_calls.set((*_current_calls.get(), call))

    def _end(self, call: CallbackCall, error: BaseException | None = None) -> None:
        try:
            if error is not None:
                logger.error("election %r: callback %r failed", self._name, call.callback, exc_info=error)
        finally:  # also when a log handler raises: no leader is released while a call counts as running
            self._calls.discard(call)
            self._wake()


class ThreadedCallbacks(Callbacks):
    """Callbacks of which each call has a thread of its own."""

    def __init__(self, *args: Any) -> None:
        self._without_thread: deque[CallbackCall] = deque()
        super().__init__(*args)

    def call_renewed(self) -> None:
        waiting = [call.callback for call in self._without_thread]
        self._call([callback for callback in self._renewed if callback not in waiting])

    def forget_calls(self) -> None:
        super().forget_calls()
        self._without_thread = deque()

    def start_threads(self) -> None:
        """Start a thread for each call that has none. If the machine can start none, the next call tries again."""
        while self._without_thread:
            call = self._without_thread[0]
            try:
                threading.Thread(target=self._run, args=(call,), daemon=True).start()
            except (RuntimeError, MemoryError) as error:  # "can't start new thread"
                logger.warning("election %r: callback %r has to wait: %s", self._name, call.callback, error)
                return
            self._without_thread.popleft()

    def run_without_threads(self) -> None:
        """Run, in the elector's thread, the calls that never got a thread."""
        while self._without_thread:
            self._run(self._without_thread.popleft())

    def _call(self, callbacks: list[Callback]) -> None:
        self._without_thread.extend(map(self._begin, callbacks))
        self.start_threads()

    def _run(self, call: CallbackCall) -> None:
        self._enter(call)
        try:
            call.callback()
        except BaseException as error:  # SystemExit, too, ends this call only
            self._end(call, error)
        else:
            self._end(call)
