"""The operations on a quorum: one lock, kept on the majority of N independent Redis servers (Redlock).

A lease is acquired in two rounds. In the first each server votes for one claim, for :data:`VOTE` at most; in the second
a majority that voted for the same claim is told the lease and its fencing token, the greatest that any of them could
give. So every token handed out stands on a majority, any two majorities share a server, and the next token is greater.
A claim that fails in the first round leaves the lock records as they were; one that fails in the second is undone, but
may have used up its fire time.

Trust counts from before the second round, less the margin for clocks of different speeds (``rules.trust_ends``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from random import SystemRandom
from typing import Any

from shedlock_py._program import Program
from shedlock_py.durations import Duration, in_milliseconds, parse_duration
from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable
from shedlock_py.providers.redis.algorithm import KEPT_MS, Call, Command, Keys, claim_args, extend, release
from shedlock_py.providers.redis.election import Election, Verdict
from shedlock_py.providers.redis.rounds import NotAsked, OnEach, Pause, QuorumAsk, QuorumServer
from shedlock_py.providers.redis.scripts import script
from shedlock_py.providers.redis.view import majority_view
from shedlock_py.rules import Claim, Clock, Lease, LockRecord, LockRequest, validate_name, validate_prefix

VOTE = timedelta(seconds=3)
"""How long a server waits for a claim that it voted for: longer than two rounds take. So long a split may last."""
MOST_ROUNDS = 16
"""For those who take over at the same time. Each round is likely to end that."""

_random = SystemRandom()  # the module's own goes on alike in all children that C has forked


class QuorumAlgorithm:
    """The programs for ``size`` servers. ``clock`` is the holder's monotonic clock."""

    def __init__(self, size: int, key_prefix: str, longest_lease: Duration, clock: Clock) -> None:
        if size < 3 or size % 2 == 0:
            raise ConfigurationError(f"a quorum needs an odd number of servers, 3 or 5, not {size}")
        self._size = size
        self._majority = size // 2 + 1
        self._keys = Keys(key_prefix)
        self._node_key = f"{key_prefix}:node".encode()
        self._longest_lease = parse_duration(longest_lease, "longest_lease")
        self._clock = clock

    # The programs

    def acquire(self, request: LockRequest) -> Program[QuorumAsk, Any, Lease | None]:
        self._check_length(request.lock_at_most_for)
        claim = Claim(request, self._clock)
        number, patient_until = 0, self._clock() + VOTE.total_seconds()
        try:
            while True:
                is_last = self._clock() > patient_until  # so no vote of a claimant that died is in the way of it
                election = Election(claim.locked_by.encode(), (yield self._vote(claim)))
                is_ahead = False
                match election.verdict():
                    case Verdict.WON if election.same_server:
                        what = f"acquire of lock {request.name!r}: two of these servers are one and the same"
                        raise ProviderError(what, operation="acquire", lock_name=request.name)
                    case Verdict.WON:
                        if (yield from self._confirm("acquire", claim, election.token, election.voters)):
                            return claim.granted(election.token)
                        claim = yield from self._instead_of(claim)
                    case Verdict.SKIP:
                        if election.voters:
                            yield self._undo(claim)
                        return None
                    case Verdict.IMPOSSIBLE if any(map(is_refusal, election.errors)):
                        raise self._failed("acquire", request.name, election.errors) from election.cause
                    case Verdict.IMPOSSIBLE:
                        raise self._unreachable("acquire", request.name, election.why_not()) from election.cause
                    case Verdict.SPLIT:
                        is_ahead = election.is_ahead()
                        if election.voters and not is_ahead:
                            claim = yield from self._instead_of(claim)
                if is_last:
                    raise self._unreachable("acquire", request.name, "no claim got a majority: the servers are divided")
                yield _pause(number, at_most=0.05 if is_ahead else 0.3)
                number += 1
        except Exception:
            # Nobody will use what may have been granted. What cannot be undone now, ends by itself.
            with suppress(Exception):
                yield self._undo(claim)
            raise

    def take_over(self, request: LockRequest) -> Program[QuorumAsk, Any, Lease]:
        self._check_length(request.lock_at_most_for)
        claim = Claim(request, self._clock)
        # All of them: tokens must grow, and one that was emptied does not know how far they are.
        look = _on_each(Call(script("records"), (self._keys.of(request.name),)))
        try:
            for number in range(MOST_ROUNDS):
                replies = yield from self._majority_of("take_over", request.name, look)
                token = max(max(now, int((row and row[3]) or 0) + 1) for now, row in replies)
                if (yield from self._confirm("take_over", claim, token, None)):
                    return claim.granted(token)
                yield _pause(number)
            raise self._unreachable("take_over", request.name, "others took it over at the same time, again and again")
        except Exception:
            with suppress(Exception):
                yield self._undo(claim)
            raise

    def _vote(self, claim: Claim) -> OnEach:
        locked_by, fire_time = claim.locked_by.encode(), claim_args(claim)[2]
        args = (locked_by, in_milliseconds(VOTE), fire_time, in_milliseconds(self._longest_lease))
        call = Call(script("quorum_vote"), (self._keys.of(claim.request.name), self._node_key), args)
        return _on_each(call, is_settled=lambda replies: Election(locked_by, replies).is_settled())

    def _confirm(
        self, operation: str, claim: Claim, token: int, voters: frozenset[int] | None
    ) -> Program[QuorumAsk, Any, bool]:
        """Whether a majority has the lease now, with ``token``; if not, some servers may. None as voters: by force."""
        claim.ask_again()
        args = (*claim_args(claim), token, b"force" if voters is None else b"", KEPT_MS)
        call = Call(script("quorum_confirm"), (self._keys.of(claim.request.name),), args)
        replies: list[Any] = yield _on_each(call, only=voters, is_settled=self._agree)
        confirmed = replies.count(1)
        errors = [reply for reply in replies if isinstance(reply, Exception) and not isinstance(reply, NotAsked)]
        if confirmed < self._majority <= confirmed + len(errors):
            why = f"{confirmed} of {self._size} servers have confirmed, {len(errors)} did not answer ({errors[0]})"
            raise self._unreachable(operation, claim.request.name, why) from errors[0]
        return confirmed >= self._majority

    def _instead_of(self, claim: Claim) -> Program[QuorumAsk, Any, Claim]:
        """A new claim, once ``claim`` is undone: what was sent for that one may arrive late, and must not fit."""
        yield self._undo(claim)
        return Claim(claim.request, self._clock)

    def _undo(self, claim: Claim) -> OnEach:
        args = (claim.locked_by.encode(), 0, KEPT_MS)
        call = Call(script("quorum_release"), (self._keys.of(claim.request.name),), args)
        return _on_each(call, is_settled=self._is_answered)

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Program[QuorumAsk, Any, Lease | None]:
        self._check_length(parse_duration(lock_at_most_for, "lock_at_most_for"))
        extension = lease.begin_extension(lock_at_most_for)
        if lease.has_ended():
            return None
        call = extend("quorum_extend", self._keys.of(lease.name), lease, extension.lock_for, self._clock())
        replies = yield from self._majority_of("extend", lease.name, _on_each(call, is_settled=self._agree))
        if sum(replies) >= self._majority:
            return extension.granted()
        if replies.count(0) <= self._size - self._majority:  # not a majority against us: it is those that are silent
            silent = self._size - len(replies)
            raise self._unreachable("extend", lease.name, f"{silent} of {self._size} servers did not answer")
        lease.lose()
        return None

    def release(self, lease: Lease) -> Program[QuorumAsk, Any, bool]:
        if lease.has_ended():
            return False
        call = release("quorum_release", self._keys.of(lease.name), lease, lease.begin_release())
        replies = yield from self._majority_of("release", lease.name, _on_each(call, is_settled=self._agree))
        is_done: bool = replies.count(0) <= self._size - self._majority  # so a majority may have had it
        if is_done:
            lease.end()
        else:
            lease.lose()
        return is_done

    def force_release(self, name: str) -> Program[QuorumAsk, Any, bool]:
        call = Call(script("force_release"), (self._keys.of(validate_name(name)),), (KEPT_MS,))
        replies = yield from self._majority_of("force_release", name, _on_each(call, is_settled=self._agree))
        is_done: bool = replies.count(0) <= self._size - self._majority
        return is_done

    def prune(self, unused_for: Duration) -> Program[QuorumAsk, Any, int]:
        unused = parse_duration(unused_for, "unused_for", zero=True)
        on_each = OnEach(lambda server: server.carry_out(server.place, None, server.prune(unused)))
        counts: list[int] = yield from self._majority_of("prune", None, on_each)
        return max(counts)

    def record(self, name: str) -> Program[QuorumAsk, Any, LockRecord | None]:
        validate_name(name)
        on_each = OnEach(lambda server: server.carry_out(server.place, None, server.record(name)))
        found = yield from self._majority_of("record", name, on_each)
        return majority_view(found, self._size)

    def records(self, prefix: str) -> Program[QuorumAsk, Any, list[LockRecord]]:
        validate_prefix(prefix)
        on_each = OnEach(lambda server: server.carry_out(server.place, None, server.records(prefix)))
        answers = yield from self._majority_of("records", None, on_each)
        by_name = [{record.name: record for record in answer} for answer in answers]
        names = sorted({name for server in by_name for name in server})
        views = (majority_view([server.get(name) for server in by_name], self._size) for name in names)
        return [view for view in views if view is not None]

    def start_new_quorum(self) -> Program[QuorumAsk, Any, None]:
        """Let the servers of a new installation vote at once.

        One that is empty beside others that are not has lost what it knew, and stays in quarantine.
        """
        look = _on_each(Call(script("quorum_join"), (self._node_key,), (b"",)))
        for _ in range(20):
            replies = yield from self._majority_of("start_new_quorum", None, look)
            has_joined = [bool(joined) for joined, _ in replies]
            if not any(has_joined):
                break
            if all(has_joined):
                return
            yield Pause(0.1)  # another process may be at it
        else:
            what = (
                f"start_new_quorum: {sum(has_joined)} of {len(replies)} servers have voted before, the others "
                f"not: this quorum is in use, or was started halfway; those will vote after longest_lease"
            )
            raise ProviderError(what, operation="start_new_quorum")
        if len(replies) < self._size:
            raise self._unreachable("start_new_quorum", None, "a new quorum needs all its servers once")
        run_ids = {run_id for _, run_id in replies}
        if len(run_ids) < self._size:
            what = "some of these servers are the same, or do not tell their run_id"
            raise ProviderError(f"start_new_quorum: {what}", operation="start_new_quorum")
        for reply in (yield OnEach(lambda server: self._join(server, run_ids))):
            if isinstance(reply, Exception):
                raise self._unreachable("start_new_quorum", None, str(reply)) from reply

    def _join(self, server: QuorumServer, run_ids: set[bytes]) -> Program[Command, Any, None]:
        """Only as long as the server is the one that was empty when all were."""
        _, run_id = yield from server.call(Call(script("quorum_join"), (self._node_key,), (b"",)))
        if run_id in run_ids:
            yield from server.call(Call(script("quorum_join"), (self._node_key,), (run_id,)))

    # Asking

    def _agree(self, replies: Sequence[Any]) -> bool:
        """Whether a majority says the same."""
        said = Counter(reply for reply in replies if not isinstance(reply, Exception))
        return max(said.values(), default=0) >= self._majority

    def _is_answered(self, replies: Sequence[Any]) -> bool:
        return sum(not isinstance(reply, Exception) for reply in replies) >= self._majority

    def _majority_of(
        self, operation: str, lock_name: str | None, on_each: OnEach
    ) -> Program[QuorumAsk, Any, list[Any]]:
        """The replies of those servers that answered, if that is a majority of them.

        :raises ProviderUnreachable: it is not.
        """
        replies = yield on_each
        answers = [reply for reply in replies if not isinstance(reply, Exception)]
        errors = [reply for reply in replies if isinstance(reply, Exception)]
        if len(answers) < self._majority:
            raise self._failed(operation, lock_name, errors) from errors[0]
        return answers

    def _failed(self, operation: str, lock_name: str | None, errors: Sequence[Exception]) -> Exception:
        """For too few answers: a refusal is a mistake that will be there the next time, silence is not."""
        refusals = [error for error in errors if is_refusal(error)]
        if not refusals:
            why = f"{len(errors)} of {self._size} servers did not answer ({errors[0]})"
            return self._unreachable(operation, lock_name, why)
        if isinstance(refusals[0], ConfigurationError):
            return refusals[0]
        what = f"{operation} of lock {lock_name!r}" if lock_name is not None else operation
        why = f"{len(refusals)} of {self._size} servers refused ({refusals[0]})"
        return ProviderError(f"{what}: {why}", operation=operation, lock_name=lock_name)

    def _unreachable(self, operation: str, lock_name: str | None, why: str) -> ProviderUnreachable:
        what = f"{operation} of lock {lock_name!r}" if lock_name is not None else operation
        return ProviderUnreachable(f"{what}: {why}", operation=operation, lock_name=lock_name)

    def _check_length(self, lease: timedelta) -> None:
        if lease > self._longest_lease:
            raise ConfigurationError(
                f"a lease of {lease} is longer than longest_lease ({self._longest_lease}), for which this quorum keeps "
                f"a restarted server out: make longest_lease longer, wherever this quorum is used"
            )


def is_refusal(error: Exception) -> bool:
    """Whether a server, or we ourselves, said no."""
    return isinstance(error, ProviderError | ConfigurationError) and not isinstance(error, ProviderUnreachable)


def _on_each(
    call: Call, *, only: frozenset[int] | None = None, is_settled: Callable[[Sequence[Any]], bool] | None = None
) -> OnEach:
    return OnEach(lambda server: server.call(call), only, is_settled)


def _pause(number: int, at_most: float = 0.2) -> Pause:
    """At random, so that claims which met do not meet again."""
    return Pause(_random.uniform(0.002, min(0.005 * 2 ** min(number, 10), at_most)))
