"""Mutants, and how they replace the real code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Change = Callable[..., Any]
_MISSING = object()


@dataclass(frozen=True)
class Mutant:
    """A method or constant that replaces a real method or constant.

    :ivar part: the changed part of the library.
    :ivar wrong: the fault, in one line.
    :ivar kind: the kind of schedule that must find it.
    :ivar change: the new constant, or a function that gets the original method as its first argument.
    """

    name: str
    part: str
    wrong: str
    kind: str
    owner: Any
    attribute: str
    change: Any
    store: str = "memory"
    """The store that supplies the programs."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the real code while the block runs."""
        before = vars(self.owner).get(self.attribute, _MISSING)
        setattr(self.owner, self.attribute, self._replacement())
        try:
            yield
        finally:
            if before is _MISSING:
                delattr(self.owner, self.attribute)
            else:
                setattr(self.owner, self.attribute, before)

    def _replacement(self) -> Any:
        original, change = getattr(self.owner, self.attribute), self.change
        if not callable(change):
            return change

        def changed(*args: Any, **keywords: Any) -> Any:
            return change(original, *args, **keywords)

        return changed


ALL: dict[str, Mutant] = {}
"""Mutants by name."""


def add(mutant: Mutant) -> None:
    if mutant.name in ALL:
        raise ValueError(f"two mutants are named {mutant.name!r}")
    ALL[mutant.name] = mutant


def mutate(owner: Any, attribute: str, *, kind: str, part: str, store: str = "memory") -> Callable[[Change], Change]:
    """Register a function as the replacement of ``owner.attribute``. Its name and its docstring describe the fault."""

    def register(change: Change) -> Change:
        wrong = " ".join((change.__doc__ or "").split())
        add(Mutant(change.__name__.replace("_", " "), part, wrong, kind, owner, attribute, change, store))
        return change

    return register
