"""Locks in a key-value bucket of NATS JetStream."""

from shedlock_py.providers.nats.nats_provider import AsyncNatsLockProvider, NatsLockProvider

__all__ = ["AsyncNatsLockProvider", "NatsLockProvider"]
