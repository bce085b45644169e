"""A small copy of the algorithm on Redis, and variants of it with one fault each, such as other libraries have shipped.
Also variants of the real quorum, and of the real provider for etcd.

The checker must find each variant, and nothing in the sound copy; see controls.py.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import redis

from shedlock_py import Lease, LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.guard.heartbeat_plan import HeartbeatPlan
from shedlock_py.model.durations import Duration, in_milliseconds, parse_duration
from shedlock_py.model.lease import Claim
from shedlock_py.providers.cas import CasReply, Read, Write
from shedlock_py.providers.etcd.etcd_clients import EtcdClient
from shedlock_py.providers.etcd.etcd_provider import EtcdPrograms
from shedlock_py.providers.etcd.urls import Place
from shedlock_py.providers.etcd.wire import Command
from shedlock_py.providers.kit import ProgramProvider
from shedlock_py.providers.redis import RedisQuorumLockProvider
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.faults.history import monotonic
from tests.support.stores import open_provider

_NOW = "local time = redis.call('TIME') local now = time[1] * 1000000 + time[2] "
_FORMAT = "local function text(number) return string.format('%.0f', number) end "
_ACQUIRE = f"""{_NOW} {_FORMAT}
local record = redis.call('HMGET', KEYS[1], 'until', 'token')
if tonumber(record[1] or 0) > now then return 0 end
local token = math.max(tonumber(record[2] or 0) + 1, now)
redis.call('HSET', KEYS[1], 'until', text(now + ARGV[2] * 1000), 'claim', ARGV[1], 'token', text(token))
return token
"""
_HOLD = f"""{_NOW} {_FORMAT}
local record = redis.call('HMGET', KEYS[1], 'until', 'claim')
if record[2] ~= ARGV[1] or tonumber(record[1] or 0) <= now then return 0 end
redis.call('HSET', KEYS[1], 'until', text(now + ARGV[2] * 1000))
return 1
"""
_COUNTER = "tonumber(record[2] or 0) + 1"
_DELETE = "return redis.call('HGET', KEYS[1], 'claim') == ARGV[1] and redis.call('DEL', KEYS[1]) or 0"
ROUND_TRIP = 0.002
"""Seconds between two commands of one client, on a network that is not a loopback."""


class Sound(LockProvider):
    def __init__(self, provider_class: str, is_async: bool, where: str, options: dict[str, Any]) -> None:
        self._client = redis.Redis.from_url(where, socket_timeout=2)
        self._prefix = f"{options['key_prefix']}-mutant"

    def acquire(self, request: LockRequest) -> Lease | None:
        claim = Claim(request, monotonic)
        token = self.attempt(self._key(request.name), claim.claim_id, in_milliseconds(request.lock_at_most_for))
        return claim.granted(token) if token else None

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        extension = lease._begin_extension(lock_at_most_for)
        if self._hold(lease, extension.lock_for):
            return extension.granted()
        lease._lose()
        return None

    def release(self, lease: Lease) -> bool:
        was_ours = self._hold(lease, lease._begin_release())
        if was_ours:
            lease._end()
        return was_ours

    def attempt(self, key: str, claim_id: str, milliseconds: int) -> int:
        return self.script(_ACQUIRE, key, claim_id, milliseconds)

    def _hold(self, lease: Lease, lock_for: timedelta) -> bool:
        return bool(self.script(_HOLD, self._key(lease.name), lease.claim_id, in_milliseconds(lock_for)))

    def script(self, script: str, key: str, *values: str | int) -> int:
        return int(self._client.eval(script, 1, key, *values))

    def _now(self) -> int:
        seconds, microseconds = self._client.time()
        return int(seconds) * 1_000_000 + int(microseconds)

    def _key(self, name: str) -> str:
        return f"{self._prefix}:{name}"


class ReadThenWrite(Sound):
    """Checks that the lock is free, and then takes it: two steps."""

    def attempt(self, key: str, claim_id: str, milliseconds: int) -> int:
        until, last = self._client.hmget(key, "until", "token")
        now = self._now()
        if int(until or 0) > now:
            return 0
        time.sleep(ROUND_TRIP)
        token = max(int(last or 0) + 1, now)
        self._client.hset(key, mapping={"until": now + milliseconds * 1000, "claim": claim_id, "token": token})
        return token


class ReleasesAnybodys(Sound):
    """Releases by the lock name alone: a late release frees the lease of a successor."""

    def release(self, lease: Lease) -> bool:
        lease._begin_release()
        self._client.hset(self._key(lease.name), "until", 0)
        lease._end()
        return True


class ClientClock(Sound):
    """Compares and stores the time of the client's wall clock, which is off by ``offset`` seconds."""

    def __init__(self, *, offset: float = 0.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._offset = offset

    def script(self, script: str, key: str, *values: str | int) -> int:
        now = int((time.time() + self._offset) * 1_000_000)
        return super().script(script.replace(_NOW, f"local now = {now} "), key, *values)


class RestartingCounter(Sound):
    """Deletes the record with the release, and with it the counter of the fencing tokens."""

    def attempt(self, key: str, claim_id: str, milliseconds: int) -> int:
        script = _ACQUIRE.replace(f"math.max({_COUNTER}, now)", _COUNTER)
        return self.script(script, key, claim_id, milliseconds)

    def release(self, lease: Lease) -> bool:
        lease._begin_release()
        lease._end()
        return bool(self.script(_DELETE, self._key(lease.name), lease.claim_id))


class DeadlineFromReply(Sound):
    """Counts the lease from the reply, not from before the request was sent."""

    def acquire(self, request: LockRequest) -> Lease | None:
        claim = Claim(request, monotonic)
        token = self.attempt(self._key(request.name), claim.claim_id, in_milliseconds(request.lock_at_most_for))
        claim.restart_clock()
        return claim.granted(token) if token else None


class NoMinimumHold(Sound):
    """A release frees the lock at once."""

    def release(self, lease: Lease) -> bool:
        lease._begin_release()
        was_ours = self._hold(lease, timedelta(0))
        lease._end()
        return was_ours


class HoldsTooLong(Sound):
    """Requests three times the lease."""

    def attempt(self, key: str, claim_id: str, milliseconds: int) -> int:
        return super().attempt(key, claim_id, 3 * milliseconds)


class NeverNarrows(Sound):
    """Trusts the lease for the old duration after a shorter extension."""

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        shorter = parse_duration(lock_at_most_for)
        extension = lease._begin_extension(max(shorter, lease.lock_at_most_for))
        if self._hold(lease, shorter):
            return extension.granted()
        lease._lose()
        return None


class Flaky(Sound):
    """Fails every third extension. This is no fault of the algorithm: a heartbeat must survive it."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._count = itertools.count()

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        if next(self._count) % 3 == 1:
            raise ProviderUnreachable("mutant", operation="extend", lock_name=lease.name) from OSError("mutant")
        return super().extend(lease, lock_at_most_for)


class StoppedKeepAlive(Flaky):
    """Ends the heartbeat of the whole process after an exception."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)

        def die(plan: HeartbeatPlan, lock_at_most_for: timedelta, now: float) -> None:
            plan.failures += 1
            plan.due = float("inf")

        HeartbeatPlan.failed = die  # type: ignore[method-assign, assignment]  # the mutation


class SoundQuorum(RedisQuorumLockProvider):
    def __init__(self, provider_class: str, is_async: bool, where: list[str], options: dict[str, Any]) -> None:
        super().__init__(where, **options)


class QuorumHoldsTooLong(SoundQuorum):
    """Requests three times the lease from the servers."""

    def acquire(self, request: LockRequest) -> Lease | None:
        asked_at = monotonic()
        lease = super().acquire(replace(request, lock_at_most_for=3 * request.lock_at_most_for))
        return lease and Lease(request, lease.claim_id, lease.fencing_token, monotonic, asked_at)


# Variants of a store's own provider


class SoundEtcd(ProgramProvider):
    make_client = EtcdClient

    def __init__(self, provider_class: str, is_async: bool, where: str, options: dict[str, Any]) -> None:
        super().__init__(EtcdPrograms(timeout="5s", **options), self.make_client(Place.from_url(where)))


class _Unconditional(EtcdClient):
    def execute(self, command: Command, timeout: float | None) -> CasReply:
        if isinstance(command, Write):
            present = super().execute(Read(command.record.name), timeout).value
            command = replace(command, if_version=present and present.version)
        return super().execute(command, timeout)


class UnconditionalEtcd(SoundEtcd):
    """Writes over any version of the record."""

    make_client = _Unconditional


def open_forgetful(**arguments: Any) -> Any:
    """Open a provider that ignores fire times, as a plain lock does."""
    provider: Any = open_provider(**arguments)
    acquire = provider.acquire
    provider.acquire = lambda request: acquire(
        LockRequest(request.name, request.lock_at_most_for, request.lock_at_least_for, request.holder)
    )
    return provider


def open_tolerant(**arguments: Any) -> Any:
    return open_provider(**{**arguments, "options": {**arguments["options"], "fire_time_tolerance": "3000d"}})


class Leaking(SqlAlchemyLockProvider):
    """Opens a file with each grant."""

    def __init__(self, provider_class: str, is_async: bool, where: str, options: dict[str, Any]) -> None:
        super().__init__(where, **options)

    def acquire(self, request: LockRequest) -> Lease | None:
        lease = super().acquire(request)
        if lease is not None:
            os.open(os.devnull, os.O_RDONLY)
        return lease
