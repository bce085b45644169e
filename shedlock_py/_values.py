"""What frozen dataclasses have in common, once: dataclass() would compile it anew for each, at each import."""

from __future__ import annotations

from dataclasses import fields
from reprlib import recursive_repr
from typing import Any


class Value:
    """Base of a ``@dataclass(frozen=True, eq=False, repr=False)``: compared, hashed and shown as any other."""

    def __eq__(self, other: object) -> bool:
        return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(_compared(self))

    @recursive_repr()
    def __repr__(self) -> str:
        me: Any = self  # a dataclass, as type checkers cannot know
        values = (f"{field.name}={getattr(me, field.name)!r}" for field in fields(me) if field.repr)
        return f"{type(self).__qualname__}({', '.join(values)})"


def _compared(value: Any) -> tuple[object, ...]:
    return tuple(getattr(value, field.name) for field in fields(value) if field.compare)
