"""Leader election: one of N nodes leads, and knows it.

What is decided, and when, is in ``election.py``; here it is carried out, by a thread or by a task of the event loop.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar, copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar, cast, overload

from shedlock_py._clock import monotonic
from shedlock_py._process import OwningProcess
from shedlock_py._program import run, run_async
from shedlock_py._timers import request_in_worker
from shedlock_py.config import (
    as_async_provider,
    as_provider,
    check_provider,
    emit,
    is_async_provider,
)
from shedlock_py.durations import Duration, parse_duration
from shedlock_py.election import (
    PENDING,
    Command,
    Do,
    Election,
    ElectionSettings,
    Wait,
    Wish,
    demotion,
    leader_of,
)
from shedlock_py.errors import ConfigurationError
from shedlock_py.events import (
    Event,
    LeaderChanged,
    LeadershipStarted,
    LeadershipStopped,
    logger,
)
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.record import LockRecord
from shedlock_py.urls import async_provider_from_url, provider_from_url

if TYPE_CHECKING:
    import asyncio

P = ParamSpec("P")
R = TypeVar("R")

Callback = Callable[[], Any]


class _Call:
    """One call of a callback."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback = callback


_current_calls: ContextVar[tuple[_Call, ...]] = ContextVar("shedlock_current_calls", default=())
"""The calls of callbacks, of any elector, that the current code is a part of."""


class _Elector:
    """What both kinds of electors share, which waits for nothing."""

    def __init__(
        self,
        settings: ElectionSettings,
        on_started_leading: Callback | None,
        on_stopped_leading: Callback | None,
        on_new_leader: Callable[[str], Any] | None,
    ) -> None:
        self._settings = settings
        self._started = [on_started_leading] if on_started_leading else []
        self._stopped = [on_stopped_leading] if on_stopped_leading else []
        self._renewed: list[Callback] = []
        self._new = [on_new_leader] if on_new_leader else []
        self._calls: set[_Call] = set()
        self._owner = OwningProcess()
        self._election = self._new_election()

    def _new_election(self) -> Election:
        return Election(self._settings, monotonic, self._tell, self._was_renewed, self._changed_state, self._is_busy)

    @property
    def name(self) -> str:
        """The name of the election: a lock name."""
        return self._settings.name

    @property
    def holder(self) -> str:
        """How this node is named in the lock record."""
        return self._election.holder

    @property
    def term(self) -> int | None:
        """The fencing token of this node's leadership; None while it does not lead."""
        return self._election.term if self._owner.is_current() else None

    def is_leader(self) -> bool:
        """Whether this node leads: local, free, and False *before* another node can lead.

        Computed from this node's own monotonic clock on each question. False in a forked child: its parent leads.
        """
        return self._owner.is_current() and self._election.is_leader()

    def add_callbacks(
        self,
        on_started_leading: Callback | None = None,
        on_stopped_leading: Callback | None = None,
        on_renewed: Callback | None = None,
    ) -> None:
        """More callbacks, besides those given when it was made; ``on_renewed`` is called at each renewal."""
        for callbacks, callback in (
            (self._started, on_started_leading),
            (self._stopped, on_stopped_leading),
            (self._renewed, on_renewed),
        ):
            if callback is not None:
                callbacks.append(callback)

    def __repr__(self) -> str:
        state = f"leads, term {self.term}" if self.is_leader() else "does not lead"
        return f"<{type(self).__name__} {self.name!r}: {self.holder!r} {state}>"

    def _tell(self, event: Event) -> None:
        try:
            self._emit(event)
        finally:  # also if a listener ends the program
            match event:
                case LeadershipStarted():
                    self._call(*self._started)
                case LeadershipStopped():
                    self._call(*self._stopped)
                case LeaderChanged(_, holder):
                    self._call(*(functools.partial(callback, holder) for callback in self._new))
            self._changed_state()

    def _emit(self, event: Event) -> None:
        emit(event)

    def _fail(self, election: Election, error: BaseException) -> None:
        """The campaign of ``election`` has raised what nobody expects: nothing is renewed any more."""
        kind = type(error).__name__
        logger.exception("election %r: the elector has failed (%s), and takes no part any more", self.name, kind)
        self._give_up(election)

    def _give_up(self, election: Election) -> None:
        try:
            election.give_up()
        except BaseException:  # of a listener or a callback: what ended the campaign is to be raised
            logger.exception("election %r: a callback could not be called", self.name)

    def _is_here(self) -> bool:
        """Whether the elector was started, in this process; it may have been stopped since."""
        raise NotImplementedError

    def _is_decided(self) -> bool:
        """Whether nothing is left to wait for: this node leads, or will not."""
        return self.is_leader() or not self._election.may_lead()

    def _is_in_callback(self) -> bool:
        """Whether the current code is a part of a callback of this elector, which has not returned yet."""
        return any(call in self._calls for call in _current_calls.get())

    def _was_renewed(self) -> None:
        self._call(*self._renewed)

    def _call(self, *callbacks: Callback) -> None:
        raise NotImplementedError

    def _changed_state(self) -> None:
        """Whoever waits for this node to lead should look again."""
        raise NotImplementedError

    def _is_busy(self) -> bool:
        """Whether a callback of this node's leadership is running, or has yet to be called."""
        return bool(self._calls)


