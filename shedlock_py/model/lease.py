"""A lease, from the claim to its end, and its trust window.

::

    holder's clock   t0         grant      heartbeat              trust ends
                     |-- request --|- the task runs, the lease is trusted -|
    store's clock         now                                                  lock_until
                           |----------------- lock_at_most_for ----------------|

    t0          the holder reads its monotonic clock, before the first byte is sent
    now         the store grants the lease and sets lock_until = now + lock_at_most_for; never before t0
    grant       the reply arrives; lock_at_least_for counts from here, the latest possible "now"
    heartbeat   with keep-alive, an extension every third of lock_at_most_for: its own t0 moves the trust window
    trust ends  t0 + lock_at_most_for x (1 - 1 %) - 2 ms: before the store can grant the lock to another holder
    lock_until  the lease expires in the store

A lease has these states:

- trusted, by the clock
- being released (``_begin_release``): it is never trusted again
- ended (``_end``): the store has released it; final
- lost (``_lose``): the store does not have it

The kit's programs of extend, release and undo call these methods. Keep-alive and elections also call ``_lose``, for a
lease that they give up. A store's own programs call none of the methods. ``context.ActiveLease.is_loss_reported`` says
whether listeners were notified of a loss: that is not a state of the lease.

All functions here take the clock as an argument: a function that returns monotonic seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Literal

from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.request import LockRequest, trust_ends

Clock = Callable[[], float]
"""A function that returns monotonic seconds."""
RunOutcome = Literal["ok", "failed", "cancelled", "lost", "vanished"]
"""How a run ended, in run history.

- "ok": the task returned.
- "failed": it raised.
- "cancelled": it was cancelled.
- "lost": it outlived its lease, or lost the lease to another holder.
- "vanished": it never reported an end, and another run has followed.
"""

CLAIM_ID_BYTES = 16
MOST_RECOVERIES = 15
"""The maximum of the first hexadecimal digit of a claim id, which counts recoveries."""
_NEVER = float("-inf")


def random_claim_id() -> str:
    """Return a new claim id. It comes from the system's random numbers, which a forked child does not repeat."""
    return os.urandom(CLAIM_ID_BYTES).hex()


class Claim:
    """One acquisition while its request is under way. Make it before the first byte is sent: it reads the clock.

    :param new_claim_id: returns a claim id that was never used before. A simulation passes a repeatable function.
    :param recoveries: how often this fire time was recovered, including this claim; 0 if this claim recovers no run.
    """

    def __init__(
        self,
        request: LockRequest,
        clock: Clock,
        new_claim_id: Callable[[], str] = random_claim_id,
        recoveries: int = 0,
    ) -> None:
        self.request = request
        self.recoveries = recoveries
        self.note: object = None
        """A value for :attr:`Lease.note`, from the store's program."""
        self._clock = clock
        self._new_claim_id = new_claim_id
        self.renew()

    def renew(self) -> None:
        """Take a new claim id. A request with the earlier id may reach the store late, and then matches nothing."""
        self.claim_id = f"{self.recoveries:x}{self._new_claim_id()[1:]}"
        self.locked_by = f"{self.request.holder}#{self.claim_id}"
        self._sent_at = self._clock()

    def restart_clock(self) -> None:
        """Read the clock again, once no earlier request can grant the lease any more."""
        self._sent_at = self._clock()

    def granted(self, fencing_token: int | None) -> Lease:
        """Return the granted lease. Call it when the reply has arrived: it reads the clock again."""
        lease = Lease(self.request, self.claim_id, fencing_token, self._clock, self._sent_at)
        lease._note = self.note
        return lease


def _no_clock() -> float:
    """The clock of a copied lease."""
    return 0.0


class TrustWindow:
    """The end of the trust that the reply to one request gives, in seconds of the holder's clock."""

    def __init__(self, ends: float) -> None:
        self.ends = ends


