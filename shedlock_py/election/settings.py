"""The settings of an election, and the inequalities that keep two leaders apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal, Self

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.durations import LONGEST, MILLISECOND, Duration, in_milliseconds, parse_duration
from shedlock_py.model.request import SLACK, checked_lock_name, validate_holder
from shedlock_py.model.text import quoted

Takeover = Literal["expired", "observed"]
"""When a follower may lead: when the lease is over by the store's clock ("expired"), or when the follower has seen no
renewal for so long ("observed")."""

LEADER_TRUST_MARGIN = 0.1
"""The part of its lease that a leader does not trust. More than for a lock, because a leader acts for all nodes."""
DRIFT_FACTOR = 1 + LEADER_TRUST_MARGIN / 10
"""Lengthens the wait for another node to stop trusting its lease, because clocks run at different speeds."""
JITTER = 1.2
"""The maximum random factor of a follower's wait: followers must not all send requests at once."""


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
            examples = " or ".join(each._written(as_options) for each in self._alternatives())
            raise ConfigurationError(f"{fault}; write for example {examples}")

    def _fault(self, name: Callable[[str], str]) -> str | None:
        """Return the inequality that these durations break, or None if they work."""
        lease, deadline, retry = name("lease_duration"), name("renew_deadline"), name("retry_period")
        longest = self._longest_deadline()
        if self.renew_deadline > longest:
            return (
                f"unsafe: {deadline} ({_text(self.renew_deadline)}) must not be longer than {lease} × "
                f"{1 - LEADER_TRUST_MARGIN:.0%} - {SLACK * 1000:g} ms ({_text(longest)}), or a leader could still "
                "trust its lease when another leader is elected"
            )
        if self.retry_period * JITTER >= self.renew_deadline - self.grace:
            less_grace = f" - {name('grace')}" if self.grace else ""
            return (
                f"{retry} × {JITTER} ({_text(self.retry_period * JITTER)}) must be shorter than {deadline}{less_grace} "
                f"({_text(max(self.renew_deadline - self.grace, timedelta(0)))}), or one failed renewal ends the "
                + ("command" if self.grace else "leadership")
            )
        return None

    def _alternatives(self) -> list[ElectionDurations]:
        """Return one or two sets that work: with the same lease if possible, and with the same retry period."""
        grace, lease = self.grace, self.lease_duration
        deadline = self.renew_deadline if self.renew_deadline <= self._longest_deadline() else _round(lease * 2 / 3)
        retry = min(self.retry_period, _round(deadline / 5))
        with_lease = ElectionDurations(lease, deadline, retry, grace)
        if not with_lease._works():
            with_lease = replace(with_lease, grace=min(grace, _round(deadline * 2 / 5)))
        deadline = max(self.renew_deadline, self.retry_period * 5, grace * 5 / 2)
        with_retry = ElectionDurations(max(lease, deadline * 3 / 2), deadline, self.retry_period, grace)
        found = [each for each in (with_lease, with_retry) if each._works()]
        return found or [ElectionDurations.scaled("15s")]

    def _longest_deadline(self) -> timedelta:
        return max(self.lease_duration * (1 - LEADER_TRUST_MARGIN) - timedelta(seconds=SLACK), timedelta(0))

    def _works(self) -> bool:
        return self.lease_duration <= LONGEST and self.retry_period >= MILLISECOND and self._fault(str) is None

    def _written(self, as_options: bool) -> str:
        durations = {"lease_duration": self.lease_duration, "renew_deadline": self.renew_deadline}
        durations["retry_period"] = self.retry_period
        if not as_options:
            return ", ".join(f'{name}="{_text(duration)}"' for name, duration in durations.items())
        durations["grace"] = self.grace
        return " ".join(f"{_option(name)} {_text(duration)}" for name, duration in durations.items())


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _round(duration: timedelta) -> timedelta:
    """Round down to two digits or more: 33.3 s to 33 s, 3.33 s to 3.3 s."""
    unit = next((unit for unit in (1000, 100, 10) if duration >= 10 * unit * MILLISECOND), 1) * MILLISECOND
    return duration // unit * unit


def _text(duration: timedelta) -> str:
    """Write a duration exactly, as :func:`parse_duration` reads it: 1h30m, 3s300ms."""
    left, parts = in_milliseconds(duration), list[str]()
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        number, left = divmod(left, size)
        parts += [f"{number}{unit}"] if number else []
    return "".join(parts) or "0s"


@dataclass(frozen=True)
class ElectionSettings:
    """The settings of one election. The durations and ``takeover`` must be the same on every node."""

    name: str
    lease_duration: timedelta
    renew_deadline: timedelta
    retry_period: timedelta
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
        lease, deadline, retry = durations.lease_duration, durations.renew_deadline, durations.retry_period
        return cls(checked_lock_name(name), lease, deadline, retry, validated, takeover)
