"""Operations on a quorum: a lock on the majority of N independent Redis servers (Redlock).

An acquire needs two broadcasts. In the first, each server votes for one claim, for at most :data:`VOTE`. In the second,
a majority of voters for the same claim gets the lease and its fencing token: the greatest token that a voter offered.
So a majority stores every granted token. Any two majorities share a server, so the next token is greater. A claim that
fails in the first broadcast does not change the lock records. A claim that fails in the second broadcast is undone.

A claim that recovers a run is an acquire, too. A server votes for it only if it has exactly the run of the dead holder,
and that run has not ended.

A take-over reads the fencing token of each server. It replaces a record only if that server still has this token and
was not emptied since.

The holder's trust counts from before the second broadcast, minus the margin for clocks of different speeds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from shedlock_py.errors import ConfigurationError, ProviderError
from shedlock_py.model.durations import Duration, in_milliseconds, parse_duration
from shedlock_py.model.lease import Claim, Lease
from shedlock_py.model.record import ONCE, LockRecord
from shedlock_py.model.request import LockRequest
from shedlock_py.model.waiting import random_share
from shedlock_py.providers.kit import (
    Check,
    Failure,
    StorePrograms,
    Undo,
    carry_out,
    fire_time_too_late,
    refused,
    undo_claimed,
    undo_of,
    unreachable,
)
from shedlock_py.providers.redis.commands import EPOCH, MICROSECOND, Call, Calls, Command, claim_args, run_args, script
from shedlock_py.providers.redis.history import run_script, runs_kept
from shedlock_py.providers.redis.quorum.broadcast import NotAddressed, OnEach, Pause, QuorumCommand, QuorumServer
from shedlock_py.providers.redis.quorum.majority import (
    Majority,
    Verdict,
    VoteTally,
    are_decided,
    failures,
    merged_records,
    merged_runs,
    results,
)
from shedlock_py.runtime.program import Program

VOTE = timedelta(seconds=3)
"""How long a server reserves the lock for the claim that it voted for. It is longer than two broadcasts."""

_ANOTHER = "the quorum works while a majority replies: bring it back before another server is lost"
_BETTER_NONE = "better none: a server is kept out for longest_lease when its replica takes over, or it gets its first"
_BY_GRAVITY = ("failed", "warning", "ok")

QuorumProgram = Program[QuorumCommand | Undo, Any, Any]
IsSettled = Callable[[Sequence[Any]], bool]


class Reading(NamedTuple):
    """The state that a take-over replaces."""

    token: int  # the next token of the lock
    former: dict[int, tuple[bytes, bytes]]  # per server: its token, and a value that changes when it loses records
    clocks: list[int]  # the servers' clocks, in microseconds


class QuorumPrograms(StorePrograms):
    """The programs for ``size`` servers."""

    keeps_history: ClassVar[bool] = True
    recognises_retries: ClassVar[bool] = True

    def __init__(self, size: int, key_prefix: str, longest_lease: Duration, **options: Any) -> None:
        super().__init__(**options)
        self._majority = Majority(size)
        self._calls = Calls(key_prefix, has_history=self.history > 0)
        self._node_key = f"{key_prefix}:node".encode()
        self._longest_lease = parse_duration(longest_lease, "longest_lease")

    # Acquire and take over

    def claim(self, claim: Claim, *, before: Any, force: bool) -> QuorumProgram:
        self._check_length(claim.request.lock_at_most_for)
        try:
            if force and not claim.recoveries:
                return (yield from self._take_over(claim, before))
            return (yield from self._acquire(claim, before if claim.recoveries else None))
        except Exception:
            # The caller gets an error, so undo a lease that some servers granted, even after the time limit. A
            # take-over is not undone: see kit.locking.
            if not force:
                yield undo_of(self, claim)
            raise

    def _acquire(self, claim: Claim, dead: LockRecord | None) -> QuorumProgram:
        """:param dead: the record of the run to recover. If None, acquire."""
        name, operation = claim.request.name, "recover" if dead else "acquire"
        former = dead.locked_by.encode() if dead else b""
        limit = VOTE.total_seconds()
        if self.timeout is not None:
            limit = min(limit, 0.8 * self.timeout)
        number, last_vote_at = 0, self.clock() + limit
        while True:
            is_last = self.clock() > last_vote_at  # votes for a claimant that died have expired by then
            replies = yield self._vote(claim, former)
            tally = VoteTally(claim.locked_by.encode(), replies, recovers=dead is not None)
            is_ahead = False
            match tally.verdict():
                case Verdict.WON if tally.same_server:
                    raise refused(operation, name, "two of these servers are the same server")
                case Verdict.WON:
                    before = dict.fromkeys(tally.voters, (former, b"") if dead else ())
                    if (yield from self._confirm(operation, claim, tally.token, before)):
                        return tally.token
                    yield from self._give_way(claim)
                case Verdict.SKIP:
                    if tally.voters:
                        yield from self._give_way(claim)
                    return None
                case Verdict.IMPOSSIBLE if tally.is_too_late():
                    raise fire_time_too_late(operation, claim.request, self.fire_time_tolerance)
                case Verdict.IMPOSSIBLE:
                    self._majority.fail(operation, name, tally.errors, tally.why_not())
                case Verdict.SPLIT:
                    is_ahead = tally.is_ahead()
                    if tally.voters and not is_ahead:
                        yield from self._give_way(claim)
            if is_last:
                raise unreachable(operation, name, "no claim got a majority: the servers are divided")
            yield _pause(number, at_most=0.05 if is_ahead else 0.3)
            number += 1

    def read_before_take_over(self, request: LockRequest) -> QuorumProgram:
        self._check_length(request.lock_at_most_for)
        read = Call(script("quorum_read"), (self._calls.key(request.name), self._node_key))
        replies = yield from self._required("take_over", request.name, read, self._know_tokens)
        found = {server: reply for server, reply in enumerate(replies) if not isinstance(reply, Exception)}
        all_may = not self._know_tokens(replies)  # the operator takes over despite a quarantine
        former = {server: (reply[1], reply[4]) for server, reply in found.items() if all_may or reply[3]}
        return Reading(max(reply[2] for reply in found.values()), former, [reply[0] for reply in found.values()])

    def _take_over(self, claim: Claim, reading: Reading) -> QuorumProgram:
        request = claim.request
        if request.fire_time is not None:
            earliest = (request.fire_time - EPOCH - self.fire_time_tolerance) // MICROSECOND
            if sum(now >= earliest for now in reading.clocks) < self._majority.count:
                raise fire_time_too_late("take_over", request, self.fire_time_tolerance)
        if (yield from self._confirm("take_over", claim, reading.token, reading.former)):
            return reading.token
        # A minority may have granted it. It stays until the next try or until it expires: the former holder may still
        # trust its lease, and concurrent take-overs may have replaced it on every server.
        claim.renew()  # a server that confirmed this try must not confirm the next try with this try's token
        yield _pause(5)
        return None

    def _know_tokens(self, replies: Sequence[Any]) -> bool:
        """Return whether these servers know the newest token: a majority that has forgotten nothing."""
        return sum(bool(reply[3]) for reply in results(replies)) >= self._majority.count

    def _vote(self, claim: Claim, former: bytes) -> OnEach:
        """:param former: the holder of the run to recover, as in its record. Empty: no recovery."""
        locked_by, _, fire_time = claim_args(claim)
        tolerance = self.fire_time_tolerance // MICROSECOND
        args = (locked_by, in_milliseconds(VOTE), fire_time, in_milliseconds(self._longest_lease), tolerance, former)
        call = Call(script("quorum_vote"), (self._calls.key(claim.request.name), self._node_key), args)

        def is_settled(replies: Sequence[Any]) -> bool:
            return VoteTally(claim.locked_by.encode(), replies, recovers=former != b"").is_settled()

        return OnEach(lambda _: run_script(call, claim.request.name, self), is_settled, can_grant=True)

    def _confirm(
        self, operation: str, claim: Claim, token: int, former: Mapping[int, tuple[bytes, ...]]
    ) -> Program[QuorumCommand, Any, bool]:
        """Return whether a majority has the lease with ``token`` now. If not, some servers may still have it.

        :param former: the servers by number. Their values: for a take-over, the state that was read; for a recovery,
            the dead holder; otherwise empty, because the servers voted for this claim.
        """
        claim.restart_clock()
        force = {"take_over": b"force", "recover": b"recover"}.get(operation, b"")
        keys = (self._calls.key(claim.request.name), self._node_key)
        args, run = (*claim_args(claim), token, force, self._calls.kept_ms), run_args(claim.request, runs_kept(self))

        def confirm(server: QuorumServer) -> Program[Command, Any, Any]:
            before = former[server.number] or (b"", b"") if run else former[server.number]
            call = Call(script("quorum_confirm"), keys, (*args, *before, *run))
            return (yield from run_script(call, claim.request.name, self))

        replies: list[Any] = yield OnEach(confirm, self._majority.agrees, frozenset(former), can_grant=True)
        confirmed, size = replies.count(1), self._majority.size
        errors = [reply for reply in replies if isinstance(reply, Exception) and not isinstance(reply, NotAddressed)]
        if confirmed < self._majority.count <= confirmed + len(errors):
            why = f"{confirmed} of {size} servers have confirmed, {failures(errors, size)}"
            raise unreachable(operation, claim.request.name, why) from errors[0]
        return confirmed >= self._majority.count

    def _give_way(self, claim: Claim) -> Program[QuorumCommand, Any, None]:
        """Undo ``claim`` and give it a new claim id: earlier commands may arrive late, and must not match."""
        with suppress(ProviderError):  # a claim that cannot be undone now expires
            yield from undo_claimed(self, claim)
        claim.renew()

    def undo_claim(self, name: str, locked_by: str, former_fire_time: datetime | None) -> QuorumProgram:
        call = self._calls.undo(name, locked_by, former_fire_time, runs_kept(self))
        return (yield from self._done("undo", name, call))

    def set_end(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> QuorumProgram:
        kept = runs_kept(self)
        call = self._calls.hold("quorum_extend", lease, lock_for, self.clock(), releasing=releasing, runs_kept=kept)
        if releasing:
            return (yield from self._done("release", lease.name, call))
        self._check_length(lock_for)
        replies = yield from self._required("extend", lease.name, call)
        if replies.count(1) >= self._majority.count:
            return True
        if self._majority.may_have_done(replies):
            silent = len(replies) - len(results(replies))
            raise unreachable("extend", lease.name, f"{silent} of {self._majority.size} servers did not reply")
        return False

    def force_release(self, name: str, expected: LockRecord | None = None) -> QuorumProgram:
        """Free the records of all servers: after concurrent take-overs, each server may have another claim."""

        def free(server: QuorumServer) -> Program[Command, Any, bool]:
            record = yield from server.programs.record(name)
            if record is None or not record.is_held or (expected and record.locked_by != expected.locked_by):
                return False
            yield from server.programs.free(record)
            return True

        on_each = OnEach(free, self._majority.agrees)
        replies = yield from carry_out(
            self, "force_release", name, self._majority.required("force_release", name, on_each)
        )
        return self._majority.may_have_done(replies)

    def forget_fire_time(self, name: str, expected: LockRecord | None = None) -> QuorumProgram:
        def forget(server: QuorumServer) -> Program[Command, Any, bool]:
            if expected is None:
                return (yield from server.programs.forget_fire_time(name, None))
            newest = expected.last_fire_time
            if newest == ONCE:  # all runs of a run_once key have the same fire time
                return (yield from server.programs.forget_fire_time(name, expected))
            return newest is not None and (yield from server.programs.delete_fire_time(name, newest))

        on_each = OnEach(forget, self._majority.agrees)
        return True in (yield from self._majority.required("forget_fire_time", name, on_each))

    def prune(self, unused_for: timedelta, prefix: str = "") -> QuorumProgram:
        def prune_server(server: QuorumServer) -> Program[Command, Any, int]:
            return server.programs.prune(unused_for, prefix)

        on_each = OnEach(prune_server, self._majority.has_replied, is_long=True)
        return max(results((yield from self._majority.required("prune", None, on_each))))

    def record(self, name: str) -> QuorumProgram:
        def read(server: QuorumServer) -> Program[Command, Any, list[LockRecord]]:
            record = yield from server.programs.record(name)
            return [] if record is None else [record]

        found = yield from self._merged("record", name, OnEach(read, self._are_decided))
        return found[0] if found else None

    def records(self, prefix: str) -> QuorumProgram:
        on_each = OnEach(lambda server: server.programs.records(prefix), self._are_decided, is_long=True)
        return (yield from self._merged("records", None, on_each))

    def runs(self, name: str, limit: int) -> QuorumProgram:
        on_each = OnEach(lambda server: server.programs.runs(name, limit))  # any server may have the end of a run
        return merged_runs(results((yield from self._majority.required("runs", name, on_each))), self._majority)

    def checks(self) -> Program[QuorumCommand, Any, list[Check]]:
        """Check each server. Persistence does not count: a restarted server does not vote for ``longest_lease``."""

        def check_server(server: QuorumServer) -> Program[Command, Any, list[tuple[str, Check]]]:
            return [(server.place, check) for check in (yield from server.programs.checks())]

        replies = yield from self._majority.required("checks", None, OnEach(check_server))
        errors = [reply for reply in replies if isinstance(reply, Exception)]
        found = {"servers": Check("servers", "ok", f"all {self._majority.size} reply")}
        if errors:
            found["servers"] = Check("servers", "warning", failures(errors, self._majority.size), _ANOTHER)
        for place, check in sorted(chain(*results(replies)), key=lambda each: _BY_GRAVITY.index(each[1].status)):
            if check.status != "ok":
                hint = _BETTER_NONE if check.check == "replication" and check.status == "warning" else check.hint
                check = Check(check.check, "warning", f"{place}: {check.message}", hint)
            if check.check != "persistence":
                found.setdefault(check.check, check)
        return list(found.values())

    def _are_decided(self, replies: Sequence[Any]) -> bool:
        return are_decided(results(replies), self._majority)

    def _merged(self, operation: str, name: str | None, on_each: OnEach) -> QuorumProgram:
        replies = yield from self._majority.required(operation, name, on_each)
        return merged_records(results(replies), self._majority)

    def _done(self, operation: str, name: str, call: Call) -> QuorumProgram:
        """Return whether a majority may have done it."""
        return self._majority.may_have_done((yield from self._required(operation, name, call)))

    def _required(self, operation: str, name: str, call: Call, is_settled: IsSettled | None = None) -> QuorumProgram:
        """Return the replies of a majority to one script."""
        on_each = OnEach(lambda _: run_script(call, name, self), is_settled or self._majority.agrees)
        return (yield from self._majority.required(operation, name, on_each))

    def start_new_quorum(self) -> Program[QuorumCommand, Any, None]:
        """Let the servers of a new installation vote at once.

        A server that is empty beside servers with data has lost its own data. It stays in quarantine.
        """
        read = OnEach(lambda _: self._join())
        for _ in range(20):
            replies = results((yield from self._majority.required("start_new_quorum", None, read)))
            has_joined = [bool(joined) for joined, _ in replies]
            if not any(has_joined):
                break
            if all(has_joined):
                return
            yield Pause(0.1)  # another process may be starting the same quorum
        else:
            why = (
                f"{sum(has_joined)} of {len(replies)} servers have voted before, the others not: this quorum is in "
                f"use, or was started halfway; those will vote after longest_lease"
            )
            raise refused("start_new_quorum", None, why)
        if len(replies) < self._majority.size:
            raise unreachable("start_new_quorum", None, "a new quorum needs all its servers once")
        run_ids = {run_id for _, run_id in replies}
        if len(run_ids) < self._majority.size:
            why = "some of these servers are the same, or do not report a run_id"
            raise refused("start_new_quorum", None, why)
        for reply in (yield OnEach(lambda _: self._join(run_ids))):
            if isinstance(reply, Exception):
                raise unreachable("start_new_quorum", None, str(reply)) from reply

    def _join(self, run_ids: Collection[bytes] = ()) -> Program[Command, Any, Any]:
        """Return whether this server has joined the quorum, and its run id. It joins if its id is in ``run_ids``."""
        joined, run_id = yield Call(script("quorum_join"), (self._node_key,), (b"",))
        if run_id in run_ids:
            joined, run_id = yield Call(script("quorum_join"), (self._node_key,), (run_id,))
        return joined, run_id

    def classify(self, error: Exception) -> Failure:
        return Failure.NOT_A_STORE_ERROR  # the servers' errors are in the replies

    def _check_length(self, lease: timedelta) -> None:
        if lease > self._longest_lease:
            raise ConfigurationError(
                f"a lease of {lease} is longer than longest_lease ({self._longest_lease}), for which this quorum keeps "
                f"a restarted server out: make longest_lease longer, wherever this quorum is used"
            )


def _pause(number: int, at_most: float = 0.2) -> Pause:
    """Return a random pause, so that claims that collided do not collide again."""
    longest = min(0.005 * 2 ** min(number, 10), at_most)
    return Pause(0.002 + random_share() * (longest - 0.002))
