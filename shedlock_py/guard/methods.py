"""Bind ``attempt`` of guarded methods like the method.

Python's bound methods forward attributes to the function, which does not know the instance: without this module
``obj.method.attempt`` would be unbound. Each guarded function of a class is replaced by a descriptor that makes bound
methods with a bound ``attempt``. The function itself is unchanged, and ``Class.method`` is that function.
"""

from __future__ import annotations

import sys
from types import FrameType, FunctionType, MethodType
from typing import Any

_PLACEHOLDER = "__shedlock_methods__"


def bind_in_class(function: Any, guarded: Any) -> None:
    """If ``function`` is being defined in a class body, let the class bind ``guarded.attempt``.

    The class does not exist yet, and a decorator such as ``@classmethod`` may still wrap the function. So this leaves a
    placeholder in the class body. Python calls the placeholder's ``__set_name__`` when it creates the class.
    """
    scope, _, _ = getattr(function, "__qualname__", "").rpartition(".")
    frame: FrameType | None = sys._getframe(1) if scope and not scope.endswith("<locals>") else None
    while frame is not None:
        if frame.f_code.co_name == scope.rpartition(".")[2] and frame.f_locals.get("__qualname__") == scope:
            body = frame.f_locals  # in a class body: the namespace itself
            body.setdefault(_PLACEHOLDER, _Placeholder()).attempts.append(guarded.attempt)
            return
        frame = frame.f_back


class _Placeholder:
    """Stands in a class body until the class is created, and then replaces its guarded functions."""

    def __init__(self) -> None:
        self.attempts: list[Any] = []

    def __set_name__(self, owner: type, name: str) -> None:
        for key, value in list(vars(owner).items()):
            function = value.__func__ if isinstance(value, classmethod) else value
            if isinstance(function, FunctionType) and getattr(function, "attempt", None) in self.attempts:
                type.__setattr__(owner, key, GuardedMethod(value))
        type.__delattr__(owner, name)


class GuardedMethod:
    """The descriptor of a guarded function or class method. ``isinstance`` sees the replaced object."""

    def __init__(self, replaced: Any) -> None:
        self._replaced = replaced

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        found = self._replaced.__get__(instance, owner)
        return BoundMethod(found.__func__, found.__self__) if isinstance(found, MethodType) else found

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._replaced(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replaced, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return GuardedMethod, (self._replaced,)

    __class__ = property(lambda self: type(self._replaced))  # for isinstance()


class BoundMethod:
    """A bound method with an ``attempt`` that is bound to the same instance. ``isinstance`` sees a ``MethodType``."""

    def __init__(self, function: Any, instance: object) -> None:  # the arguments of weakref.WeakMethod
        self._method = MethodType(function, instance)
        self.__module__, self.__doc__ = function.__module__, function.__doc__

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._method(*args, **kwargs)

    @property
    def attempt(self) -> Any:
        return MethodType(self.__func__.attempt, self.__self__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def __eq__(self, other: object) -> bool:
        return self._method == other

    def __hash__(self) -> int:
        return hash(self._method)

    def __repr__(self) -> str:
        return repr(self._method)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return self._method.__reduce__()

    __class__ = property(lambda self: MethodType)  # for isinstance() and inspect
