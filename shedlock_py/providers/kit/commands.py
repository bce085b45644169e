"""The facts about a command that the kit needs."""

from __future__ import annotations


class Command:
    """A command that grants no lock. Its class sets the facts that are true.

    A command may be any object. The kit assumes that an object without ``can_grant`` can grant a lock.
    """

    __slots__ = ()

    can_grant: bool = False
    """The command can grant a lock. If its outcome is unknown, an acquire is undone."""
    is_history: bool = False
    """The command writes run history and nothing else. Its reply may take a second."""
    is_urgent: bool = False
    """The command extends, releases or undoes what was granted. It may use a reserved connection of a pool."""
