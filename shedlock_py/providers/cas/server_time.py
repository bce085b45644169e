"""The time of a server, from its replies: its statements cannot read its clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from shedlock_py.providers.kit import ErrorReply, Failure

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DRIFT = 0.001
"""The most that two clocks drift apart, as a share of the time that passes.

NTP changes the speed of a clock by half of this.
"""


def token_at(moment: datetime) -> int:
    """Return the fencing token for a grant at ``moment``, in microseconds since 1970.

    Use it only if no greater token was granted before.
    """
    return (moment - _EPOCH) // timedelta(microseconds=1)


class UnknownTimeError(ErrorReply):
    """The reply does not say what time it is. The command may have been carried out."""

    def __init__(self, message: str) -> None:
        hint = "the locks go by this time: let the proxy between this process and the service pass the Date header on"
        super().__init__(message, Failure.UNREACHABLE, hint)


class OtherReplyError(ErrorReply):
    """The reply belongs to another request. The command may have been carried out.

    A proxy that repeats a reply shifts all later replies on that connection, so the client must close the connection.
    """

    def __init__(self) -> None:
        hint = "a proxy between this process and the service mixes replies up: leave it out, or turn its keep-alive off"
        super().__init__("the reply belongs to another request", Failure.UNREACHABLE, hint)


@dataclass(frozen=True, slots=True)
class ServerTime:
    """The server's clock as one reply shows it.

    The server read its clock after the request was sent and before the reply was received, and truncated the time to
    ``resolution``. So only an earliest and a latest time are known.

    :ivar date: the time in the reply itself, not the time of an entry in it; aware.
    :ivar sent_at: when the request was sent, in seconds of ``CasPrograms.clock``. That clock continues while the
        machine sleeps; ``time.monotonic()`` stops.
    :ivar received_at: when the reply was received, by the same clock.
    :ivar resolution: in seconds. It is 1 for the ``Date`` header of HTTP.
    """

    date: datetime
    sent_at: float
    received_at: float
    resolution: float = 1.0

    @classmethod
    def from_header(cls, date: str | None, sent_at: float, received_at: float) -> ServerTime:
        """Return the time from a ``Date`` header (RFC 9110 §6.6.1).

        :raises UnknownTimeError: the header is missing or is not a date.
        """
        if date is None:
            raise UnknownTimeError("the reply has no Date header, so the server's time is unknown")
        try:
            parsed = parsedate_to_datetime(date)
        except ValueError as error:
            raise UnknownTimeError(f"the reply has an odd Date header: {date:.100}") from error
        return cls(parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed, sent_at, received_at)

    @classmethod
    def from_iso(cls, date: object, sent_at: float, received_at: float) -> ServerTime:
        """Return the time from a text in ISO format, exact to the microsecond.

        :raises UnknownTimeError: the time is missing, or is not a date.
        """
        try:
            return cls(datetime.fromisoformat(str(date)), sent_at, received_at, 0.000001)
        except ValueError:
            raise UnknownTimeError(f"the reply does not have the server's time: {date!r:.100}") from None

    def agrees_with(self, other: ServerTime, now: float, clock_error: timedelta) -> bool:
        """Return whether both replies are possible at ``now`` if the servers' clocks differ by at most ``clock_error``.

        If not, a server's clock was set, or this machine stood still and its clock did not show it, for example in a
        migration.
        """
        is_behind = self.latest(now) + clock_error < other.earliest(now)
        is_ahead = self.earliest(now) > other.latest(now) + clock_error
        return not is_behind and not is_ahead

    def earliest(self, now: float) -> datetime:
        """Return the earliest time that the server's clock can show at ``now``."""
        return self.date + timedelta(seconds=(now - self.received_at) * (1 - DRIFT))

    def latest(self, now: float) -> datetime:
        """Return the latest time that the server's clock can show at ``now``."""
        return self.date + timedelta(seconds=self.resolution + (now - self.sent_at) * (1 + DRIFT))

    def at(self, now: float) -> ServerTime:
        """Return this time as a reply that is received ``now``, for a client that reads the clock only now and then."""
        earliest = self.earliest(now)
        return ServerTime(earliest, now, now, (self.latest(now) - earliest).total_seconds())
