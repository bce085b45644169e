"""Run the quorum's programs step by step, so that a test can act between the steps."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from shedlock_py import Lease, LockRequest, ProviderUnreachable
from shedlock_py.model.durations import Duration
from shedlock_py.providers.kit import Undo, locking
from shedlock_py.providers.redis import RedisQuorumLockProvider
from shedlock_py.providers.redis.quorum.broadcast import OnEach


class ByHand:
    """A provider's programs; the test sends their commands."""

    def __init__(self, provider: RedisQuorumLockProvider) -> None:
        self.provider, self.programs = provider, provider.programs

    def on(self, servers: Iterable[int], command: Any) -> list[Any]:
        """Return these servers' replies. Other servers receive nothing."""
        assert isinstance(command, OnEach)

        def send() -> Generator[OnEach, list[Any], list[Any]]:
            return (yield replace(command, only=frozenset(servers), is_settled=None))

        return self.provider._drive(send())

    def undo(self, command: Any) -> None:
        """Undo on the servers that can be reached."""
        assert isinstance(command, Undo)
        with suppress(ProviderUnreachable):
            self.provider._drive(command.program)

    def votes(self, request: LockRequest, servers: Iterable[int]) -> tuple[Any, list[Any]]:
        """The program of an acquire that has its votes now."""
        program = locking.acquire(self.programs, request)
        return program, self.on(servers, next(program))

    def late_confirmation(self, name: str, servers: Iterable[int], others: Iterable[int]) -> tuple[Lease, Any]:
        """Return a lease on ``servers``, and the confirmation that the ``others`` have not received yet."""
        program, replies = self.votes(LockRequest(name, "1m"), [*servers, *others])
        confirmation = program.send(replies)
        try:
            program.send(self.on(servers, confirmation))
        except StopIteration as done:
            lease: Lease = done.value
            return lease, confirmation
        raise AssertionError("not granted")

    def extension(self, lease: Lease, lock_for: Duration) -> Any:
        """The command of an extension, not sent yet."""
        return next(locking.extend(self.programs, lease, lock_for))
