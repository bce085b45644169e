"""What the checker may ask of each store when nothing is wrong with the store itself."""

from __future__ import annotations

from dataclasses import replace

from shedlock_py.providers.redis.quorum.broadcast import GRACE_SECONDS
from shedlock_py.providers.redis.quorum.quorum_programs import VOTE
from tests.faults.checker import Rules
from tests.support.stores import Store

LATE = 2.0
"""Seconds until a server, however busy the machine, has done what a process sent to it that gave up or died.

It is only allowed for where something failed, and errs on that side: what is lost is a moment in which a name is not
said to be free."""
GRACE = 0.5
"""Seconds until a driver that has given up has closed its connection, whereupon it is seen whether it was served."""


def rules_of(store: Store, *, late: float = LATE, off: frozenset[str] = frozenset()) -> Rules:
    """``late``: how long after an operation failed, or its process died, its request may still reach the store."""
    rules = Rules(late=late, grace=GRACE, off=off, kept=store.kept_longer)
    if store.name == "quorum":
        return replace(rules, vote=VOTE.total_seconds(), prompt=GRACE_SECONDS)
    return rules
