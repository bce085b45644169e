"""Checks the servers of a quorum for ``shedlock doctor``.

Persistence is not checked: a restarted server stays in quarantine for ``longest_lease`` even with persistence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from shedlock_py.providers.kit import Check
from shedlock_py.providers.redis.checks import Info, eviction, is_replica, replicas
from shedlock_py.providers.redis.quorum.majority import Majority, failures, is_refusal, results

_ANOTHER = "the quorum works while a majority replies: bring it back before another server is lost"
_BY_HAND = "add +info to the ACL of this user, or look by hand: CONFIG GET maxmemory-policy"
_BETTER_NONE = "better none: a server is kept out for longest_lease when its replica takes over, or it gets its first"


def quorum_checks(majority: Majority, replies: Sequence[Any]) -> list[Check]:
    """Check the replies.

    :param replies: the place and the INFO fields of each server, or its error.
    :raises ProviderUnreachable: no majority has replied.
    """
    size, known = len(replies), results(replies)
    errors = [reply for reply in replies if isinstance(reply, Exception)]
    silent = [error for error in errors if not is_refusal(error)]
    refusals = [error for error in errors if is_refusal(error)]
    if size - len(silent) < majority.count:
        majority.fail("checks", None, silent, failures(silent, size))
    found = [
        Check("servers", "warning", failures(silent, size), _ANOTHER)
        if silent
        else Check("servers", "ok", f"all {size} reply")
    ]
    if refusals:
        found.append(Check("eviction, replication", "ok", f"not known: {failures(refusals, size)}", _BY_HAND))
    if known:
        found.append(_of_all((place, eviction(info)) for place, info in known))
        found.append(_replication(known))
    return found


def _replication(known: Iterable[tuple[str, Info]]) -> Check:
    followers = [place for place, info in known if is_replica(info)]
    if followers:
        message = f"replicas, which take no writes: {', '.join(followers)}"
        return Check("replication", "warning", message, "the URL must name primaries")
    followed = [place for place, info in known if replicas(info)]
    if followed:
        return Check("replication", "warning", f"replicas at {', '.join(followed)}", _BETTER_NONE)
    return Check("replication", "ok", "no replicas")


def _of_all(checks: Iterable[tuple[str, Check]]) -> Check:
    """Return one check for all servers: the first warning and the places with a warning, or else the first check."""
    found = list(checks)
    warned = [(place, check) for place, check in found if check.status != "ok"]
    if not warned:
        return found[0][1]
    check = warned[0][1]
    places = ", ".join(place for place, _ in warned)
    return Check(check.check, check.status, f"{places}: {check.message}", check.hint)
