"""``@scheduler_lock``: a guard around every call of a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from typing import Any, Concatenate, Generic, Never, ParamSpec, Protocol, TypeVar, Unpack, overload

from shedlock_py.errors import hidden_frames
from shedlock_py.guard.block import AsyncBlock, Block
from shedlock_py.guard.functions import (
    Executed,
    refuse_unfinished,
    refuse_unfinished_function,
    run_guarded,
    run_guarded_async,
)
from shedlock_py.guard.methods import bind_in_class
from shedlock_py.guard.skips import Skipped, gates_of
from shedlock_py.guard.spec import LockSpec, declared
from shedlock_py.model.durations import Duration
from shedlock_py.model.recovery import DEFAULT_MOST_RECOVERIES
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.settings.options import KeywordOptions, LockOptions, OnLost, check_on_lost, is_async_callable

P = ParamSpec("P")
Q = ParamSpec("Q")
__tracebackhide__ = hidden_frames
T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")
B = TypeVar("B", Block, AsyncBlock)
R_co = TypeVar("R_co", covariant=True)
A_co = TypeVar("A_co", covariant=True)
S_co = TypeVar("S_co", covariant=True)
Options = KeywordOptions[LockProvider | AsyncLockProvider]


class GuardedFunction(Generic[P, R_co, A_co]):
    """A guarded function for type checkers. Call it as before; ``attempt`` returns whether it ran.

    At run time it is an ordinary function.
    """

    __name__: str
    __qualname__: str
    __wrapped__: Callable[..., Any]
    """The function without the guard."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the function if its lock is free; otherwise return the result of ``on_skip``."""
        raise NotImplementedError

    def attempt(self, *args: P.args, **kwargs: P.kwargs) -> A_co:
        """Call the function, and return ``Executed(value, lease)`` or ``Skipped``; ``on_skip`` is not used.

        It is bound like the function: ``obj.method.attempt(7)``, or ``Class.method.attempt(obj, 7)``; for a class
        method or static method ``Class.method.attempt(7)``.
        """
        raise NotImplementedError

    # The first parameter decides: a class or an instance is bound to it; for a static method, nothing is bound.
    @overload
    def __get__(
        self: Callable[Concatenate[T, Q], object], instance: object, owner: T, /
    ) -> GuardedFunction[Q, R_co, A_co]: ...

    @overload
    def __get__(
        self: Callable[Concatenate[T, Q], object], instance: T, owner: object = None, /
    ) -> GuardedFunction[Q, R_co, A_co]: ...

    @overload
    def __get__(self, instance: object, owner: object = None, /) -> GuardedFunction[P, R_co, A_co]: ...

    def __get__(self, instance: object, owner: object = None, /) -> object:
        raise NotImplementedError


class _Decorator(Protocol[S_co]):
    """The result of ``scheduler_lock(…)``. A skipped call returns ``S_co``."""

    @overload
    def __call__(self, function: type, /) -> Never: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]  # an async def is also a function; the first match counts
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> GuardedFunction[P, Coroutine[Any, Any, R | S_co], Coroutine[Any, Any, Executed[R] | Skipped]]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> GuardedFunction[P, R | S_co, Executed[R] | Skipped]: ...


@overload
def scheduler_lock(
    name: str,
    lock_at_most_for: Duration | None = None,
    lock_at_least_for: Duration | None = None,
    *,
    fire_time: Callable[..., datetime] | None = None,
    on_skip: None = None,
    **options: Unpack[Options],
) -> _Decorator[None]: ...


@overload
def scheduler_lock(
    name: str,
    lock_at_most_for: Duration | None = None,
    lock_at_least_for: Duration | None = None,
    *,
    fire_time: Callable[..., datetime] | None = None,
    on_skip: BaseException | type[BaseException],
    **options: Unpack[Options],
) -> _Decorator[Never]: ...


@overload
def scheduler_lock(
    name: str,
    lock_at_most_for: Duration | None = None,
    lock_at_least_for: Duration | None = None,
    *,
    fire_time: Callable[..., datetime] | None = None,
    on_skip: Callable[[Skipped], Coroutine[Any, Any, S]],
    **options: Unpack[Options],
) -> _Decorator[S]: ...


@overload
def scheduler_lock(
    name: str,
    lock_at_most_for: Duration | None = None,
    lock_at_least_for: Duration | None = None,
    *,
    fire_time: Callable[..., datetime] | None = None,
    on_skip: Callable[[Skipped], S],
    **options: Unpack[Options],
) -> _Decorator[S]: ...


