"""The result of a majority of a quorum's servers: counts, the tally of votes, and merged lock records.

A reply to a broadcast is the result or the error of one server.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NoReturn

from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable
from shedlock_py.model.record import LockRecord
from shedlock_py.model.run import Run
from shedlock_py.providers.kit import refused, unreachable
from shedlock_py.providers.redis.quorum.broadcast import OnEach, QuorumCommand
from shedlock_py.runtime.program import Program


class Majority:
    """A majority of ``size`` servers."""

    def __init__(self, size: int) -> None:
        if size < 3 or size % 2 == 0:
            raise ConfigurationError(f"a quorum needs an odd number of servers, 3 or 5, not {size}")
        self.size = size
        self.count = size // 2 + 1

    def agrees(self, replies: Sequence[Any]) -> bool:
        """Return whether a majority has the same result."""
        return max(Counter(results(replies)).values(), default=0) >= self.count

    def has_replied(self, replies: Sequence[Any]) -> bool:
        """Return whether a majority has a result."""
        return len(results(replies)) >= self.count

    def may_have_done(self, replies: Sequence[Any]) -> bool:
        """Return whether a majority may have done the request (1, not 0). Silent servers count as done."""
        return replies.count(0) <= self.size - self.count

    def required(self, operation: str, lock_name: str | None, on_each: OnEach) -> Program[QuorumCommand, Any, Any]:
        """Return the replies to a broadcast.

        :raises ProviderError: no majority has a result.
        """
        replies: list[Any] = yield on_each
        if not self.has_replied(replies):
            errors = [reply for reply in replies if isinstance(reply, Exception)]
            self.fail(operation, lock_name, errors, failures(errors, self.size))
        return replies

    def fail(self, operation: str, lock_name: str | None, errors: Sequence[Exception], why: str) -> NoReturn:
        """Raise the error for too few results. A refusal comes first: it will still be there at the next try."""
        refusal = next(filter(is_refusal, errors), None)
        if isinstance(refusal, ConfigurationError):
            raise refusal
        make = unreachable if refusal is None else refused
        raise make(operation, lock_name, why) from (errors[0] if errors else None)


def results(replies: Sequence[Any]) -> list[Any]:
    """Return the replies that are not errors."""
    return [reply for reply in replies if not isinstance(reply, Exception)]


def is_refusal(error: Exception) -> bool:
    """Return whether a server replied with an error, or the client refused to send."""
    return isinstance(error, ProviderError | ConfigurationError) and not isinstance(error, ProviderUnreachable)


def failures(errors: Sequence[Exception], size: int) -> str:
    """Describe for people how many servers refused or did not reply, with one example of each."""
    refusals = [error for error in errors if is_refusal(error)]
    silent = [error for error in errors if not is_refusal(error)]
    reasons = []
    if refusals:
        reasons.append(f"{len(refusals)} of {size} servers reported an error ({refusals[0]})")
    if silent:
        reasons.append(f"{len(silent)} of {size} servers did not reply ({silent[0]})")
    return "; ".join(reasons)


# Kinds of replies of quorum_vote.lua
HELD, VOTED, OTHER, RAN, QUARANTINED, TOO_LATE, NO_SUCH_RUN = 0, 1, 2, 3, 4, 5, 6


class Verdict(enum.Enum):
    WON = "a majority has voted for this claim"
    SKIP = "another claim has, or may have, a majority; or this fire time ran, or the run to be recovered was ended"
    IMPOSSIBLE = "too few servers reply, are out of quarantine, or find the fire time early enough"
    SPLIT = "no claim has a majority, and one should get it"


class VoteTally:
    """Counts the replies to a vote for the claim ``locked_by``. A reply is a pair of ``quorum_vote.lua``, or an error.

    A claim that recovers a run needs a majority that has this run. If one server has the end of the run, the run has
    ended: the holder has released it, and the other servers did not reply.

    :param recovers: the claim recovers a run.
    :ivar token: the greatest token of the voters.
    :ivar voters: the numbers of the servers that voted for the claim.
    :ivar errors: errors of the servers that neither voted nor gave a reason.
    :ivar same_server: True if a server voted twice under two names, so there is no majority.
    """

    def __init__(self, locked_by: bytes, replies: Sequence[Any], *, recovers: bool = False) -> None:
        self._recovers = recovers
        self._locked_by = locked_by
        self._size = len(replies)
        self._majority = Majority(self._size).count
        self.errors = [reply for reply in replies if isinstance(reply, Exception)]
        kinds: dict[int, list[Any]] = {}
        for kind, detail, *_ in results(replies):
            kinds.setdefault(kind, []).append(detail)
        self.token = max(kinds.get(VOTED, ()), default=0)
        self.voters = frozenset(
            number for number, reply in enumerate(replies) if not isinstance(reply, Exception) and reply[0] == VOTED
        )
        run_ids = [run_id for number in self.voters for run_id in replies[number][2:]]
        self.same_server = len(set(run_ids)) < len(run_ids)
        self._leases, self._votes = Counter(kinds.get(HELD)), Counter(kinds.get(OTHER))
        self._ran, self._too_late = len(kinds.get(RAN, ())), len(kinds.get(TOO_LATE, ()))
        self._without = len(kinds.get(NO_SUCH_RUN, ()))
        self._quarantines = kinds.get(QUARANTINED, [])

    def verdict(self) -> Verdict:
        return self._verdict(len(self.errors))

    def is_settled(self) -> bool:
        """Return whether the missing replies cannot change the verdict."""
        return self._verdict(0) is self.verdict()

    def _verdict(self, missing: int) -> Verdict:
        silent = missing + len(self._quarantines)
        if self._recovers and self._ran:
            return Verdict.SKIP
        if len(self.voters) >= self._majority:
            return Verdict.WON
        if self._size - missing < self._majority:
            return Verdict.IMPOSSIBLE  # too few replies to know that the lock is held, or that the fire time ran
        # Servers that are silent, or have forgotten, may support a claim that other servers support.
        if any(count + self._votes[claim] + silent >= self._majority for claim, count in self._leases.items()):
            return Verdict.SKIP
        if any(count + self._leases[claim] >= self._majority for claim, count in self._votes.items()):
            return Verdict.SKIP
        if self._ran >= self._majority:  # fewer servers may have it from a claim that failed
            return Verdict.SKIP
        if self._without >= self._majority:
            return Verdict.SKIP
        if self._size - silent - self._ran - self._too_late - self._without < self._majority:
            return Verdict.IMPOSSIBLE
        return Verdict.SPLIT

    def is_ahead(self) -> bool:
        """Return whether this claim keeps its votes after a split. One claim keeps them, all other claims give way."""
        # The claim id at the end of locked_by is random, so the choice is fair.
        this = (len(self.voters), self._locked_by[-32:])
        return all(this > (count, claim[-32:]) for claim, count in self._votes.items())

    def is_too_late(self) -> bool:
        """Return whether only the late fire time prevents a majority: otherwise the servers would be enough."""
        silent = len(self.errors) + len(self._quarantines)
        return self._too_late > 0 and self._size - silent - self._ran - self._without >= self._majority

    def why_not(self) -> str:
        """Describe for people why no claim can get a majority now."""
        reasons = [failures(self.errors, self._size)] if self.errors else []
        if self._without:
            reasons.append(f"{self._without} of {self._size} servers do not have the run")
        if self._quarantines:
            wait = timedelta(seconds=min(self._quarantines) // 1000)
            reasons.append(
                f"{len(self._quarantines)} of {self._size} are in quarantine for {wait} or longer, because they were "
                f"emptied or restarted and may have forgotten a lease (a new quorum: call start_new_quorum() once, by "
                f"hand)"
            )
        return "; ".join(reasons)


def are_decided(found: Sequence[Sequence[LockRecord]], majority: Majority) -> bool:
    """Return whether a majority agrees on the holder of each lock. ``found``: the reply of each server."""
    return len(found) >= majority.count and all(
        max(Counter(record and (record.locked_by, record.is_held) for record in records).values()) >= majority.count
        for records in _by_name(found)
    )


def merged_records(found: Sequence[Sequence[LockRecord]], majority: Majority) -> list[LockRecord]:
    """Return the record of each lock that a majority has. ``found``: the reply of each server."""
    merged = (_merged(records, majority) for records in _by_name(found))
    return [record for record in merged if record is not None]


def _by_name(found: Sequence[Sequence[LockRecord]]) -> list[list[LockRecord | None]]:
    """Return the records of each lock name, one from each server."""
    servers = [{record.name: record for record in records} for records in found]
    names = sorted({name for server in servers for name in server})
    return [[server.get(name) for server in servers] for name in names]


def _merged(found: Sequence[LockRecord | None], majority: Majority) -> LockRecord | None:
    """Return one record from the replies ``found`` (None if a server lacks the record).

    The lock is held if a majority may hold it for the same claim. Silent servers count as holding it. Each server has
    its own clock, so the result has the times of one server: the last end that a majority reaches.
    """
    unknown = majority.size - len(found)
    if found.count(None) >= majority.count:
        return None
    by_claim: dict[str, list[LockRecord]] = {}
    for record in found:
        if record is not None:
            by_claim.setdefault(record.locked_by, []).append(record)

    def is_held(records: list[LockRecord]) -> bool:
        holding = sum(record.is_held for record in records)
        return holding > 0 and holding + unknown >= majority.count

    def token(records: list[LockRecord]) -> int:
        return max(record.fencing_token or 0 for record in records)

    records = max(
        by_claim.values(),
        key=lambda records: (is_held(records), len(records) + unknown >= majority.count, token(records)),
    )
    if is_held(records):
        shown = [record for record in records if record.is_held]
    else:  # a minority may still hold it
        shown = [replace(record, lock_until=min(record.lock_until, record.read_at)) for record in records]
    shown.sort(key=lambda record: record.lock_until, reverse=True)
    which = min(majority.count, len(shown)) - 1
    newest = max((record.last_fire_time for record in records if record.last_fire_time), default=None)
    return replace(
        shown[which],
        locked_at=sorted((record.locked_at for record in shown), reverse=True)[which],  # extending does not change it
        fencing_token=token(records),
        last_fire_time=newest,
        is_released=_is_released(records, newest, majority, unknown),
    )


def _is_released(
    records: Sequence[LockRecord], newest: datetime | None, majority: Majority, unknown: int
) -> bool | None:
    """Return whether the run of ``newest`` has ended. One server's record is enough: see :class:`VoteTally`.

    A server that has undone the claim has the mark, too, but not the fire time. That run did not end.

    Return None if too few servers have the run, so that it cannot be recovered.
    """
    found = {record.is_released for record in records if record.last_fire_time == newest}
    if True in found:
        return True
    return None if None in found or len(records) + unknown < majority.count else False


def merged_runs(found: Sequence[Iterable[Run]], majority: Majority) -> list[Run]:
    """Merge the runs of a lock name. ``found``: the reply of each server, in any order.

    A run that has ended on any server was granted. An open run was granted only if a majority may have it, with silent
    servers counted: otherwise its claim failed. Its start is the start in the merged record.
    """
    silent = majority.size - len(found)
    by_claim: dict[tuple[int, str], list[Run]] = {}
    for run in (run for runs in found for run in runs):
        by_claim.setdefault((run.fencing_token, run.locked_by), []).append(run)
    merged = []
    for runs in by_claim.values():
        started = sorted((run.started for run in runs), reverse=True)[min(majority.count, len(runs)) - 1]
        outcomes = Counter(run.outcome for run in runs if run.outcome)
        if outcomes:
            outcome = outcomes.most_common(1)[0][0]
            run = next(run for run in runs if run.outcome == outcome)
            merged.append(replace(run, started=started, ended=started + (run.duration or timedelta(0))))
        elif len(runs) + silent >= majority.count:
            merged.append(replace(runs[0], started=started))
    return merged
