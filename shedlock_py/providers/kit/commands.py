"""The facts about a command that the kit needs."""

from __future__ import annotations


class Command:
    """The facts about a command. It may be any object: where it lacks an attribute, the value of this class counts."""

    __slots__ = ()

    can_grant: bool = True
    """The command can grant a lock. If its outcome is unknown, an acquire is undone."""
    is_history: bool = False
    """The command writes run history and nothing else. Its reply may take a second."""
    is_urgent: bool = False
    """The command extends, releases or undoes what was granted. It may use a reserved connection of a pool."""