class LeaderElector(_Elector):
    """Elects one of the nodes that use the same store and ``name``.

    ::

        with LeaderElector(provider, "scheduler") as elector:
            while True:
                if elector.is_leader():
                    work(fencing_token=elector.term)

    A leader that dies is followed after ``lease_duration`` at the latest, one that stops cleanly within about one
    ``retry_period``. A leader that cannot reach the store does not lead any more ``renew_deadline`` after its last
    renewal, before another node can be elected.

    Callbacks get no arguments (``on_new_leader``: the leader's holder), run in threads of their own, and never delay a
    renewal. Leadership is given up only when they have returned: stop your work in ``on_stopped_leading``.

    :param provider: the store, as a provider or a URL.
    :param name: the name of the election; a lock name.
    :param lease_duration: how long the store keeps a leader that is silent. On every node the same, as the next two.
    :param renew_deadline: how long a leader believes without a renewal; at most 90 % of ``lease_duration``.
    :param retry_period: how often a leader renews, and a follower looks (with up to 20 % of jitter).
    :param holder: how this node is named; ``host:pid`` by default.
    :param takeover: "expired": a follower may lead when the lease is over by the store's clock. "observed": only when
        it has seen the same lease for a whole ``lease_duration`` of its own clock, so a jump of the store's clock
        cannot make two leaders; a follower that has just started waits that long. A node that finds no record, or
        cannot be sure which lease its own has replaced, has the lease for ``renew_deadline`` before it leads.
    :raises ConfigurationError: durations under which a leader could overlap its successor, or another bad value.
    """

    def __init__(
        self,
        provider: LockProvider | str,
        name: str,
        *,
        lease_duration: Duration = "15s",
        renew_deadline: Duration = "10s",
        retry_period: Duration = "2s",
        holder: str | None = None,
        takeover: str = "expired",
        on_started_leading: Callback | None = None,
        on_stopped_leading: Callback | None = None,
        on_new_leader: Callable[[str], Any] | None = None,
    ) -> None:
        if isinstance(provider, str):
            provider = provider_from_url(provider)
        check_provider(provider)
        if is_async_provider(provider):
            raise ConfigurationError(
                f"{type(provider).__name__} is an async provider, which LeaderElector cannot await: use"
                " AsyncLeaderElector, or give LeaderElector a provider for ordinary functions"
            )
        self._provider: LockProvider = as_provider(provider)
        self._changed = threading.Condition()
        self._changes = self._seen = 0
        self._waiting: deque[_Call] = deque()
        """Calls that have no thread yet."""
        self._thread: threading.Thread | None = None
        settings = ElectionSettings.parsed(name, lease_duration, renew_deadline, retry_period, holder, takeover)
        super().__init__(settings, on_started_leading, on_stopped_leading, on_new_leader)

    # Life

    def start(self) -> None:
        """Take part in the election, in a daemon thread.

        :raises RuntimeError: it takes part already; or no thread could be started, and ``start()`` may be repeated.
        """
        if self._thread is not None and self._thread.is_alive() and self._owner.is_current():
            raise RuntimeError(f"{self!r} was started already")
        if not self._owner.is_current():
            self._changed = threading.Condition()  # in the parent, a thread may have it; here, some wait for it already
        self._calls = set()
        self._waiting = deque()
        self._election = election = self._new_election()
        self._owner = OwningProcess()  # after the parent's election is out of sight
        name = f"shedlock-elector-{self.name}"
        self._thread = threading.Thread(target=self._campaign, args=(election,), name=name, daemon=True)
        try:
            self._thread.start()
        except (RuntimeError, MemoryError) as error:
            self._thread = None
            raise RuntimeError(
                f"{self!r} could not start its thread ({error}), perhaps because of a limit on processes or threads:"
                " it takes no part in the election; call start() again when there is room"
            ) from error

    def stop(self, timeout: Duration | None = None) -> bool:
        """Leave the election. A leader tells its callbacks, waits until they have returned, and then resigns.

        ``is_leader()`` is False at once. In one of its own callbacks ``stop()`` does not wait for that callback.

        :param timeout: for how long to wait for that; None: as long as it takes; 0: do not wait. False: it was not over
            by then, and goes on in the background.
        """
        seconds = _seconds(timeout)
        thread = self._thread
        if thread is None or not self._owner.is_current():
            return True
        self._wish("stop")
        if self._is_in_callback() or thread is threading.current_thread():  # the latter: in a listener
            return False
        thread.join(seconds)
        return not thread.is_alive()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    # Questions and wishes

    def wait_until_leader(self, timeout: Duration | None = None) -> bool:
        """Wait until this node leads. False: it did not within ``timeout``, or was stopped.

        An elector that was not started yet may be within ``timeout``; without one it returns False at once.
        """
        seconds = _seconds(timeout)
        if seconds is None and not self._is_here():
            return False
        with self._changed:
            self._changed.wait_for(self._is_decided, seconds)
        return self.is_leader()

    def leader(self) -> LockRecord | None:
        """Ask the store who leads; None: nobody."""
        return leader_of(self._provider.record(self.name))

    def resign(self) -> None:
        """If this node leads: tell the callbacks, and when they have returned let another node lead. Does not wait."""
        self._wish("resign")

    def take_over(self, timeout: Duration | None = None) -> bool:
        """Lead by force. The store refuses whoever led at once; waits until that node cannot believe any more.

        That is ``renew_deadline`` at most, if somebody led or, with ``takeover="observed"``, may have. False: this node
        did not lead within ``timeout``, another took over from it at once, or it takes no part in the election.
        """
        seconds = _seconds(timeout)
        if not self._is_here():
            return False
        if not self.is_leader():
            self._wish("take_over")
        with self._changed:
            self._changed.wait_for(lambda: self._is_decided() or not self._election.is_seizing(), seconds)
        self._election.wishes.discard("take_over")
        return self.is_leader()

    def demote(self, cooldown: Duration = "0s") -> bool:
        """Force a re-election, whoever leads. The demoted node does not stand for election for ``cooldown``.

        Nobody leads until ``renew_deadline`` from now, when the demoted one cannot believe any more. False: nobody led.
        """
        rest = parse_duration(cooldown, "cooldown", zero=True)
        former = self.leader()
        if former is None:
            return False
        self._provider.take_over(demotion(self.name, former.holder, rest, self._settings.renew_deadline))
        return True

    # In the thread

    def _campaign(self, election: Election) -> None:
        try:
            run(election.run(), self._execute)
        except BaseException as error:  # also SystemExit: a thread that ends must not leave a leader behind
            self._fail(election, error)
        finally:
            election.is_over = True
            self._changed_state()
            while self._waiting:  # nobody will start their threads; nothing is left for this one to do
                self._run_callback(self._waiting.popleft())

    def _emit(self, event: Event) -> None:
        try:
            emit(event)
        except BaseException:  # sys.exit() in this thread would end the election, and nothing else
            logger.exception("election %r: a listener failed on %r", self.name, event)

    def _execute(self, command: Command) -> Any:
        match command:
            case Wait(until):
                self._start_waiting()
                with self._changed:  # what changed since the last wait counts as well
                    self._changed.wait_for(lambda: self._changes != self._seen, max(0.0, until - monotonic()))
                    self._seen = self._changes
                return None
            case Do(operation, args, seconds):
                ask = functools.partial(getattr(self._provider, operation), *args)
                return ask() if seconds is None else request_in_worker(self._provider, ask, seconds, PENDING)

    def _wish(self, wish: Wish) -> None:
        self._election.wishes.add(wish)
        self._wake()

    def _wake(self) -> None:
        """The campaign has something to look at."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def _changed_state(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _is_here(self) -> bool:
        return self._thread is not None and self._owner.is_current()

    def _call(self, *callbacks: Callback) -> None:
        for callback in callbacks:
            call = _Call(callback)
            self._calls.add(call)
            self._waiting.append(call)
        self._start_waiting()

    def _was_renewed(self) -> None:
        waiting = [call.callback for call in self._waiting]
        self._call(*(callback for callback in self._renewed if callback not in waiting))

    def _start_waiting(self) -> None:
        """Start a thread for each call that has none; what cannot be started is tried again at the next wake-up."""
        while self._waiting:
            call = self._waiting[0]
            try:
                threading.Thread(target=self._run_callback, args=(call,), daemon=True).start()
            except (RuntimeError, MemoryError) as error:  # "can't start new thread"
                logger.warning("election %r: callback %r has to wait: %s", self.name, call.callback, error)
                return
            self._waiting.popleft()

    def _run_callback(self, call: _Call) -> None:
        _current_calls.set((*_current_calls.get(), call))
        try:
            call.callback()
        except BaseException:  # whatever it is: it ends this call, and nothing else
            logger.exception("election %r: callback %r failed", self.name, call.callback)
        finally:
            self._calls.discard(call)
            self._wake()


class AsyncLeaderElector(_Elector):
    """:class:`LeaderElector` for asyncio: ``async with AsyncLeaderElector(provider, "scheduler") as elector: …``

    Callbacks may be coroutine functions; others are called on the event loop and must be quick. A provider for ordinary
    functions is asked in worker threads.
    """

    def __init__(
        self,
        provider: AsyncLockProvider | LockProvider | str,
        name: str,
        *,
        lease_duration: Duration = "15s",
        renew_deadline: Duration = "10s",
        retry_period: Duration = "2s",
        holder: str | None = None,
        takeover: str = "expired",
        on_started_leading: Callback | None = None,
        on_stopped_leading: Callback | None = None,
        on_new_leader: Callable[[str], Any] | None = None,
    ) -> None:
        if isinstance(provider, str):
            provider = async_provider_from_url(provider)
        import asyncio

        check_provider(provider)
        self._provider: AsyncLockProvider = as_async_provider(provider)
        self._woken: asyncio.Event = asyncio.Event()
        self._waiters: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._task: asyncio.Task[None] | None = None
        settings = ElectionSettings.parsed(name, lease_duration, renew_deadline, retry_period, holder, takeover)
        super().__init__(settings, on_started_leading, on_stopped_leading, on_new_leader)

    # Life

    async def start(self) -> None:
        """See :meth:`LeaderElector.start`; in a task of the running event loop."""
        import asyncio

        if self._takes_part():
            raise RuntimeError(f"{self!r} was started already")
        here = asyncio.get_running_loop()
        self._woken = asyncio.Event()  # it may have been started on another event loop before
        is_child = not self._owner.is_current()  # the event loops of the parent process do not run here
        self._waiters = {
            waiter: loop for waiter, loop in self._waiters.items() if loop is here or not (is_child or loop.is_closed())
        }
        self._calls = set()
        self._election = election = self._new_election()
        self._owner = OwningProcess()  # after the parent's election is out of sight
        self._task = asyncio.create_task(self._campaign(election), name=f"elector {self.name}")

    async def stop(self, timeout: Duration | None = None) -> bool:  # noqa: ASYNC109 (as its twin; a Duration)
        """See :meth:`LeaderElector.stop`."""
        import asyncio

        seconds = _seconds(timeout)
        task, election = self._task, self._election
        if task is None or not self._takes_part():
            return True
        self._wish("stop")
        if self._is_in_callback():
            return False
        if task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({task}, timeout=seconds)
            return task.done()
        await self._wait_while(lambda: not election.is_over, None if seconds is None else monotonic() + seconds)
        return election.is_over

    def _is_here(self) -> bool:
        return self._task is not None and self._owner.is_current()

    def _takes_part(self) -> bool:
        task = self._task
        if task is None or not self._owner.is_current():
            return False
        return not task.done() and not task.get_loop().is_closed()  # what was left on a closed loop is never done

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    # Questions and wishes

    async def wait_until_leader(self, timeout: Duration | None = None) -> bool:  # noqa: ASYNC109 (likewise)
        """See :meth:`LeaderElector.wait_until_leader`."""
        until = _moment(timeout)
        if until is not None or self._is_here():
            await self._wait_while(lambda: not self._is_decided(), until)
        return self.is_leader()

    async def leader(self) -> LockRecord | None:
        """See :meth:`LeaderElector.leader`."""
        return leader_of(await self._provider.record(self.name))

    def resign(self) -> None:
        """See :meth:`LeaderElector.resign`."""
        self._wish("resign")

    async def take_over(self, timeout: Duration | None = None) -> bool:  # noqa: ASYNC109 (likewise)
        """See :meth:`LeaderElector.take_over`."""
        until = _moment(timeout)
        if not self._is_here():
            return False
        if not self.is_leader():
            self._wish("take_over")
        await self._wait_while(lambda: not self._is_decided() and self._election.is_seizing(), until)
        self._election.wishes.discard("take_over")
        return self.is_leader()

    async def demote(self, cooldown: Duration = "0s") -> bool:
        """See :meth:`LeaderElector.demote`."""
        rest = parse_duration(cooldown, "cooldown", zero=True)
        former = await self.leader()
        if former is None:
            return False
        await self._provider.take_over(demotion(self.name, former.holder, rest, self._settings.renew_deadline))
        return True

    # On the event loop

    async def _campaign(self, election: Election) -> None:
        import asyncio

        try:
            await run_async(election.run(), self._execute)
        except GeneratorExit:  # the garbage collector found it: its event loop was closed, or is the parent process's
            election.forget()
            raise
        except asyncio.CancelledError:
            if election.lease is not None:
                logger.warning("election %r: cancelled, and not stopped: the lease has to end by itself", self.name)
            self._give_up(election)
            raise
        except BaseException as error:
            self._fail(election, error)
            if not isinstance(error, Exception):
                raise
        finally:
            election.is_over = True
            self._changed_state()

    async def _execute(self, command: Command) -> Any:
        import asyncio

        match command:
            case Wait(until):
                return await self._wait_for(self._woken, until)
            case Do(operation, args, seconds):
                asking = asyncio.ensure_future(getattr(self._provider, operation)(*args))
                if seconds is not None:
                    done, _ = await asyncio.wait({asking}, timeout=seconds)
                    if not done:
                        self._callbacks_later(asking)
                        return PENDING
                return await asking

    def _callbacks_later(self, asking: asyncio.Future[Any]) -> None:
        """An answer that comes too late: let it come, and say nothing of it."""
        asking.add_done_callback(lambda late: late.cancelled() or late.exception())

    async def _wait_while(self, condition: Callable[[], bool], until: float | None) -> None:
        import asyncio

        changed = asyncio.Event()
        self._waiters[changed] = asyncio.get_running_loop()
        try:
            while condition() and (until is None or monotonic() < until):
                await self._wait_for(changed, until)
        finally:
            self._waiters.pop(changed, None)

    async def _wait_for(self, event: asyncio.Event, until: float | None) -> None:
        import asyncio

        with suppress(TimeoutError):
            async with asyncio.timeout(None if until is None else max(0.0, until - monotonic())):
                await event.wait()
        event.clear()  # what is said from now on counts for the next wait

    def _wish(self, wish: Wish) -> None:
        self._election.wishes.add(wish)
        if self._task is not None and self._is_here():  # not of the parent process, whose event loop it would wake
            _set(self._woken, self._task.get_loop())
            self._changed_state()

    def _changed_state(self) -> None:
        for waiter, loop in list(self._waiters.items()):
            _set(waiter, loop)

    def _call(self, *callbacks: Callback) -> None:
        import asyncio

        for callback in callbacks:
            call = _Call(callback)
            context = copy_context()
            context.run(_current_calls.set, (*_current_calls.get(), call))
            self._calls.add(call)
            try:
                reply = context.run(callback)
                if inspect.isawaitable(reply):
                    work = reply if inspect.iscoroutine(reply) else _awaited(reply)
                    task = asyncio.get_running_loop().create_task(work, context=context)
                    task.add_done_callback(functools.partial(self._callback_ended, call))
                    continue
            except Exception:
                logger.exception("election %r: callback %r failed", self.name, callback)
            except BaseException:
                self._calls.discard(call)
                raise
            self._calls.discard(call)

    def _callback_ended(self, call: _Call, task: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not task.cancelled() and task.exception() is not None:
            logger.error("election %r: callback %r failed", self.name, call.callback, exc_info=task.exception())
        self._woken.set()


async def _awaited(reply: Any) -> Any:
    return await reply


def _set(event: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
    """Set the event of an event loop, which may run in another thread."""
    import asyncio

    with suppress(RuntimeError):
        if asyncio.get_running_loop() is loop:
            event.set()
            return
    with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
        loop.call_soon_threadsafe(event.set)


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else parse_duration(timeout, "timeout", zero=True).total_seconds()


def _moment(timeout: Duration | None) -> float | None:
    seconds = _seconds(timeout)
    return None if seconds is None else monotonic() + seconds


class _LeaderOnly(Protocol):
    """What ``@leader_only(elector)`` makes of a function: one that may return None."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


def leader_only(elector: LeaderElector | AsyncLeaderElector) -> _LeaderOnly:
    """Run the function on the leader only: elsewhere a call returns None, at once and without asking the store.

    ::

        @leader_only(elector)
        def tidy_up(): ...

    For ``def`` and ``async def``. Whether this node leads is asked when the call begins; a long task should ask
    ``elector.is_leader()`` again, or pass ``elector.term`` to what it writes.
    """
    if not isinstance(elector, _Elector):
        raise ConfigurationError("@leader_only needs an elector: @leader_only(elector)")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def guarded_async(*args: Any, **kwargs: Any) -> Any:
                return await function(*args, **kwargs) if elector.is_leader() else None

            return guarded_async

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if elector.is_leader() else None

        return guarded

    return cast(_LeaderOnly, decorate)
