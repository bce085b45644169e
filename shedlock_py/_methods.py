"""``attempt`` of guarded methods, bound as the method is.

Python's bound methods forward attributes to the function, which does not know the instance: without this module
``obj.method.attempt`` would be unbound. Each guarded function of a class is replaced by a descriptor that makes bound
methods with a bound ``attempt``. The function itself is unchanged, and ``Class.method`` is that function.
"""

from __future__ import annotations

import sys
from types import FunctionType, MethodType
from typing import Any

_PLACEHOLDER = "__shedlock_methods__"


def bind_in_class(function: Any, guarded: Any) -> None:
    """If a class body is being executed that defines ``function``, let the class bind ``guarded.attempt``.

    The class does not exist yet, and a decorator such as ``@classmethod`` may still wrap the function. So this leaves a
    placeholder in the class body; Python calls its ``__set_name__`` when it creates the class.
    """
    scope, _, _ = getattr(function, "__qualname__", "").rpartition(".")
    if not scope or scope.endswith("<locals>"):
        return
    class_name = scope.rpartition(".")[2]
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == class_name and frame.f_locals.get("__qualname__") == scope:
            body = frame.f_locals  # of a class body: the namespace itself
            body.setdefault(_PLACEHOLDER, _Placeholder()).attempts.append(guarded.attempt)
            return
        frame = frame.f_back  # type: ignore[assignment]  # None at the end


class _Placeholder:
    """Stands in the body of a class until the class is created, and then replaces its guarded functions."""

    def __init__(self) -> None:
        self.attempts: list[Any] = []

    def __set_name__(self, owner: type, name: str) -> None:
        for key, value in list(vars(owner).items()):
            function = value.__func__ if isinstance(value, classmethod) else value
            if isinstance(function, FunctionType) and getattr(function, "attempt", None) in self.attempts:
                type.__setattr__(owner, key, GuardedMethod(value))
        type.__delattr__(owner, name)


class GuardedMethod:
    """The descriptor of a guarded function or class method. ``isinstance`` sees what it replaces."""

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
    """A bound method whose ``attempt`` is bound to the same instance. ``isinstance`` sees a ``MethodType``."""

    def __init__(self, function: Any, instance: object) -> None:
        self.__func__ = function
        self.__self__ = instance
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    @property
    def attempt(self) -> Any:
        return MethodType(self.__func__.attempt, self.__self__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__func__, name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MethodType):
            return NotImplemented
        return self.__self__ is other.__self__ and self.__func__ == other.__func__

    def __hash__(self) -> int:
        return hash(MethodType(self.__func__, self.__self__))

    def __repr__(self) -> str:
        return repr(MethodType(self.__func__, self.__self__))

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.__self__, self.__func__.__name__)

    __class__ = property(lambda self: MethodType)  # for isinstance() and inspect
