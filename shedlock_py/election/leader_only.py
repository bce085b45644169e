"""``@leader_only``: a function that runs on the leader only."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast, overload

from shedlock_py.block import decide_skip, not_leader
from shedlock_py.election.base import Elector
from shedlock_py.errors import ConfigurationError

if TYPE_CHECKING:
    from shedlock_py.election.async_elector import AsyncLeaderElector
    from shedlock_py.election.elector import LeaderElector

P = ParamSpec("P")
R = TypeVar("R")


class _LeaderOnly(Protocol):
    """What ``@leader_only(elector)`` makes of a function: one that may return None."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


def leader_only(elector: LeaderElector | AsyncLeaderElector) -> _LeaderOnly:
    """Run the function on the leader only: on other nodes a call returns None at once, without a request to the store.

    ::

        @leader_only(elector)
        def tidy_up(): ...

    For ``def`` and ``async def``. A call checks once, when it begins, whether this node leads. A long task should call
    ``elector.is_leader()`` again, or pass ``elector.term`` to what it writes.
    """
    if not isinstance(elector, Elector):
        raise ConfigurationError("@leader_only needs an elector: @leader_only(elector)")

    gates = [not_leader(elector.is_leader)]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def guarded_async(*args: Any, **kwargs: Any) -> Any:
                return await function(*args, **kwargs) if decide_skip(elector.name, gates) is None else None

            return guarded_async

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if decide_skip(elector.name, gates) is None else None

        return guarded

    return cast(_LeaderOnly, decorate)
