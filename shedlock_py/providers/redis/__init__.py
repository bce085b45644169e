"""Locks in Redis, Valkey and compatible servers: one server, or a majority of several."""

import redis

from shedlock_py.runtime.versions import require

require("redis", redis.__version__)

from shedlock_py.providers.redis.provider import AsyncRedisLockProvider, RedisLockProvider
from shedlock_py.providers.redis.quorum.provider import AsyncRedisQuorumLockProvider, RedisQuorumLockProvider

__all__ = ["AsyncRedisLockProvider", "AsyncRedisQuorumLockProvider", "RedisLockProvider", "RedisQuorumLockProvider"]
