"""The checker's rules for each store, if the store itself works correctly."""

from __future__ import annotations

from dataclasses import replace

from shedlock_py.providers.redis.quorum.broadcast import GRACE_SECONDS
from shedlock_py.providers.redis.quorum.quorum_programs import VOTE
from tests.faults.checker import Rules
from tests.support.stores import Store

LATE = 2.0
"""Seconds until a server, however busy the machine, has carried out the request of a process that gave up or died.

This time is allowed only after a failure. Too long is safe: it only hides moments in which a name was free."""
GRACE = 0.5
"""Seconds until a driver that has given up has closed its connection. Then it is known whether it was served."""


def rules_of(store: Store, *, late: float = LATE, off: frozenset[str] = frozenset()) -> Rules:
    """``late``: how long after an operation failed, or its process died, its request may still reach the store."""
    rules = Rules(late=late, grace=GRACE, off=off, kept=store.kept_longer)
    if store.name == "quorum":
        return replace(rules, vote=VOTE.total_seconds(), prompt=GRACE_SECONDS)
    return rules
