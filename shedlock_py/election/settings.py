"""The settings of an election, and the inequalities that keep two leaders apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Self

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.request import SLACK, checked_lock_name, validate_holder
from shedlock_py.model.text import in_words, quoted

Takeover = Literal["expired", "observed"]
"""When a follower may lead: when the lease is over by the store's clock ("expired"), or when the follower has seen no
renewal for so long ("observed")."""

LEADER_TRUST_MARGIN = 0.1
"""The part of its lease that a leader does not trust. More than for a lock, because a leader acts for all nodes."""
DRIFT_FACTOR = 1 + LEADER_TRUST_MARGIN / 10
"""Lengthens the wait for another node to stop trusting its lease, because clocks run at different speeds."""
JITTER = 1.2
"""The maximum random factor of a follower's wait: followers must not all send requests at once."""
_EXAMPLE = 'lease_duration="15s", renew_deadline="10s", retry_period="2s"'
_EXAMPLE_OPTIONS = "--lease-duration 15s --renew-deadline 10s --retry-period 2s --grace 4s"


@dataclass(frozen=True)
class ElectionDurations:
    """The durations of an election. They must be the same on every node.

    :ivar grace: how long the work needs to end. It must begin to end so long before ``renew_deadline`` is over.
    """

    lease_duration: timedelta
    renew_deadline: timedelta
    retry_period: timedelta
    grace: timedelta = timedelta(0)

    @classmethod
    def scaled(cls, lease: Duration, deadline: Duration | None = None, retry: Duration | None = None) -> Self:
        """Convert the user's values. A missing duration is in proportion to the lease, like 15, 10 and 2 s.

        :raises ConfigurationError: a value is not a duration.
        """
        lease = parse_duration(lease, "lease_duration")
        deadline = parse_duration(lease * 2 / 3 if deadline is None else deadline, "renew_deadline")
        retry = parse_duration(deadline / 5 if retry is None else retry, "retry_period")
        return cls(lease, deadline, retry)

    def check(self, *, as_options: bool = False) -> None:
        """Refuse durations that would let a leader overlap its successor, or lead for a moment only.

        :param as_options: whether the message names them as options of the command line.
        :raises ConfigurationError: the message has the broken inequality, and durations that work.
        """
        fault = self._fault(_option if as_options else str)
        if fault is not None:
            example = _EXAMPLE_OPTIONS if as_options else _EXAMPLE
            raise ConfigurationError(f"{fault}; write for example {example}")

    def _fault(self, name: Callable[[str], str]) -> str | None:
        """Return the inequality that these durations break, or None if they work."""
        lease, deadline, retry = name("lease_duration"), name("renew_deadline"), name("retry_period")
        longest = max(self.lease_duration * (1 - LEADER_TRUST_MARGIN) - timedelta(seconds=SLACK), timedelta(0))
        if self.renew_deadline > longest:
            return (
                f"unsafe: {deadline} ({in_words(self.renew_deadline)}) must not be longer than {lease} × "
                f"{1 - LEADER_TRUST_MARGIN:.0%} - {SLACK * 1000:g} ms ({in_words(longest)}), or a leader could still "
                "trust its lease when another leader is elected"
            )
        if self.retry_period * JITTER >= self.renew_deadline - self.grace:
            less_grace = f" - {name('grace')}" if self.grace else ""
            return (
                f"{retry} × {JITTER} ({in_words(self.retry_period * JITTER)}) must be shorter than "
                f"{deadline}{less_grace} ({in_words(self.renew_deadline - self.grace)}), or one failed renewal ends "
                f"the {'command' if self.grace else 'leadership'}"
            )
        return None


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class ElectionSettings:
    """The settings of one election. The durations and ``takeover`` must be the same on every node."""

    name: str
    durations: ElectionDurations
    holder: str | None
    takeover: Takeover

    @classmethod
    def parse(
        cls,
        name: str,
        lease_duration: Duration,
        renew_deadline: Duration | None,
        retry_period: Duration | None,
        holder: str | None,
        takeover: Takeover,
    ) -> ElectionSettings:
        """Check and convert the user's values.

        :raises ConfigurationError: a leader could overlap its successor (the message names the broken inequality, and
            durations that work), or another bad value.
        """
        durations = ElectionDurations.scaled(lease_duration, renew_deadline, retry_period)
        durations.check()
        if takeover not in ("expired", "observed"):
            raise ConfigurationError(f"takeover must be 'expired' or 'observed', not {quoted(takeover)}")
        validated = None if holder is None else validate_holder(holder)
        return cls(checked_lock_name(name), durations, validated, takeover)