@overload
def scheduler_lock(
    name: str,
    lock_at_most_for: Duration | None = None,
    lock_at_least_for: Duration | None = None,
    *,
    fire_time: Callable[..., datetime] | None = None,
    on_skip: S,
    **options: Unpack[Options],
) -> _Decorator[S]: ...


def scheduler_lock(
    name: str,
    lock_at_most_for: Duration | None = None,
    lock_at_least_for: Duration | None = None,
    *,
    provider: LockProvider | AsyncLockProvider | str | None = None,
    keep_alive: bool | Duration | None = None,
    on_lost: OnLost = "continue",
    expected_every: Duration | None = None,
    once_per: Duration | None = None,
    fire_time: Callable[..., datetime] | None = None,
    recover: bool = False,
    max_recoveries: int = DEFAULT_MOST_RECOVERIES,
    on_skip: Any = None,
) -> Any:
    """Run the function only if its lock is free; skip the call if the lock is held elsewhere.

    A skipped call returns None, unless ``on_skip`` is given. Put the decorator directly above ``def``, below any
    decorator that registers the function with a scheduler or task queue::

        @scheduler.scheduled_job("cron", hour=2)
        @scheduler_lock("nightly-report", lock_at_most_for="30m", lock_at_least_for="1m")
        def nightly_report(): ...

    :param name: the lock name, 1 to 64 characters; ``"sync-{tenant}"`` is filled from the call's arguments.
    :param lock_at_most_for: how long the lock is held if the holder dies; longer than the longest run. "10m", "PT10M",
        ``timedelta`` or seconds; by default ``configure(default_lock_at_most_for=…)``.
    :param lock_at_least_for: how long no other replica runs the task, however short it is; at least the difference
        between the replicas' clocks. By default ``configure(default_lock_at_least_for=…)``, or zero.
    :param once_per: run once in each slot of this length ("1h", "1d"), on all replicas together. Slots count from 1970
        in UTC. A slot begins half a minute early, so that clocks which differ by less agree.
    :param fire_time: a function that gets the call's arguments and returns the moment of this run, an aware datetime:
        ``fire_time=lambda message: message.sent_at``. A call is skipped if an equal or newer fire time has run.
        With ``once_per`` it is rounded down to its slot.
    :param provider: the store of this lock: a provider, or a URL, which is opened at the first call. By default the
        configured provider, looked up at each call.
    :param keep_alive: extend the lease, every third of it, until the task ends; by default as in :func:`configure`.
        ``lock_at_most_for`` can then be short: it is how soon others may run the task if this process dies. A duration
        such as "2h" limits keep-alive: a run that hangs then loses its lease, and others run the task again.
    :param on_lost: the reaction if the lease is lost while the task runs. A ``LeaseLost`` event and a warning come in
        any case. "continue" does nothing more; a callable gets the event; "cancel", for ``async def``, cancels the
        task, and the call raises :class:`LeaseLostError`.
    :param expected_every: the longest time between two starts, on all replicas together. With run history,
        ``shedlock overdue`` then finds a job that does not start. By default it uses the scheduler, or the last runs.
    :param recover: for an idempotent task with ``once_per`` or ``fire_time`` and ``keep_alive``. If the task runs
        elsewhere, the call waits until that run ends. If the run never ends, because its process died, the call runs
        the task again. So a task runs at least once for each fire time, and may run twice.
    :param max_recoveries: how often one fire time is run again, on all replicas together.
    :param on_skip: the result of a skipped call. A callable is called with the :class:`Skipped` (and awaited, if it is
        a coroutine function). An exception is raised; an exception class is first called with a message.
    :raises ConfigurationError: a name or duration that cannot work.
    :raises TypeError: on a class, a generator function or a task object of Celery, Huey or Dramatiq.

    The guarded function raises the task's exceptions. It raises :class:`ProviderError` if the store failed: then the
    task did not run.
    """
    if callable(name):
        raise TypeError("@scheduler_lock needs a lock name: @scheduler_lock('name', lock_at_most_for='10m')")
    options = {
        "lock_at_most_for": lock_at_most_for,
        "lock_at_least_for": lock_at_least_for,
        "provider": provider,
        "keep_alive": keep_alive,
        "on_lost": on_lost,
        "expected_every": expected_every,
        "once_per": once_per,
        "fire_time": fire_time,
        "recover": recover,
        "max_recoveries": max_recoveries,
    }
    return functools.partial(_decorate, LockSpec(name, LockOptions.parse("scheduler_lock", options)), on_skip)


