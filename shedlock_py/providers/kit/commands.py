"""Properties of a command that the kit reads."""

from __future__ import annotations


class GrantsNothing:
    """A command that grants no lock. A subclass may set the other two properties.

    A command may be any object. If an object has no ``can_grant``, the kit assumes that it can grant a lock.
    """

    __slots__ = ()

    can_grant: bool = False
    """A command that can grant a lock is of another class. If its outcome is unknown, an acquire is undone."""
    is_history: bool = False
    """The command only writes run history. Its reply may take a second."""
    is_urgent: bool = False
    """The command extends, releases or undoes a grant. It may use a reserved connection of a pool."""
