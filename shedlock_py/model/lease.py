"""A lease, from the claim to its end, and until when its holder may trust it.

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

States: trusted, by the clock; being released (``_begin_release``), in which nothing gives trust back; then ended
(``end``: the store has released it; final) or lost (``lose``: the store does not have it). The kit's programs of
extend, release and undo call these methods; keep-alive and elections call ``lose``, too, for a lease that they give up.
A store's own programs call none of them. Whether listeners were notified of a loss is no state of the lease, but
``context.ActiveLease.is_loss_reported``.

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
"""Monotonic seconds."""
RunOutcome = Literal["ok", "failed", "cancelled", "lost", "vanished"]
"""How a run ended, in run history: the task returned; raised; was cancelled; outlived its lease or lost it to another
holder; or never reported an end, and another run has followed."""

CLAIM_ID_BYTES = 16
MOST_RECOVERIES = 15
"""The first hexadecimal digit of a claim id counts them."""
_NEVER = float("-inf")


def random_claim_id() -> str:
    """A new claim id from the system's random numbers, which a forked child does not repeat."""
    return os.urandom(CLAIM_ID_BYTES).hex()


class Claim:
    """One acquisition while its request is under way. Make it before the first byte is sent: it reads the clock.

    :param new_claim_id: returns a claim id that was never used before; a simulation passes one that is repeatable.
    :param recoveries: how often this fire time will have been recovered; 0: this claim recovers no run.
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
        """What the programs of the store want to find in :attr:`Lease.note`."""
        self._clock = clock
        self._new_claim_id = new_claim_id
        self.renew()

    def renew(self) -> None:
        """Take a new claim id. A request with the former one may reach the store late, and matches nothing."""
        self.claim_id = f"{self.recoveries:x}{self._new_claim_id()[1:]}"
        self.locked_by = f"{self.request.holder}#{self.claim_id}"
        self._sent_at = self._clock()

    def restart_clock(self) -> None:
        """Read the clock again: no request that was sent before can grant the lease any more."""
        self._sent_at = self._clock()

    def granted(self, fencing_token: int | None) -> Lease:
        """The lease that the store has granted. Call it when the reply is there: it reads the clock again."""
        lease = Lease(self.request, self.claim_id, fencing_token, self._clock, self._sent_at)
        lease._note = self.note
        return lease


def _no_clock() -> float:
    """The clock of a copied lease."""
    return 0.0


class TrustWindow:
    """Until when the reply to one request lets the holder trust its lease, in seconds of the holder's clock."""

    def __init__(self, ends: float) -> None:
        self.ends = ends


