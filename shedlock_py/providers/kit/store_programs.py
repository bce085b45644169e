"""The class that the author of a store implements."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from shedlock_py.errors import ProviderError, ProviderUnreachable, hidden_frames
from shedlock_py.events import logger
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.lease import Claim, Clock, Lease, random_claim_id
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import LockRequest
from shedlock_py.model.run import Run, newest_first
from shedlock_py.provider import Check
from shedlock_py.providers.kit import upkeep
from shedlock_py.providers.kit.failures import Failure
from shedlock_py.providers.kit.fire_times import former_of, given_back
from shedlock_py.providers.kit.masking import Masking
from shedlock_py.providers.kit.options import DEFAULT_FIRE_TIME_TOLERANCE
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.program import Program

__tracebackhide__ = hidden_frames

HISTORY_PAUSE = 60.0
"""Seconds without history after a failed write, so that not every run waits for it."""


class StorePrograms(ABC):
    """The programs of one store. Each yields commands; the kit sends the replies.

    :param clock: the holder's monotonic clock, in seconds.
    :param timeout: the time limit of a whole operation. None if a user-supplied client has its own limits.
    :param fire_time_tolerance: how far a fire time may be ahead of the store's clock.
    :param passwords: secrets that must not appear in a message, as the URL or the driver writes them.
    :param names: other names in messages, such as the user, the hosts and the database. A password may be the same.
    :param history: the number of runs to keep for each name. 0 keeps no runs.
    """

    keeps_history: ClassVar[bool] = False
    """True for a store that can keep runs.

    While :meth:`is_history_on` is true, ``claim``, ``set_end`` and ``undo_claim`` write them. :meth:`runs` reads them.
    """
    recognises_retries: ClassVar[bool] = False
    """True for a store whose record shows that a repeated extend or release was already carried out.

    It must be True if the client repeats commands itself. The programs do not see that repetition. The first copy of a
    short extension could arrive late and cut a longer extension short, while the holder trusts the longer one.
    """

    def __init__(
        self,
        *,
        clock: Clock = monotonic,
        timeout: Duration | None = None,
        fire_time_tolerance: timedelta = DEFAULT_FIRE_TIME_TOLERANCE,
        passwords: Iterable[str] = (),
        names: Iterable[str] = (),
        history: int = 0,
    ) -> None:
        self.clock = clock
        self.history = history if self.keeps_history else 0
        self._history_resumes_at = float("-inf")
        self._has_warned_of_history = False
        self.new_claim_id: Callable[[], str] = random_claim_id
        """Source of the claim ids. A simulation sets a source that repeats its ids."""
        self.timeout = None if timeout is None else parse_duration(timeout, "timeout").total_seconds()
        """In seconds."""
        self.fire_time_tolerance = fire_time_tolerance
        self.masking = Masking(passwords, names)

    # Every store implements these.

    @abstractmethod
    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> Program[Any, Any, int | None]:
        """Grant the lock to ``claim`` and return its fencing token (0 if the store has no tokens), or None.

        Decide in one atomic step, by the store's clock. The step is idempotent: if the record already has this claim,
        return the token in the record. Grant a claim with a fire time only if that time is newer than the newest
        granted fire time. Raise :func:`fire_time_too_late` if it is later than now plus ``fire_time_tolerance``.

        :param force: take over the lock from any holder, but only if the record is still ``before`` (compare fencing
            tokens; None if there was no record). So a late copy of this command matches nothing. If
            ``claim.recoveries`` is not 0, the record must also have expired without a release, because its holder has
            died.
        """

    @abstractmethod
    def set_end(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> Program[Any, Any, bool]:
        """Let exactly this lease end ``lock_for`` from now. Return False if the store does not have it any more.

        After a release, an undo or a force release, an extension must not match, even if it waited for the record.
        """

    @abstractmethod
    def undo_claim(self, name: str, locked_by: str, former_fire_time: datetime | None) -> Program[Any, Any, bool]:
        """Free ``name`` at once if ``locked_by`` is still in its record. Return False if it is not.

        :param former_fire_time: replaces the newest fire time if that is later. None leaves it.
        """

    @abstractmethod
    def record(self, name: str) -> Program[Any, Any, LockRecord | None]:
        """Return the lock record of ``name``."""

    @abstractmethod
    def records(self, prefix: str) -> Program[Any, Any, list[LockRecord]]:
        """Return all lock records with names that start with ``prefix``. Other records and any order are allowed."""

    @abstractmethod
    def prune(self, unused_for: timedelta, prefix: str = "") -> Program[Any, Any, int]:
        """Delete the records that are free and were last held longer than ``unused_for`` ago.

        Delete only records with names that start with ``prefix``.
        """

    @abstractmethod
    def classify(self, error: Exception) -> Failure:
        """Return the meaning of an error that the client raised."""

    # Most stores implement these.

    def delete_fire_time(self, name: str, fire_time: datetime) -> Program[Any, Any, bool]:
        """Delete ``fire_time``, which was read before, from the record of ``name``. Return False if it is not there.

        Do this in one atomic step: a late copy must not delete a fire time that was granted since.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither delete_fire_time() nor forget_fire_time()")

    def create_schema(self) -> Program[Any, Any, None]:
        """Create the tables or other objects that the store needs. The default does nothing."""
        yield from ()

    def checks(self) -> Program[Any, Any, list[Check]]:
        """Check the store's settings and this user's rights: see :class:`Check`. The default checks nothing."""
        yield from ()
        return []

    def end_run(self, lease: Lease, *, is_lost: bool) -> Program[Any, Any, None]:
        """Write the end of a run, for a store that does not write it in :meth:`set_end`."""
        yield from ()

    def runs(self, name: str, limit: int) -> Program[Any, Any, list[Run]]:
        """Return the newest ``limit`` runs of ``name``, as they were written. Other runs and any order are allowed."""
        raise NotImplementedError(f"{type(self).__name__} keeps history, and has no runs()")

    def recent_runs(self, names: Sequence[str], limit: int) -> Program[Any, Any, list[Run]]:
        """Return the newest ``limit`` runs of each of ``names``. Override it if one command can read several names."""
        found: list[Run] = []
        for name in names:
            try:
                found += newest_first((yield from self.runs(name, limit)), limit)
            except ProviderUnreachable:
                raise
            except ProviderError as error:  # odd values of one name must not hide the others
                logger.warning("%s", error)
        return found

    # Errors

    def text_of(self, error: Exception) -> str:
        """Return the driver's message. The kit makes it one line, without passwords."""
        return str(error)

    def hint(self, error: Exception) -> str | None:
        """Return how the user can fix an error, if that is known."""
        return None

    def is_refusal(self, error: Exception, failure: Failure) -> bool:
        """Return whether the store replied with ``error``. If not, the caller gets a ``ProviderUnreachable``."""
        return failure is Failure.REFUSED

    def is_all_said(self, error: Exception) -> bool:
        """Return whether message and hint make the traceback of the driver's ``error`` unnecessary."""
        return False

    # Few stores replace these.

    def free(self, record: LockRecord) -> Program[Any, Any, bool]:
        """Free the lock at once if the store still has the acquisition of ``record``. Return False if it does not.

        Do this in one atomic step. The newest fire time becomes :func:`given_back`. The holder's release must then
        return False, and its run stays in the history. Override it in any of these cases:

        - ``undo_claim`` deletes the run;
        - a later release looks like a retry and returns True;
        - holders may lack claim ids.
        """
        return self.undo_claim(record.name, record.locked_by, given_back(record))

    def undo_acquire(self, claim: Claim) -> Program[Any, Any, bool]:
        """Undo an acquire that ``claim`` may have been granted. Return False if the record has another claim id."""
        request = claim.request
        return self.undo_claim(request.name, claim.locked_by, former_of(request.fire_time))

    def read_before_take_over(self, request: LockRequest) -> Program[Any, Any, LockRecord | None]:
        """Return the ``before`` of :meth:`claim`, or None if the store's claim itself reads the record to replace."""
        return self.record(request.name)

    def force_release(self, name: str, expected: LockRecord | None = None) -> Program[Any, Any, bool]:
        """See :func:`~shedlock_py.providers.kit.upkeep.force_release`."""
        return upkeep.force_release(self, name, expected)

    def forget_fire_time(self, name: str, expected: LockRecord | None = None) -> Program[Any, Any, bool]:
        """See :func:`~shedlock_py.providers.kit.upkeep.forget_fire_time`."""
        return upkeep.forget_fire_time(self, name, expected)

    # A store that writes history calls these. A history error must not fail the operation.

    def is_history_on(self) -> bool:
        """Return whether a grant or a release must write history, too."""
        return self.history > 0 and self.clock() >= self._history_resumes_at

    def history_failed(self, error: Exception) -> None:
        """Log that history could not be written, and pause history for a while. Only the first failure is a warning.

        The lock operation still succeeds.
        """
        self._history_resumes_at = self.clock() + HISTORY_PAUSE
        level = logging.DEBUG if self._has_warned_of_history else logging.WARNING
        self._has_warned_of_history = True
        logger.log(level, "the run history is not written, locks are not affected: %s", error)

    def resume_history(self) -> None:
        """Write history again, after the cause of the failure was fixed."""
        self._history_resumes_at = float("-inf")
