"""The elector for threads."""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from shedlock_py.election.base import Callback, CallbackCall, Elector, parse_timeout
from shedlock_py.election.demotion import Demotion, leader_of
from shedlock_py.election.program import PENDING, Command, Do, Election, Wait
from shedlock_py.election.settings import ElectionSettings, Takeover
from shedlock_py.errors import ConfigurationError
from shedlock_py.events import Event, logger
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.record import LockRecord
from shedlock_py.provider import LockProvider, verify_of
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.program import drive
from shedlock_py.runtime.threads import request_in_worker
from shedlock_py.settings.emit import emit
from shedlock_py.settings.options import is_async_callable, is_async_provider, required_provider

NOT_AWAITED = "callback {!r} returns a coroutine: LeaderElector cannot await it, AsyncLeaderElector can"


class LeaderElector(Elector):
    """Elects one of the nodes that use the same store and ``name``.

    ::

        with LeaderElector(provider, "scheduler") as elector:
            while True:
                if elector.is_leader():
                    work(fencing_token=elector.term)

    If a leader dies, another node leads after ``lease_duration`` at the latest. If it stops cleanly, another node leads
    after about one ``retry_period``. A leader that cannot reach the store stops leading ``renew_deadline`` after its
    last renewal, before another node can be elected.

    Callbacks get no arguments, except ``on_new_leader``, which gets the leader's holder. They run in their own threads
    and never delay a renewal. The leader releases its lease only when they have returned: stop your work in
    ``on_stopped_leading``. If ``on_started_leading`` raises, the node resigns, so that another node can lead.

    :param provider: the store, as a provider or a URL.
    :param name: the name of the election; a lock name.
    :param lease_duration: how long the store keeps the lease of a silent leader. All durations must be the same on
        every node.
    :param renew_deadline: how long a leader trusts its lease without a renewal; at most 90 % of ``lease_duration``. By
        default two thirds of it.
    :param retry_period: how often a leader renews its lease, and a follower reads the record (with up to 20 % jitter).
        By default a fifth of ``renew_deadline``.
    :param holder: the name of this node in the lock record; ``host:pid`` by default.
    :param takeover: when a follower may lead. "expired": when the lease is over by the store's clock. "observed": only
        when the follower has seen the same lease for a whole ``lease_duration`` of its own clock. Then a jump of the
        store's clock cannot make two leaders, but a new follower waits that long. A node that finds no record, or is
        not sure which lease its own lease has replaced, has the lease for ``renew_deadline`` before it leads.
    :raises ConfigurationError: durations that would let a leader overlap its successor, or another bad value.
    """

    def __init__(
        self,
        provider: LockProvider | str,
        name: str,
        *,
        lease_duration: Duration = "15s",
        renew_deadline: Duration | None = None,
        retry_period: Duration | None = None,
        holder: str | None = None,
        takeover: Takeover = "expired",
        on_started_leading: Callback | None = None,
        on_stopped_leading: Callback | None = None,
        on_new_leader: Callable[[str], Any] | None = None,
    ) -> None:
        self._provider: LockProvider = required_provider(provider)
        if is_async_provider(self._provider):
            raise ConfigurationError(
                f"{type(self._provider).__name__} is an async provider, which LeaderElector cannot await: use"
                " AsyncLeaderElector, or give LeaderElector a provider for ordinary functions"
            )
        self._make_mutex()
        self._without_thread: deque[CallbackCall] = deque()
        settings = ElectionSettings.parse(name, lease_duration, renew_deadline, retry_period, holder, takeover)
        super().__init__(settings, on_started_leading, on_stopped_leading, on_new_leader)

    def start(self) -> None:
        """Take part in the election, in a daemon thread.

        :raises RuntimeError: the elector takes part already; or no thread could be started, and ``start()`` may be
            repeated.
        """
        if not self._owner.is_current():  # a thread of the parent process may have locked it
            self._make_mutex()
        with self._mutex:
            if self._is_here() and self._runner.is_alive():
                raise RuntimeError(f"{self!r} was started already")
            self._without_thread = deque()
            election = self._create_election()
            name = f"shedlock-elector-{self.name}"
            self._runner = threading.Thread(target=self._campaign, args=(election,), name=name, daemon=True)
            try:
                self._runner.start()
            except (RuntimeError, MemoryError) as error:
                self._runner = None
                raise RuntimeError(
                    f"{self!r} could not start its thread ({error}), perhaps because of a limit on processes or"
                    " threads: it takes no part in the election; call start() again when there is room"
                ) from error

    def stop(self, timeout: Duration | None = None) -> bool:
        """Leave the election. A leader calls its callbacks, waits until they have returned, and then resigns.

        ``is_leader()`` is False at once. In one of its own callbacks ``stop()`` does not wait for that callback.

        :param timeout: how long to wait for that; None: without a limit; 0: do not wait. If the time is over, the
            result is False, and the elector continues in the background.
        """
        seconds = parse_timeout(timeout)
        thread = self._runner
        if thread is None or not self._is_here():  # another thread may be starting it right now
            return True
        self._request("stop")
        if thread is threading.current_thread() or self._is_in_callback():  # that thread calls listeners
            return False
        thread.join(seconds)
        return not thread.is_alive()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def wait_until_leader(self, timeout: Duration | None = None) -> bool:
        """Wait until this node leads. Return False if it did not within ``timeout``, or was stopped.

        Another thread may start the elector within ``timeout``. Without a timeout, an elector that was not started
        returns False at once.
        """
        seconds = parse_timeout(timeout)
        if seconds is not None or self._is_here():
            self._wait_for(self._is_decided, seconds)
        return self.is_leader()

    def leader(self) -> LockRecord | None:
        """Read the leader's record from the store; None if no node leads."""
        return leader_of(self._provider.record(self.name))

    def verify(self, connection: object) -> None:
        """Check in your own transaction that this node leads. Call it as the *last* statement before the commit.

        It locks the leader's record until you commit, so no other node leads meanwhile. A renewal waits for the commit.
        The locks must be in the database of the transaction: see :meth:`SqlAlchemyLockProvider.verify`.

        :raises LeaseLostError: this node does not lead. Roll back.
        :raises ConfigurationError: another store, another object, or a connection in autocommit mode.
        """
        verify_of(self._provider)(self._lease_of_leader(), connection)

    def take_over(self, timeout: Duration | None = None) -> bool:
        """Lead by force. The store refuses the previous leader at once. Waits until that node has stopped trusting.

        That takes ``renew_deadline`` at most, if a node led or, with ``takeover="observed"``, may have led. Return
        False if this node did not lead within ``timeout``, another node took over from it at once, its lease ended
        before it led, or it does not take part in the election.
        """
        seconds = parse_timeout(timeout)
        if not self._is_here():
            return False
        if not self.is_leader():
            self._request("take_over")
        try:
            self._wait_for(self._has_taken_over, seconds)
        finally:  # even if the caller is cancelled: it does not want to lead any more
            self._election.intents.discard("take_over")
        return self.is_leader()

    def demote(self, cooldown: Duration = "0s") -> bool:
        """Force a re-election. The demoted node is not a candidate for ``cooldown``.

        No node leads until ``renew_deadline`` from now: by then the demoted node has stopped trusting its lease. Return
        False if no node led.

        :raises ProviderError: another node leads by now.
        """
        pause = parse_duration(cooldown, "cooldown", zero=True)
        former = self.leader()
        if former is None:
            return False
        request = Demotion(former.holder, pause).request(self.name, self._settings.durations.renew_deadline)
        self._provider.take_over(request, former)
        return True

    def _check_callback(self, callback: object) -> None:
        super()._check_callback(callback)
        if is_async_callable(callback):
            raise ConfigurationError(NOT_AWAITED.format(callback))

    def _is_decided(self) -> bool:
        return threading.current_thread() is self._runner or super()._is_decided()  # a listener would wait for itself

    # The election's thread

    def _campaign(self, election: Election) -> None:
        try:
            drive(election.run(), self._execute)
        except BaseException as error:  # even SystemExit: a thread that ends must not leave a leader behind
            self._fail(election, error)
        finally:
            election.is_over = True
            self._notify_waiters()
            while self._without_thread:
                self._run_call(self._without_thread.popleft())

    def _execute(self, command: Command) -> Any:
        self._notify_waiters()
        match command:
            case Wait(until):
                self._start_threads()
                self._wait_for(lambda: self._is_woken, until - monotonic())
                self._is_woken = False
                return None
            case Do(operation, args, seconds):
                request = partial(getattr(self._provider, operation), *args)
                return request() if seconds is None else request_in_worker(self._provider, request, seconds, PENDING)

    def _emit(self, event: Event) -> None:
        try:
            emit(event)
        except BaseException:  # sys.exit() would end this thread, but not the program
            logger.exception("election %r: a listener failed on %r", self.name, event)

    def _make_mutex(self) -> None:
        # Reentrant, because a signal handler may interrupt resign() and call stop(0).
        self._mutex = threading.RLock()  # use `with` on it, not on the condition: see runtime/threads.py
        self._changed = threading.Condition(self._mutex)

    def _wait_for(self, condition: Callable[[], bool], seconds: float | None) -> None:
        with self._mutex:
            self._changed.wait_for(condition, seconds)

    def _notify_waiters(self) -> None:
        with self._mutex:
            self._changed.notify_all()

    # Callbacks: each call has its own thread

    def _start_call(self, call: CallbackCall) -> None:
        self._without_thread.append(call)
        self._start_threads()

    def _start_threads(self) -> None:
        """Start a thread for each call that lacks a thread. If the system refuses, the next call tries again."""
        while self._without_thread:
            call = self._without_thread[0]
            try:
                threading.Thread(target=self._run_call, args=(call,), daemon=True).start()
            except (RuntimeError, MemoryError) as error:  # "can't start new thread"
                logger.warning("election %r: callback %r has to wait: %s", self.name, call.callback, error)
                return
            self._without_thread.popleft()

    def _run_call(self, call: CallbackCall) -> None:
        self._enter_call(call)
        try:
            reply = call.callback()
            if inspect.iscoroutine(reply):
                reply.close()
                raise ConfigurationError(NOT_AWAITED.format(call.callback))
        except BaseException as error:  # even SystemExit ends this call only
            self._end_call(call, error)
        else:
            self._end_call(call)
