"""The time of a server whose statements cannot read its clock, from what its replies tell."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DRIFT = 0.001
"""How fast two clocks may drift apart, as a share of the time that passes. NTP changes the speed of a clock by half as
much."""


def token_at(moment: datetime) -> int:
    """The fencing token of a grant at ``moment``, if no greater one was granted before: microseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


class UnknownTimeError(Exception):
    """A reply does not say what time it is. The command may have been carried out."""

    hint = "the locks go by this time: let the proxy between this process and the service pass the Date header on"


class OtherReplyError(Exception):
    """The reply belongs to another request. The command may have been carried out.

    A proxy that repeats a reply shifts all replies that follow on that connection, so the client must close it.
    """

    hint = "a proxy between this process and the service mixes replies up: leave it out, or turn its keep-alive off"

    def __init__(self) -> None:
        super().__init__("the reply belongs to another request")


@dataclass(frozen=True, slots=True)
class ServerTime:
    """What one reply tells about the server's clock.

    The server read its clock after the request was sent and before the reply was received, and cut what it read to
    ``resolution``. So there are an earliest and a latest time that it can be now.

    :ivar date: the time that the reply says it is, not the time of an entry in it; aware.
    :ivar sent_at: when the request was sent, in seconds of ``CasPrograms.clock``. That goes on while the machine
        sleeps, and ``time.monotonic()`` does not.
    :ivar received_at: when the reply was received, by the same clock.
    :ivar resolution: in seconds; 1 for the ``Date`` header of HTTP.
    """

    date: datetime
    sent_at: float
    received_at: float
    resolution: float = 1.0

    @classmethod
    def from_header(cls, date: str | None, sent_at: float, received_at: float) -> ServerTime:
        """The time from a ``Date`` header, as RFC 9110 §6.6.1 has it.

        :raises UnknownTimeError: there is no such header, or it is no date.
        """
        if date is None:
            raise UnknownTimeError("the reply has no Date header, so the server's time is unknown")
        try:
            parsed = parsedate_to_datetime(date)
        except ValueError as error:
            raise UnknownTimeError(f"the reply has an odd Date header: {date:.100}") from error
        return cls(parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed, sent_at, received_at)

    def agrees_with(self, other: ServerTime, now: float, clock_error: timedelta) -> bool:
        """Whether, at ``now``, two servers whose clocks differ by ``clock_error`` at most can have sent both.

        If not, a server's clock was set, or this machine stood still and its clock did not show it, as after a
        migration.
        """
        is_behind = self.latest(now) + clock_error < other.earliest(now)
        is_ahead = self.earliest(now) > other.latest(now) + clock_error
        return not is_behind and not is_ahead

    def earliest(self, now: float) -> datetime:
        """What the server's clock shows at least, at ``now`` of the same clock."""
        return self.date + timedelta(seconds=(now - self.received_at) * (1 - DRIFT))

    def latest(self, now: float) -> datetime:
        """What the server's clock shows at most."""
        return self.date + timedelta(seconds=self.resolution + (now - self.sent_at) * (1 + DRIFT))
