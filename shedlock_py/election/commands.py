"""What an election program yields, and what the user requests of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Intent = Literal["stop", "resign", "take_over"]
"""What the user has requested of a node."""


@dataclass(frozen=True, slots=True)
class Do:
    """A command: call an operation of the provider. The reply is its result, or PENDING after ``seconds``."""

    operation: str
    args: tuple[Any, ...]
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """A command: wait until that moment, until the user requests something, or until a callback returns."""

    until: float


class Pending:
    """The store has not replied yet."""


PENDING = Pending()
Command = Do | Wait
