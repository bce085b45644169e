"""Locks in Redis, Valkey and what speaks like them: one server, or a majority of several."""

from shedlock_py.providers.redis.provider import AsyncRedisLockProvider, RedisLockProvider
from shedlock_py.providers.redis.quorum_provider import AsyncRedisQuorumLockProvider, RedisQuorumLockProvider

__all__ = ["AsyncRedisLockProvider", "AsyncRedisQuorumLockProvider", "RedisLockProvider", "RedisQuorumLockProvider"]
