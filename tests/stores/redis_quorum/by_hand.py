"""The quorum's programs carried out step by step, so that something can happen between the steps."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from shedlock_py import Lease, LockProvider, LockRequest, ProviderUnreachable
from shedlock_py._program import run
from shedlock_py.durations import Duration
from shedlock_py.providers.kit import Undo
from shedlock_py.providers.redis import RedisQuorumLockProvider
from shedlock_py.providers.redis.quorum.broadcast import OnEach
from tests.stores.redis_quorum.quorums import NAME


class ByHand:
    """``provider``'s own algorithm and servers."""

    def __init__(self, provider: LockProvider) -> None:
        assert isinstance(provider, RedisQuorumLockProvider)
        self.programs = provider.programs
        self._client = provider._client

    def on(self, servers: Iterable[int], command: Any) -> list[Any]:
        """The replies of these servers; the others are sent nothing."""
        assert isinstance(command, OnEach)
        only = frozenset(servers)
        replies: list[Any] = self._client.execute(replace(command, only=only, is_settled=None), None)
        return replies

    def undo(self, command: Any) -> None:
        """On the servers that can be reached."""
        assert isinstance(command, Undo)
        with suppress(ProviderUnreachable):
            run(command.program, lambda on_each: self._client.execute(on_each, None))

    def votes(self, request: LockRequest, servers: Iterable[int]) -> tuple[Any, list[Any]]:
        """The program of an acquire that has its votes now."""
        program = self.programs.acquire(request)
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
        return next(self.programs.extend(lease, lock_for))