class Lease:
    """Time-bounded possession of one lock, returned by ``acquire``.

    A lease is one object from acquire to release; extending moves its trust window. Rely on it only while
    :meth:`is_trusted` is true. Each call computes it from the local monotonic clock. It becomes False *before* the
    store can grant the lock to another holder.

    One thread or task at a time may extend or release a lease. A copy (``pickle``, ``copy``) is not trusted.
    """

    name: str
    template: str | None
    """The template of ``name``, if it has fields."""
    holder: str
    claim_id: str
    """New for every acquisition: proves *this* acquisition to the store. All digits are random except the first, which
    counts the recoveries of this fire time."""
    fencing_token: int | None
    """Grows with every acquisition of this name; None if the store keeps no token (``extra_columns=False``)."""
    locked_by: str
    """Holder and claim id, as in the lock record."""
    lock_at_most_for: timedelta
    lock_at_least_for: timedelta
    fire_time: datetime | None
    """The fire time of the request, if the store compared it; None after a take-over, which only records it."""
    outcome: RunOutcome = "ok"
    """How the task ended, for run history. Set it before the release. A lost lease is stored as lost."""
    error: str | None = None
    """Type and first line of the task's exception, for run history."""
    _note: object = None
    """A value for the store's programs, for example the version of the lock record."""
    _shortest_repeated: timedelta | None = None
    """The shortest extension that the store may execute again at any time."""
    _lost = False
    _is_being_released = False
    _ended = False

    def __init__(
        self, request: LockRequest, claim_id: str, fencing_token: int | None, clock: Clock, sent_at: float
    ) -> None:
        self.name = request.name
        self.template = request.template
        self.holder = request.holder
        self.claim_id = claim_id
        self.locked_by = f"{request.holder}#{claim_id}"
        self.fencing_token = fencing_token
        self.lock_at_most_for = request.lock_at_most_for
        self.lock_at_least_for = request.lock_at_least_for
        self.fire_time = request.fire_time
        self._clock = clock
        # The store granted the lease at this moment or earlier: the minimum hold counts from here.
        self._granted_at = clock()
        # The window of the grant, or of the extension that was sent last; None if nothing is trusted. It is replaced in
        # one step: another thread may confirm an earlier extension, or end the trust.
        self._window: TrustWindow | None = TrustWindow(trust_ends(sent_at, request.lock_at_most_for))
        self._in_doubt: list[Extension] = []

    @property
    def trusted_until(self) -> float:
        """The end of the trust in this lease, in seconds of the holder's monotonic clock."""
        window = self._window
        return _NEVER if window is None else window.ends

    def now(self) -> float:
        """Return the holder's monotonic clock in seconds. In a test it may be a FakeClock."""
        return self._clock()

    def trusted_for(self) -> timedelta:
        """Return how long the holder may still trust this lease; zero if it may not."""
        return timedelta(seconds=max(0.0, self.trusted_until - self._clock()))

    def is_trusted(self) -> bool:
        """Return whether the holder may still trust this lease."""
        window = self._window
        return window is not None and self._clock() < window.ends

    def __getstate__(self) -> dict[str, Any]:
        # The trust window is left out: it uses this machine's clock, and extensions move it in this object only.
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy, for logs and events. It is never trusted, and cannot be extended or released."""
        vars(self).update(state)
        vars(self).update(_clock=_no_clock, _granted_at=0.0, _window=None, _in_doubt=[], _ended=True)

    def __repr__(self) -> str:
        if self._clock is _no_clock:
            state = "a copy, never trusted"
        elif self._ended:
            state = "released"
        else:
            state = f"trusted for {self.trusted_for().total_seconds():.3f} s"
        return f"<Lease {self.name!r} of {self.holder!r}, fencing token {self.fencing_token}, {state}>"

    # For providers. Each _begin_… method reads the clock or ends the trust before a request is sent.

    def has_ended(self) -> bool:
        """Return whether this lease was released."""
        return self._ended

    def is_being_released(self) -> bool:
        """Return whether a release or an undo has begun. From then on no request extends the lease, not even a sent
        one.
        """
        return self._is_being_released or self._ended

    def is_lost(self) -> bool:
        """Return whether the store has replied that it does not have this lease."""
        return self._lost

    def is_being_extended(self) -> bool:
        """Return whether an extension was sent and not confirmed. A failed extension stays in doubt."""
        return bool(self._in_doubt)

    def remaining_minimum(self) -> timedelta:
        """Return how much of ``lock_at_least_for`` is left, on the holder's clock."""
        if not self.lock_at_least_for:
            return timedelta(0)  # even if a user-supplied clock was set back
        return max(timedelta(0), self.lock_at_least_for - timedelta(seconds=self._clock() - self._granted_at))

    def _begin_extension(self, lock_at_most_for: Duration) -> Extension:
        """Plan an extension by ``lock_at_most_for`` from now. A shorter extension narrows the trust window."""
        return Extension(self, parse_duration(lock_at_most_for, "lock_at_most_for"))

    def _begin_release(self) -> timedelta:
        """End the trust. Return how long the store must still refuse the lock to other holders."""
        self._is_being_released = True
        self._window = None
        return self.remaining_minimum()

    def _end(self) -> None:
        """Mark the lease as released. Final."""
        self._ended = True
        self._window = None

    def _lose(self) -> None:
        """Mark the lease as lost. Not final: a wrong store that gets the lease by mistake must not end it."""
        self._lost = True
        self._window = None


class Extension(TrustWindow):
    """One extension while its request is under way. ``lock_for`` is the time to request from the store."""

    def __init__(self, lease: Lease, lock_at_most_for: timedelta) -> None:
        self._lease = lease
        was_lost = lease._lost
        self._lock_at_most_for = lock_at_most_for
        # An extension may shorten the lease, but never the minimum hold.
        self.lock_for = max(lock_at_most_for, lease.remaining_minimum())
        self._shortest = self.lock_for
        self._sent_at = lease._clock()
        # If the reply is lost, the store may have extended the lease or may do so later. Trust only the time that holds
        # in both cases.
        super().__init__(min(lease.trusted_until, trust_ends(self._sent_at, self.lock_for)))
        lease._in_doubt.append(self)
        lease._window = self
        # Check this last: meanwhile another thread may have begun a release, or learned that the lease is lost.
        if lease.is_being_released() or (lease._lost and not was_lost):
            lease._window = None

    def granted(self, *, repeated: bool = False) -> Lease:
        """Return the same lease with its new trust window. Call it when the store has confirmed the extension.

        :param repeated: the request was sent more than once, so the store may execute it again at any time.
        """
        lease = self._lease
        lease._in_doubt.remove(self)
        # The store may execute concurrent extensions in any order: any of them may be the last.
        for other in lease._in_doubt:
            self._shortest = min(self._shortest, other.lock_for)
            other._shortest = min(other._shortest, self.lock_for)
        if lease._shortest_repeated is not None:
            self._shortest = min(self._shortest, lease._shortest_repeated)
        if repeated:
            lease._shortest_repeated = min(self.lock_for, lease._shortest_repeated or self.lock_for)
        # This has no effect if another extension has begun meanwhile, or the trust has ended: the window has been
        # replaced.
        self.ends = trust_ends(self._sent_at, self._shortest)
        lease.lock_at_most_for = self._lock_at_most_for
        return lease