def _decorate(spec: LockSpec, on_skip: Any, function: Any) -> Any:
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_decorate(spec, on_skip, function.__func__))
    _check_function(function)
    signature = inspect.signature(function)
    spec.check_fields(signature)
    is_async = inspect.iscoroutinefunction(function)
    check_on_lost(spec.options.on_lost, is_async=is_async)
    if is_async_callable(on_skip) and not is_async:
        raise TypeError("on_skip is a coroutine function, but the guarded function is an ordinary one")
    guarded, attempt_call = (_guard_async if is_async else _guard_sync)(spec, function, signature, on_skip)
    functools.update_wrapper(guarded, function)
    guarded.__signature__ = signature
    guarded.attempt = functools.update_wrapper(attempt_call, guarded)
    # The original function has the spec too: a scheduler's decorator below this one registers the original.
    for carrier in (function, guarded):
        with suppress(AttributeError):  # builtins and bound methods have no attributes; the wrapper has the spec
            carrier.__shedlock__ = spec
    bind_in_class(function, guarded)
    spec.functions[f"{function.__module__}.{getattr(function, '__qualname__', function)}"] = None
    spec.is_async = is_async
    declared[id(spec)] = spec
    return guarded


def _guard_sync(spec: LockSpec, function: Callable[P, R], signature: inspect.Signature, on_skip: Any) -> Any:
    block_for = _blocks(Block, spec, function, signature)

    def attempt_call(*args: P.args, **kwargs: P.kwargs) -> Executed[R] | Skipped:
        return run_guarded(block_for(args, kwargs), lambda: function(*args, **kwargs))

    def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:
        block = block_for(args, kwargs)
        with block as lease:
            if lease is not None:
                return refuse_unfinished(function(*args, **kwargs))
        return _skip_result(on_skip, block.skip)

    return guarded, attempt_call


def _guard_async(
    spec: LockSpec, function: Callable[P, Coroutine[Any, Any, R]], signature: inspect.Signature, on_skip: Any
) -> Any:
    block_for = _blocks(AsyncBlock, spec, function, signature)

    async def attempt_call(*args: P.args, **kwargs: P.kwargs) -> Executed[R] | Skipped:
        return await run_guarded_async(block_for(args, kwargs), lambda: function(*args, **kwargs))

    async def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:
        block = block_for(args, kwargs)
        async with block as lease:
            if lease is not None:
                return refuse_unfinished(await function(*args, **kwargs), was_awaited=True)
        result = _skip_result(on_skip, block.skip)
        return await result if inspect.isawaitable(result) else result

    return guarded, attempt_call


def _blocks(kind: type[B], spec: LockSpec, function: Any, signature: inspect.Signature) -> Callable[..., B]:
    """Return a function that makes the block of one call of ``function`` from its arguments.

    It raises a TypeError if the arguments do not fit. The lock was not taken then.
    """
    options, gates = spec.options, gates_of(function)

    def block_for(args: tuple[Any, ...], kwargs: dict[str, Any]) -> B:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            name = getattr(function, "__qualname__", None) or repr(function)
            raise TypeError(f"{name}{signature}: {error}") from None
        name = spec.lock_name(function, args, kwargs) if spec.name is None else spec.name
        return kind(name, options, spec, gates, options.fire_time_of(args, kwargs))

    return block_for


def _skip_result(on_skip: Any, skipped: Skipped) -> Any:
    """Return the result of a skipped call, or raise its exception."""
    if isinstance(on_skip, type) and issubclass(on_skip, BaseException):
        raise on_skip(str(skipped))
    if isinstance(on_skip, BaseException):
        raise on_skip.with_traceback(None)  # all calls raise this one object: do not pile up tracebacks
    return on_skip(skipped) if callable(on_skip) else on_skip


def _check_function(function: Any) -> None:
    tasks = {"apply_async": "Celery", "call_local": "Huey", "send_with_options": "Dramatiq"}
    for attribute, library in tasks.items():
        if hasattr(type(function), attribute):  # the type, because a Mock has every attribute
            raise TypeError(
                f"{function!r} is a {library} task, not a function: put @scheduler_lock directly above 'def', and the "
                f"{library} decorator above it"
            )
    if isinstance(function, type) or not callable(function):
        raise TypeError(f"@scheduler_lock guards functions and methods, not {function!r}: put it directly above 'def'")
    if not inspect.iscoroutinefunction(function):
        refuse_unfinished_function(function)
