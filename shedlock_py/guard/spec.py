"""The lock of a decorated function: its options, and its name, which may be filled from each call."""

from __future__ import annotations

import functools
import inspect
import re
import string
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import MethodType, ModuleType
from typing import Any
from weakref import WeakValueDictionary

from shedlock_py.errors import ConfigurationError
from shedlock_py.events import logger
from shedlock_py.model.durations import Duration
from shedlock_py.model.request import LockRequest, checked_lock_name, refuse_url
from shedlock_py.model.text import quoted
from shedlock_py.settings.defaults import keep_alive_in_use, lock_request
from shedlock_py.settings.options import LockOptions


class LockSpec:
    """The lock of a function. ``@scheduler_lock`` leaves it on the function and on its wrapper, as ``__shedlock__``.

    Both have the same object, because a scheduler may have registered either. An executor that takes the lock for such
    a function makes ``(spec, lock name)`` the alias of its lease (``worker._add_decorator_alias`` and
    ``context.add_alias``). When the wrapper is called inside, it finds that lease by the alias, and acquires no other
    lease.

    ``name`` may be a template ("sync-{tenant}"), filled from the arguments of each call.
    """

    def __init__(self, name: str, options: LockOptions) -> None:
        if not isinstance(name, str):
            raise ConfigurationError(f"lock name must be a string, not {quoted(name)}: @scheduler_lock('name', …)")
        refuse_url(name)
        self.template = name
        self.options = options
        self._placeholders = _placeholders(name)
        self.fields = {_parameter_of(field) for field in self._placeholders}
        self.name = None if self.fields else checked_lock_name(name.format())
        self.filled_template = name if self.fields else None
        """The template, if it is filled from each call."""
        self.functions: dict[str, None] = {}
        """The functions that it guards, in their order, as "package.module.function"."""
        self.is_async = False
        self._has_warned = False

    def warn_of_executor(self, lock_name: str) -> None:
        """Warn, once, that the function was skipped although its own scheduler holds the lock for it."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "lock %r: its function was skipped, although the executor that called it holds the lock for it. A "
                "decorator above @scheduler_lock calls it in another thread or context, so the job does not run. Put "
                "@scheduler_lock above that decorator, or start the thread in a copy of the context: "
                "contextvars.copy_context().run",
                lock_name,
            )

    def check_fields(self, signature: inspect.Signature) -> None:
        """Check the fields of the template.

        :raises ConfigurationError: a field is not a parameter.
        """
        unknown = self.fields - set(signature.parameters)
        if unknown:
            raise ConfigurationError(
                f"lock name {self.template!r} uses {', '.join(f'{{{field}}}' for field in sorted(unknown))}, which is "
                f"no parameter of the function; its parameters are: {', '.join(signature.parameters) or 'none'}"
            )

    def request(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        lock_at_most_for: Duration | None,
        lock_at_least_for: Duration | None,
    ) -> LockRequest:
        """Return the request for one call of ``function``. The durations given here replace missing options."""
        at_most, at_least = self.options.lock_at_most_for, self.options.lock_at_least_for
        request = lock_request(
            self.lock_name(function, args, kwargs),
            lock_at_most_for if at_most is None else at_most,
            lock_at_least_for if at_least is None else at_least,
            template=self.filled_template,
        )
        return self.options.for_a_run(request, self.fire_time(function, args, kwargs))

    def fire_time(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Return the fire time of one call of ``function``, if the options have a function for it."""
        _, args, kwargs = _as_written(function, args, kwargs)
        return self.options.fire_time_of(args, kwargs)

    def lock_name(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the lock name for one call of ``function``: the template, filled from its arguments."""
        if self.name is not None:
            return self.name
        original, args, kwargs = _as_written(function, args, kwargs)
        signature = inspect.signature(original)
        self.check_fields(signature)
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        arguments = call.arguments
        try:
            for field, placeholder in self._placeholders.items():
                value = _FORMATTER.get_field(field, (), arguments)[0]
                if _has_set(value):
                    raise ConfigurationError(
                        f"lock name {self.template!r}: {{{field}}} contains a set. Its order differs in each process, "
                        f"so each process would use another lock. Pass sorted(…)"
                    )
                has_address = isinstance(value, ModuleType) or re.search(_ADDRESS, placeholder.format_map(arguments))
                if has_address and not isinstance(value, str):
                    raise ConfigurationError(
                        f"lock name {self.template!r}: the text of {{{field}}} (a {type(value).__qualname__}) differs "
                        f"in each process, so each process would use another lock. Use an attribute that identifies "
                        f"it, as in {{{field}.id}}, or give its class a __str__"
                    )
            return self.template.format_map(arguments)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(f"lock name {self.template!r} cannot be filled for this call: {error}") from error


def _as_written(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the function behind partials and bound methods, with all of its arguments: a template may use any
    of them.
    """
    while isinstance(function, functools.partial | MethodType):
        if isinstance(function, MethodType):
            function, args = function.__func__, (function.__self__, *args)
        else:
            function, args, kwargs = function.func, (*function.args, *args), {**function.keywords, **kwargs}
    if isinstance(getattr(type(function).__call__, "__shedlock__", None), LockSpec):  # a callable object
        function, args = type(function).__call__, (function, *args)
    return function, args, kwargs


declared: WeakValueDictionary[int, LockSpec] = WeakValueDictionary()  # a decorated closure may be garbage-collected


def declared_specs() -> list[LockSpec]:
    """Return the locks of this process's decorated functions."""
    # valuerefs() is one atomic step: another thread may decorate a function meanwhile.
    specs = [reference() for reference in declared.valuerefs()]
    return [spec for spec in specs if spec is not None]


def declared_lock_names() -> set[str]:
    """Return the lock names of this process's decorated functions, without templates."""
    return {spec.name for spec in declared_specs() if spec.name is not None}


def declared_lock_at_most_for(name: str) -> timedelta | None:
    """Return the ``lock_at_most_for`` of the function that this process has decorated with that lock name, if any."""
    for spec in declared_specs():
        if spec.name == name:
            options = spec.options
            with suppress(ConfigurationError):  # the function cannot run either
                return lock_request(name, options.lock_at_most_for, options.lock_at_least_for).lock_at_most_for
    return None


def is_declared_kept_alive(name: str) -> bool:
    """Return whether this process has decorated a function with that lock name, and heartbeats extend its leases."""
    return any(
        spec.name == name and keep_alive_in_use(spec.options.keep_alive) is not False for spec in declared_specs()
    )


_FORMATTER = string.Formatter()
_ADDRESS = " at 0x[0-9a-fA-F]{6,}"
"""Part of the default text of an object, such as "<app.Job object at 0x7f3a5c0d1e50>"."""


def _has_set(value: object) -> bool:
    """Return whether ``value`` is a set, or a list, tuple or dict with a set in it. Subclasses may define their
    text.
    """
    kind = type(value)
    if kind in (list, tuple, dict):
        values: Any = value
        return any(map(_has_set, [*values, *values.values()] if kind is dict else values))
    return kind in (set, frozenset)


def _placeholders(template: str) -> dict[str, str]:
    """Return a template's fields and placeholders: ``{"user.id": "{user.id!r}"}`` for "sync-{user.id!r}"."""
    try:
        found = {
            field: f"{{{field}{f'!{conversion}' if conversion else ''}{f':{spec}' if spec else ''}}}"
            for _, field, spec, conversion in _FORMATTER.parse(template)
            if field is not None
        }
    except ValueError as error:
        raise ConfigurationError(f"lock name {template!r} is not a valid template: {error}") from error
    if not all(_parameter_of(field).isidentifier() for field in found):
        raise ConfigurationError(
            f"lock name {template!r}: name the parameter inside the braces, as in 'sync-{{tenant}}'"
        )
    return found


def _parameter_of(field: str) -> str:  # "user" for "user.id"
    return field.split(".")[0].split("[")[0]
