"""The quorum's programs carried out step by step, so that something can happen between the steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from shedlock_py import Lease, LockRequest, ProviderUnreachable
from shedlock_py._program import run
from shedlock_py.durations import Duration
from shedlock_py.providers.kit import Undo
from shedlock_py.providers.redis.clients import open_client
from shedlock_py.providers.redis.quorum.broadcast import OnEach, QuorumClient
from shedlock_py.providers.redis.quorum.programs import QuorumPrograms

TIMEOUT = 5.0


class ByHand:
    """The quorum's programs and servers without a provider."""

    def __init__(self, urls: Sequence[str], key_prefix: str) -> None:
        self.programs = QuorumPrograms(len(urls), key_prefix, "1h", timeout=TIMEOUT)
        self.client = QuorumClient([open_client(url, TIMEOUT) for url in urls], key_prefix)

    def on(self, servers: Iterable[int], command: Any) -> list[Any]:
        """The replies of these servers; the others are sent nothing."""
        assert isinstance(command, OnEach)
        only = frozenset(servers)
        replies: list[Any] = self.client.execute(replace(command, only=only, is_settled=None), None)
        return replies

    def undo(self, command: Any) -> None:
        """On the servers that can be reached."""
        assert isinstance(command, Undo)
        with suppress(ProviderUnreachable):
            run(command.program, lambda on_each: self.client.execute(on_each, None))

    def votes(self, request: LockRequest, servers: Iterable[int]) -> tuple[Any, list[Any]]:
        """The program of an acquire that has its votes now."""
        program = self.programs.acquire(request)
        return program, self.on(servers, next(program))

    def late_confirmation(self, name: str, servers: Iterable[int], others: Iterable[int]) -> tuple[Lease, Any]:
        """A lease on ``servers``; and the confirmation that the ``others`` did not get yet."""
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
        return next(self.programs.extend(lease, lock_for))
