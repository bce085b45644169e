"""Locks in Redis, Valkey and compatible servers: one server, or a majority of several."""

import redis

from shedlock_py.runtime.versions import require

require("redis", redis.__version__)

from shedlock_py.providers.redis.quorum.quorum_provider import AsyncRedisQuorumLockProvider, RedisQuorumLockProvider
from shedlock_py.providers.redis.redis_provider import AsyncRedisLockProvider, RedisLockProvider

__all__ = ["AsyncRedisLockProvider", "AsyncRedisQuorumLockProvider", "RedisLockProvider", "RedisQuorumLockProvider"]
