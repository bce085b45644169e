"""The quorum's programs carried out step by step, so that something can happen between the steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from shedlock_py import Lease, LockProvider, LockRequest
from shedlock_py.durations import Duration
from shedlock_py.providers.redis import RedisQuorumLockProvider
from shedlock_py.providers.redis.rounds import OnEach
from tests.redis_quorum.quorums import NAME


class ByHand:
    """``provider``'s own algorithm and servers."""

    def __init__(self, provider: LockProvider) -> None:
        assert isinstance(provider, RedisQuorumLockProvider)
        self.algorithm = provider._algorithm
        self._execute = provider._execute

    def on(self, servers: Iterable[int], command: Any) -> list[Any]:
        """The replies of these servers; the others are not asked."""
        assert isinstance(command, OnEach)
        only = frozenset(servers)
        replies: list[Any] = self._execute(replace(command, only=only, is_settled=None))
        return replies

    def votes(self, request: LockRequest, servers: Iterable[int]) -> tuple[Any, list[Any]]:
        """The program of an acquire that has its votes now."""
        program = self.algorithm.acquire(request)
        return program, self.on(servers, next(program))

    def late_confirmation(self, servers: Iterable[int], others: Iterable[int]) -> tuple[Lease, Any]:
        """A lease on ``servers``; and the confirmation that the ``others`` have yet to get."""
        program, replies = self.votes(LockRequest(NAME, "1m"), [*servers, *others])
        confirmation = program.send(replies)
        try:
            program.send(self.on(servers, confirmation))
        except StopIteration as done:
            lease: Lease = done.value
            return lease, confirmation
        raise AssertionError("not granted")

    def extension(self, lease: Lease, lock_for: Duration) -> Any:
        """The command of an extension that nobody has been sent yet."""
        return next(self.algorithm.extend(lease, lock_for))
