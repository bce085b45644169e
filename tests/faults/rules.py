"""What the checker may ask of each store when nothing is wrong with the store itself."""

from __future__ import annotations

from dataclasses import replace

from tests.faults.checker import Rules
from tests.faults.stores import Store

ROUND_SECONDS = 1.5
"""How long a quorum's attempt may have votes under way after it has ended."""


def rules_of(store: Store, *, late: float = 0.5, off: frozenset[str] = frozenset()) -> Rules:
    """``late``: how long after an operation failed, or its process died, its request may still reach the store."""
    rules = Rules(late=late, off=off)
    if store.name == "quorum":
        return replace(rules, attempts_block=True, late=max(late, ROUND_SECONDS))
    return rules