class Lease:
    """Time-bounded possession of one lock: what ``acquire`` returns when it was granted.

    A lease is one object from acquire to release; extending moves its trust window. Rely on it only while
    :meth:`is_trusted` is true: each call computes it from the local monotonic clock, and it becomes False *before* the
    store can grant the lock to another holder.

    One thread or task at a time may extend or release a lease. A copy (``pickle``, ``copy``) is not trusted.
    """

    name: str
    template: str | None
    """What ``name`` was filled from, if anything."""
    holder: str
    claim_id: str
    """New for every acquisition: proves *this* acquisition to the store. Random, but for the first digit: 0, or how
    often this fire time was recovered."""
    fencing_token: int | None
    """Grows with every acquisition of this name. None where the store keeps none (``extra_columns=False``)."""
    locked_by: str
    """Holder and claim id as the lock record has them."""
    lock_at_most_for: timedelta
    lock_at_least_for: timedelta
    fire_time: datetime | None
    """The fire time that was granted with it, if the request had one; None after a take-over, which records a
    fire time without checking it."""
    outcome: RunOutcome = "ok"
    """For run history: how the task ended. Set it before the release. A lease that was lost is kept as "lost"."""
    error: str | None = None
    """For run history: type and first line of what the task raised."""
    _note: object = None
    """For the programs of the store: the version of the lock record, for example."""
    _shortest_repeated: timedelta | None = None
    """The shortest of the extensions that the store may execute again at any time."""
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
        # The latest moment at which the store can have granted it: the minimum hold counts from here.
        self._granted_at = clock()
        # Of the grant, or of the extension that was sent last; None: nothing is trusted. Replaced in one step, as
        # another thread may confirm an extension that is no longer the last, or end the trust.
        self._window: TrustWindow | None = TrustWindow(trust_ends(sent_at, request.lock_at_most_for))
        self._in_doubt: list[Extension] = []

    @property
    def trusted_until(self) -> float:
        """Until when the holder may trust this lease, in seconds of its own monotonic clock."""
        window = self._window
        return _NEVER if window is None else window.ends

    def now(self) -> float:
        """The holder's monotonic clock, which this lease counts on, in seconds. Of a test it may be a FakeClock."""
        return self._clock()

    def trusted_for(self) -> timedelta:
        """For how long from now the holder may trust this lease; zero when no longer."""
        return timedelta(seconds=max(0.0, self.trusted_until - self._clock()))

    def is_trusted(self) -> bool:
        """Whether the holder may still trust this lease."""
        window = self._window
        return window is not None and self._clock() < window.ends

    def __getstate__(self) -> dict[str, Any]:
        # Not the trust window: it counts on the clock of this machine, and extensions move it in this object only.
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy (of ``pickle`` or ``copy``) is for logs and events: never trusted, and nothing can be done to it."""
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

    # For providers. Each begin_… reads the clock or ends the trust before a request is sent.

    def has_ended(self) -> bool:
        """Whether this lease was released: there is nothing left to do in the store."""
        return self._ended

    def is_being_released(self) -> bool:
        """Whether a release or an undo has begun. From then on nothing extends it, not even what is under way."""
        return self._is_being_released or self._ended

    def is_lost(self) -> bool:
        """Whether the store has replied that it does not have this lease."""
        return self._lost

    def is_being_extended(self) -> bool:
        """Whether an extension was sent and is not confirmed; one that failed stays so."""
        return bool(self._in_doubt)

    def remaining_minimum(self) -> timedelta:
        """What is left of ``lock_at_least_for``, on the holder's own clock."""
        if not self.lock_at_least_for:
            return timedelta(0)  # also when a clock that the user has passed was set back
        return max(timedelta(0), self.lock_at_least_for - timedelta(seconds=self._clock() - self._granted_at))

    def _begin_extension(self, lock_at_most_for: Duration) -> Extension:
        """Plan an extension by ``lock_at_most_for`` from now; narrows the trust window if that is shorter."""
        return Extension(self, parse_duration(lock_at_most_for, "lock_at_most_for"))

    def _begin_release(self) -> timedelta:
        """End the trust. Returns for how long the store must still refuse the lock to others."""
        self._is_being_released = True
        self._window = None
        return self.remaining_minimum()

    def _end(self) -> None:
        """It was released. Final."""
        self._ended = True
        self._window = None

    def _lose(self) -> None:
        """The store does not have it. Not final: another store that gets the lease by mistake must not end it."""
        self._lost = True
        self._window = None


class Extension(TrustWindow):
    """One extension while its request is under way. ``lock_for`` is the time to request from the store."""

    def __init__(self, lease: Lease, lock_at_most_for: timedelta) -> None:
        self._lease = lease
        was_lost = lease._lost
        self._lock_at_most_for = lock_at_most_for
        # An extension may be shorter than what was left, but never cuts the minimum hold.
        self.lock_for = max(lock_at_most_for, lease.remaining_minimum())
        self._shortest = self.lock_for
        self._sent_at = lease._clock()
        # If the reply is lost, the store may have extended or may do so later: trust only what is true either way.
        super().__init__(min(lease.trusted_until, trust_ends(self._sent_at, self.lock_for)))
        lease._in_doubt.append(self)
        lease._window = self
        # Checked last: another thread may have begun to release it meanwhile, or have learned that it is lost.
        if lease.is_being_released() or (lease._lost and not was_lost):
            lease._window = None

    def granted(self, *, repeated: bool = False) -> Lease:
        """The same lease with its new trust window, after the store has confirmed the extension.

        :param repeated: the request was sent more than once, so the store may execute it again, at any time.
        """
        lease = self._lease
        lease._in_doubt.remove(self)
        # Of extensions that were under way at the same time, any may be the last that the store executed.
        for other in lease._in_doubt:
            self._shortest = min(self._shortest, other.lock_for)
            other._shortest = min(other._shortest, self.lock_for)
        if lease._shortest_repeated is not None:
            self._shortest = min(self._shortest, lease._shortest_repeated)
        if repeated:
            lease._shortest_repeated = min(self.lock_for, lease._shortest_repeated or self.lock_for)
        # Without effect if another extension has begun meanwhile, or the trust has ended: then the lease has another
        # window, or none.
        self.ends = trust_ends(self._sent_at, self._shortest)
        lease.lock_at_most_for = self._lock_at_most_for
        return lease
