"""Checks a server's INFO for ``shedlock doctor``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shedlock_py.errors import ProviderError
from shedlock_py.providers.kit import Check, StorePrograms, not_known
from shedlock_py.providers.redis.commands import Call, Calls, Command, Setting, script
from shedlock_py.runtime.program import Program

_Info = Mapping[str, str]

_BY_HAND = "add +info to the ACL of this user, or look by hand: CONFIG GET maxmemory-policy appendonly"
_NO_EVICTION = "set maxmemory-policy noeviction; if this server is the cache, use another one for the locks"
_KEEP = (
    "set appendonly yes, with appendfsync everysec at least; or do not restart the server before the longest lease ends"
)
_FAILOVER = (
    "make jobs safe to run twice, or check fencing tokens where they write; or use a store that keeps leases across a "
    "failover: a quorum, or PostgreSQL with a synchronous standby"
)
_PRIMARY = "the URL must lead to the primary"


def server_checks(programs: StorePrograms, calls: Calls, *, is_cluster: bool) -> Program[Command, Any, list[Check]]:
    """Check one server, or one node of a cluster."""
    try:
        reply: bytes = yield Call(script("info"), (calls.key("info"),))
    except ProviderError as error:
        return [not_known(programs, "eviction, persistence, replication", error, _BY_HAND)]
    lines = reply.decode(errors="replace").splitlines()
    info = {name: value for name, is_field, value in (line.partition(":") for line in lines) if is_field}
    if info.get("role") == "slave":
        return [Check("replication", "failed", "this server is a replica", _PRIMARY)]
    persistence = yield from _persistence(programs, info)
    found = [_eviction(info), persistence, _replication(info)]
    return [replace(check, message=f"one node: {check.message}") for check in found] if is_cluster else found


def _eviction(info: _Info) -> Check:
    """Check the eviction policy. Lock records have an expiry, so all policies but one may evict a held lock."""
    policy = info.get("maxmemory_policy", "")
    if policy == "noeviction":
        return Check("eviction", "ok", "noeviction: no lock is evicted")
    if info.get("maxmemory") == "0":
        return Check("eviction", "ok", "no maxmemory: no lock is evicted")
    if not policy:
        return Check("eviction", "ok", "not known: the server does not say")
    return Check("eviction", "warning", f"{policy} may evict a lock that is held, and then it is free", _NO_EVICTION)


def _persistence(programs: StorePrograms, info: _Info) -> Program[Command, Any, Check]:
    check, has_file = "persistence", info.get("aof_enabled") == "1"
    try:
        value = yield Setting("appendfsync" if has_file else "save")
    except ProviderError as error:  # managed services forbid CONFIG
        if not has_file:
            return Check(check, "warning", "no append-only file: a crash may lose locks that are held", _KEEP)
        known = not_known(programs, check, error)
        return Check(check, "ok", f"append-only file; appendfsync {known.message}")
    if has_file and value == "no":
        return Check(check, "warning", "appendfsync no: a crash of the machine loses the last half minute", _KEEP)
    if has_file:
        return Check(check, "ok", f"append-only file, appendfsync {value}")
    if value:
        message = "snapshots only: a crash loses the locks since the last snapshot, so they are free"
        return Check(check, "warning", message, _KEEP)
    return Check(check, "warning", "none: a restart loses all locks, so they are free", _KEEP)


def _replication(info: _Info) -> Check:
    count, check = info.get("connected_slaves", "0"), "replication"
    if count == "0" or not count.isdecimal():
        return Check(check, "ok", "no replica is connected")
    what = f"{count} replica{'' if count == '1' else 's'}"
    return Check(check, "warning", f"{what}, asynchronous: a failover may lose the latest locks", _FAILOVER)
