"""The settings of an election, and the inequalities that keep two leaders apart."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from shedlock_py.durations import Duration, parse_duration
from shedlock_py.errors import ConfigurationError
from shedlock_py.request import SLACK, validate_holder, validate_name

LEADER_TRUST_MARGIN = 0.1
"""The part of its lease that a leader does not trust. More than for a lock, because a leader acts for all nodes."""
DRIFT_FACTOR = 1 + LEADER_TRUST_MARGIN / 10
"""A node waits longer by this factor until another stops trusting its lease, because clocks run at unequal speeds."""
JITTER = 1.2
"""A follower waits longer by a random factor up to this one, so that followers do not all send requests at once."""


@dataclass(frozen=True)
class ElectionSettings:
    """The settings of one election. The durations and ``takeover`` must be the same on every node."""

    name: str
    lease_duration: timedelta
    renew_deadline: timedelta
    retry_period: timedelta
    holder: str | None
    takeover: str

    @classmethod
    def parse(
        cls,
        name: str,
        lease_duration: Duration,
        renew_deadline: Duration,
        retry_period: Duration,
        holder: str | None,
        takeover: str,
    ) -> ElectionSettings:
        """Check and convert what the user wrote.

        :raises ConfigurationError: a leader could overlap its successor; the message names the broken inequality. Or
            another bad value.
        """
        lease = parse_duration(lease_duration, "lease_duration")
        deadline = parse_duration(renew_deadline, "renew_deadline")
        retry = parse_duration(retry_period, "retry_period")
        longest_deadline = lease * (1 - LEADER_TRUST_MARGIN) - timedelta(seconds=SLACK)
        if deadline > longest_deadline:
            raise ConfigurationError(
                f"unsafe: renew_deadline ({deadline}) must not be longer than lease_duration × "
                f"{1 - LEADER_TRUST_MARGIN:.0%} - {SLACK * 1000:g} ms ({longest_deadline}), or a leader could still "
                "trust its lease when another is elected"
            )
        if retry * JITTER >= deadline:
            raise ConfigurationError(
                f"retry_period × {JITTER} ({retry * JITTER}) must be shorter than renew_deadline ({deadline}), or one "
                "failed renewal ends the leadership"
            )
        if takeover not in ("expired", "observed"):
            raise ConfigurationError(f"takeover must be 'expired' or 'observed', not {takeover!r}")
        validated = None if holder is None else validate_holder(holder)
        return cls(validate_name(name), lease, deadline, retry, validated, takeover)
