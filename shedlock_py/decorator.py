"""``@scheduler_lock``: a guard around every call of a function."""

from __future__ import annotations

import functools
import inspect
import re
import string
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime, timedelta
from types import MethodType, ModuleType
from typing import Any, Concatenate, Generic, Never, ParamSpec, Protocol, TypeVar, cast, overload
from weakref import WeakValueDictionary

from shedlock_py._methods import bind_in_class
from shedlock_py.config import check_keep_alive, check_provider, lock_request
from shedlock_py.durations import Duration, parse_duration
from shedlock_py.errors import ConfigurationError
from shedlock_py.guard import (
    AsyncBlock,
    Block,
    Executed,
    Guard,
    Skipped,
    refuse_unfinished,
    refuse_unfinished_function,
    run_guarded,
    run_guarded_async,
)
from shedlock_py.heartbeat import OnLost
from shedlock_py.keepalive import check_on_lost, check_on_lost_async
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.request import LockRequest, check_hold_times, validate_name

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")
R_co = TypeVar("R_co", covariant=True)
A_co = TypeVar("A_co", covariant=True)
G = TypeVar("G", bound=Guard)
S_co = TypeVar("S_co", covariant=True)


class LockSpec:
    """Which lock a function needs, as ``@scheduler_lock`` was told. Found as ``function.__shedlock__``.

    ``name`` may be a template ("sync-{tenant}"), filled from the arguments of each call. Durations that are None are
    taken from :func:`configure`.
    """

    def __init__(
        self,
        name: str,
        lock_at_most_for: Duration | None = None,
        lock_at_least_for: Duration | None = None,
        provider: LockProvider | AsyncLockProvider | None = None,
        keep_alive: bool | None = None,
        on_lost: OnLost = "continue",
    ) -> None:
        if not isinstance(name, str):
            raise ConfigurationError(f"lock name must be a string, not {name!r}: @scheduler_lock('name', …)")
        self.template = name
        self._placeholders = _placeholders(name)
        self.fields = {_parameter(field) for field in self._placeholders}
        self.name = None if self.fields else validate_name(name.format())
        at_most, at_least = lock_at_most_for, lock_at_least_for
        self.lock_at_most_for = None if at_most is None else parse_duration(at_most, "lock_at_most_for")
        self.lock_at_least_for = None if at_least is None else parse_duration(at_least, "lock_at_least_for", zero=True)
        if self.lock_at_most_for is not None:
            check_hold_times(self.lock_at_most_for, self.lock_at_least_for or timedelta(0))
        check_provider(provider)
        check_keep_alive(keep_alive)
        check_on_lost_async(on_lost)
        self.provider = provider
        self.keep_alive = keep_alive
        self.on_lost = on_lost
        self.filled_template = name if self.fields else None
        """The template, if it is filled from each call."""

    def check_fields(self, signature: inspect.Signature) -> None:
        """:raises ConfigurationError: the name template asks for something that is not a parameter."""
        unknown = self.fields - set(signature.parameters)
        if unknown:
            raise ConfigurationError(
                f"lock name {self.template!r} uses {', '.join(f'{{{field}}}' for field in sorted(unknown))}, which is "
                f"no parameter of the function; its parameters are: {', '.join(signature.parameters) or 'none'}"
            )

    def request(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        lock_at_most_for: Duration | None = None,
        lock_at_least_for: Duration | None = None,
        fire_time: datetime | None = None,
    ) -> LockRequest:
        """The request for one call of ``function``. The durations given here count where the spec has none."""
        return lock_request(
            self.lock_name(function, args, kwargs or {}),
            lock_at_most_for if self.lock_at_most_for is None else self.lock_at_most_for,
            lock_at_least_for if self.lock_at_least_for is None else self.lock_at_least_for,
            fire_time,
            self.filled_template,
        )

    def guard(self, kind: type[G], function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> G:
        """The guard around one call of ``function``."""
        return kind(
            self.lock_name(function, args, kwargs) if self.name is None else self.name,
            self.lock_at_most_for,
            self.lock_at_least_for,
            self.provider,
            self.keep_alive,
            self.on_lost,
            self,
        )

    def lock_name(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The lock name for one call of ``function``: the template filled from its arguments."""
        if self.name is not None:
            return self.name
        original: Any = function
        while isinstance(original, functools.partial | MethodType):
            # Back to the function as it was written, so that the template sees all of its parameters.
            if isinstance(original, MethodType):
                original, args = original.__func__, (original.__self__, *args)
            else:
                original, args, kwargs = original.func, (*original.args, *args), {**original.keywords, **kwargs}
        signature = inspect.signature(original)
        self.check_fields(signature)
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        try:
            for field, placeholder in self._placeholders.items():
                self._check_text(field, _FORMATTER.get_field(field, (), call.arguments)[0], placeholder, call.arguments)
            return self.template.format_map(call.arguments)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(f"lock name {self.template!r} cannot be filled for this call: {error}") from error

    def _check_text(self, field: str, value: object, placeholder: str, arguments: dict[str, Any]) -> None:
        """:raises ConfigurationError: each process would have a text, and so a lock, of its own."""
        if isinstance(value, str):
            return
        if isinstance(value, ModuleType) or re.search(_ADDRESS, placeholder.format_map(arguments)):
            raise ConfigurationError(
                f"lock name {self.template!r}: the text of {{{field}}}, a {type(value).__qualname__}, is another one "
                f"in each process, and so would be its lock. Name what identifies it, as in {{{field}.id}}, or give "
                f"its class a __str__"
            )


_declared: WeakValueDictionary[int, LockSpec] = WeakValueDictionary()  # weak: closures may be decorated, and gone


def declared_lock_names() -> set[str]:
    """The lock names of the decorated functions of this process, but for those that are filled from each call."""
    specs = [reference() for reference in _declared.valuerefs()]
    return {spec.name for spec in specs if spec is not None and spec.name is not None}


_FORMATTER = string.Formatter()
_ADDRESS = " at 0x[0-9a-fA-F]{6,}"
"""What Python writes of an object that has no text of its own: "<app.Job object at 0x7f3a5c0d1e50>"."""


def _placeholders(template: str) -> dict[str, str]:
    """What a name template asks for, and how: ``{"user.id": "{user.id!r}"}`` for "sync-{user.id!r}"."""
    try:
        found = {
            field: f"{{{field}{f'!{conversion}' if conversion else ''}{f':{spec}' if spec else ''}}}"
            for _, field, spec, conversion in _FORMATTER.parse(template)
            if field is not None
        }
    except ValueError as error:
        raise ConfigurationError(f"lock name {template!r} is not a valid template: {error}") from error
    if any(not _parameter(field).isidentifier() for field in found):
        raise ConfigurationError(
            f"lock name {template!r}: name the parameter inside the braces, as in 'sync-{{tenant}}'"
        )
    return found


def _parameter(field: str) -> str:
    """The parameter that a field of a template is of: "user" for "user.id"."""
    return field.split(".")[0].split("[")[0]


class GuardedFunction(Generic[P, R_co, A_co]):
    """What a guarded function is to type checkers: called as before; ``attempt`` tells whether it ran.

    When a program runs, it is an ordinary function.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the function if its lock is free; otherwise return what ``on_skip`` says."""
        raise NotImplementedError

    def attempt(self, *args: P.args, **kwargs: P.kwargs) -> A_co:
        """Like calling it, but returns ``Executed(value, lease)`` or ``Skipped``; ``on_skip`` is not used.

        It is bound as the function is: ``obj.method.attempt(7)``, or ``Class.method.attempt(obj, 7)``; of a class or
        static method ``Class.method.attempt(7)``.
        """
        raise NotImplementedError

    # The first parameter decides what is bound to it: the class, the instance, or, for a static method, nothing.
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
    """What ``scheduler_lock(…)`` returns; ``S_co`` is what a skipped call returns."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # an async def is also a function; the first that fits is meant
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
    provider: LockProvider | AsyncLockProvider | None = None,
    keep_alive: bool | None = None,
    on_lost: OnLost = "continue",
    on_skip: None = None,
) -> _Decorator[None]: ...


@overload
def scheduler_lock(
    name: str,
    lock_at_most_for: Duration | None = None,
    lock_at_least_for: Duration | None = None,
    *,
    provider: LockProvider | AsyncLockProvider | None = None,
    keep_alive: bool | None = None,
    on_lost: OnLost = "continue",
    on_skip: BaseException | type[BaseException],
) -> _Decorator[Never]: ...


@overload
def scheduler_lock(
    name: str,
    lock_at_most_for: Duration | None = None,
    lock_at_least_for: Duration | None = None,
    *,
    provider: LockProvider | AsyncLockProvider | None = None,
    keep_alive: bool | None = None,
    on_lost: OnLost = "continue",
    on_skip: Callable[[Skipped], Coroutine[Any, Any, S]],
) -> _Decorator[S]: ...


@overload
def scheduler_lock(
    name: str,
    lock_at_most_for: Duration | None = None,
    lock_at_least_for: Duration | None = None,
    *,
    provider: LockProvider | AsyncLockProvider | None = None,
    keep_alive: bool | None = None,
    on_lost: OnLost = "continue",
    on_skip: Callable[[Skipped], S],
) -> _Decorator[S]: ...


@overload
def scheduler_lock(
    name: str,
    lock_at_most_for: Duration | None = None,
    lock_at_least_for: Duration | None = None,
    *,
    provider: LockProvider | AsyncLockProvider | None = None,
    keep_alive: bool | None = None,
    on_lost: OnLost = "continue",
    on_skip: S,
) -> _Decorator[S]: ...


def scheduler_lock(
    name: str,
    lock_at_most_for: Duration | None = None,
    lock_at_least_for: Duration | None = None,
    *,
    provider: LockProvider | AsyncLockProvider | None = None,
    keep_alive: bool | None = None,
    on_lost: OnLost = "continue",
    on_skip: Any = None,
) -> Any:
    """Run the function only where its lock is free; skip the call where it is held elsewhere.

    A skipped call returns None, or what ``on_skip`` says. Put it directly above ``def``, below any decorator that
    registers the function with a scheduler or task queue::

        @scheduler.scheduled_job("cron", hour=2)
        @scheduler_lock("nightly-report", lock_at_most_for="30m", lock_at_least_for="1m")
        def nightly_report(): ...

    :param name: the lock name, 1 to 64 characters; ``"sync-{tenant}"`` is filled from the call's arguments.
    :param lock_at_most_for: how long the lock is held if the holder dies; longer than the longest run. "10m", "PT10M",
        ``timedelta`` or seconds; by default what ``configure(default_lock_at_most_for=…)`` says.
    :param lock_at_least_for: for how long nobody else runs it, however short the task; at least the difference between
        the replicas' clocks. Zero by default.
    :param provider: the store of this lock; by default the configured one, looked up at each call.
    :param keep_alive: extend the lease, every third of it, until the task ends; by default as :func:`configure` says.
        ``lock_at_most_for`` is then how soon others may run it if this process dies, and can be short.
    :param on_lost: what happens when the lease is lost while the task runs: "continue" (a ``LeaseLost`` event and a
        warning, as always), or a callable that gets the event; for ``async def`` also "cancel": the task is cancelled
        and the call raises :class:`LeaseLostError`.
    :param on_skip: what a skipped call returns; a callable is called with the :class:`Skipped` (and awaited, if it
        is a coroutine function); an exception is raised, a class of them is called with a message first.
    :raises ConfigurationError: a name or duration that cannot work.
    :raises TypeError: on a class, a generator function or a task object of Celery, Huey or Dramatiq.

    The guarded function raises what the task raises, and :class:`ProviderError` when the store failed: then the task
    did not run.
    """
    if callable(name):
        raise TypeError("@scheduler_lock needs a lock name: @scheduler_lock('name', lock_at_most_for='10m')")
    spec = LockSpec(name, lock_at_most_for, lock_at_least_for, provider, keep_alive, on_lost)

    def decorate(function: Any) -> Any:
        if isinstance(function, staticmethod | classmethod):
            return type(function)(decorate(function.__func__))
        _check_function(function)
        signature = inspect.signature(function)
        spec.check_fields(signature)
        (check_on_lost_async if inspect.iscoroutinefunction(function) else check_on_lost)(on_lost)
        guarded = _guard_async if inspect.iscoroutinefunction(function) else _guard_sync
        wrapper = guarded(spec, function, signature, on_skip)
        # The original carries the mark too: a scheduler's decorator that was put below this one registers the original.
        for marked in (function, wrapper):
            _mark(marked, spec)
        bind_in_class(function, wrapper)
        _declared[id(spec)] = spec
        return wrapper

    return decorate


def _guard_sync(spec: LockSpec, function: Callable[P, R], signature: inspect.Signature, on_skip: Any) -> Any:
    if inspect.iscoroutinefunction(on_skip):
        raise TypeError("on_skip is a coroutine function, but the guarded function is an ordinary one")
    on_skipped = _skip_handler(on_skip)
    needs_arguments = _needs_arguments(signature)

    def block_around(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Block:
        if args or kwargs or needs_arguments:
            _check_call(function, signature, args, kwargs)
        return spec.guard(Block, function, args, kwargs)

    def attempt_call(*args: P.args, **kwargs: P.kwargs) -> Executed[R] | Skipped:
        return run_guarded(block_around(args, kwargs), lambda: function(*args, **kwargs))

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:
        block = block_around(args, kwargs)
        with block as lease:
            if lease is not None:
                return refuse_unfinished(function(*args, **kwargs))
        return on_skipped(block.skip)

    return _dressed(guarded, attempt_call, signature)


def _guard_async(
    spec: LockSpec, function: Callable[P, Coroutine[Any, Any, R]], signature: inspect.Signature, on_skip: Any
) -> Any:
    on_skipped = _skip_handler(on_skip)
    needs_arguments = _needs_arguments(signature)

    def block_around(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncBlock:
        if args or kwargs or needs_arguments:
            _check_call(function, signature, args, kwargs)
        return spec.guard(AsyncBlock, function, args, kwargs)

    async def attempt_call(*args: P.args, **kwargs: P.kwargs) -> Executed[R] | Skipped:
        return await run_guarded_async(block_around(args, kwargs), lambda: function(*args, **kwargs))

    @functools.wraps(function)
    async def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:
        block = block_around(args, kwargs)
        async with block as lease:
            if lease is not None:
                return refuse_unfinished(await function(*args, **kwargs))
        instead = on_skipped(block.skip)
        return await instead if inspect.isawaitable(instead) else instead

    return _dressed(guarded, attempt_call, signature)


def _check_call(
    function: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """:raises TypeError: a wrong call, before it takes the lock."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(function, "__qualname__", None) or repr(function)
        raise TypeError(f"{name}{signature}: {error}") from None


def _needs_arguments(signature: inspect.Signature) -> bool:
    try:
        signature.bind()
    except TypeError:
        return True
    return False


def _dressed(guarded: Any, attempt_call: Any, signature: inspect.Signature) -> Any:
    guarded.__signature__ = signature
    guarded.attempt = functools.wraps(guarded)(attempt_call)
    return guarded


def _skip_handler(on_skip: Any) -> Callable[[Skipped], Any]:
    """What to do with a skip: return a value, call a function, or raise."""
    if isinstance(on_skip, type) and issubclass(on_skip, BaseException):

        def raise_new(skipped: Skipped) -> Any:
            raise on_skip(f"lock {skipped.lock_name!r}: skipped ({skipped.reason})")

        return raise_new
    if isinstance(on_skip, BaseException):

        def raise_it(skipped: Skipped) -> Any:
            raise on_skip.with_traceback(None)  # one object for all calls: do not pile up their tracebacks

        return raise_it
    if callable(on_skip):
        return cast(Callable[[Skipped], Any], on_skip)
    return lambda skipped: on_skip


_TASK_ATTRIBUTES = {"apply_async": "Celery", "call_local": "Huey", "send_with_options": "Dramatiq"}


def _check_function(function: Any) -> None:
    for attribute, library in _TASK_ATTRIBUTES.items():
        if hasattr(function, attribute):
            raise TypeError(
                f"{function!r} is a {library} task, not a function: put @scheduler_lock directly above 'def', and the "
                f"{library} decorator above it"
            )
    if isinstance(function, type) or not callable(function):
        raise TypeError(f"@scheduler_lock guards functions and methods, not {function!r}: put it directly above 'def'")
    if not inspect.iscoroutinefunction(function):
        refuse_unfinished_function(function)


def _mark(function: Any, spec: LockSpec) -> None:
    with suppress(AttributeError):  # builtins and bound methods take no attributes; the wrapper has the mark
        function.__shedlock__ = spec
