"""The class that the author of a store implements: a few small programs."""

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
"""Seconds without history after it could not be written, so that not every run waits for it."""


class StorePrograms(ABC):
    """The programs of one store. Each yields commands; the kit sends the replies.

    :param clock: the holder's monotonic clock, in seconds.
    :param timeout: how long an operation may take in all; None: a user-supplied client has limits of its own.
    :param fire_time_tolerance: how far a fire time may lie in the future of the store's clock.
    :param passwords: what must not be in a message, each as the URL or as the driver writes it.
    :param names: what messages name besides, such as the user, the hosts and the database: a password may be the same.
    :param history: how many runs of each name to keep; 0: none.
    """

    keeps_history: ClassVar[bool] = False
    """True for a store that can keep runs: ``claim``, ``set_end`` and ``undo_claim`` write them while
    :meth:`is_history_on`, and there is :meth:`runs`."""
    recognises_retries: ClassVar[bool] = False
    """True for a store whose record shows that a repeated extend or release was carried out before.

    It must be true if the client repeats commands by itself: then the programs do not know that one was repeated, and
    the first copy of a short extension could arrive late and cut a longer one, while the holder trusts the longer one.
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
        """Where claims get their ids from. A simulation sets another source, whose ids it can repeat."""
        self.timeout = None if timeout is None else parse_duration(timeout, "timeout").total_seconds()
        """In seconds."""
        self.fire_time_tolerance = fire_time_tolerance
        self.masking = Masking(passwords, names)

    # Every store implements these.

    @abstractmethod
    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> Program[Any, Any, int | None]:
        """Grant the lock to ``claim``: its fencing token (0 where the store keeps none); None: it is not granted.

        In one atomic step, by the store's clock, and idempotent: a claim that finds itself in the record is granted
        with the token that is there. A claim with a fire time is granted only if that is newer than the newest granted
        one, and raises :func:`fire_time_too_late` if it is later than now plus ``fire_time_tolerance``.

        :param force: take over: grant it from any holder, but only if the record is still ``before`` (by its fencing
            token; None: there is no record). So a late copy of this command matches nothing. If ``claim.recoveries`` is
            not 0, only if it has expired, too, and was not released: its holder has died.
        """

    @abstractmethod
    def set_end(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> Program[Any, Any, bool]:
        """Let exactly this lease end ``lock_for`` from now. False: the store does not have it any more.

        After a release, an undo or a force release no extension matches, not even one that waited for the record.
        """

    @abstractmethod
    def undo_claim(self, name: str, locked_by: str, former_fire_time: datetime | None) -> Program[Any, Any, bool]:
        """Free ``name`` at once if ``locked_by`` is still in its record. False: it is not.

        :param former_fire_time: what the newest fire time becomes, where it is later; None: leave it.
        """

    @abstractmethod
    def record(self, name: str) -> Program[Any, Any, LockRecord | None]:
        """The lock record of ``name``."""

    @abstractmethod
    def records(self, prefix: str) -> Program[Any, Any, list[LockRecord]]:
        """All lock records whose names start with ``prefix``, and perhaps others, in any order."""

    @abstractmethod
    def prune(self, unused_for: timedelta) -> Program[Any, Any, int]:
        """Delete the records that are free and were last held longer than ``unused_for`` ago."""

    @abstractmethod
    def classify(self, error: Exception) -> Failure:
        """What an error that the client raised means."""

    # Most stores implement these.

    def delete_fire_time(self, name: str, fire_time: datetime) -> Program[Any, Any, bool]:
        """Delete ``fire_time``, which was read, from the record of ``name``. False: the record does not have it.

        In one atomic step: a late copy must not delete one that was granted since.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither delete_fire_time() nor forget_fire_time()")

    def create_schema(self) -> Program[Any, Any, None]:
        """Create what the store needs. Nothing by default."""
        yield from ()

    def checks(self) -> Program[Any, Any, list[Check]]:
        """What the store says of its settings and this user's rights: see :class:`Check`. Nothing by default."""
        yield from ()
        return []

    def end_run(self, lease: Lease, *, is_lost: bool) -> Program[Any, Any, None]:
        """Write the end of a run that has none, for a store whose :meth:`set_end` does not write it."""
        yield from ()

    def runs(self, name: str, limit: int) -> Program[Any, Any, list[Run]]:
        """The newest ``limit`` runs of ``name``, and perhaps others, in any order, each as it was written."""
        raise NotImplementedError(f"{type(self).__name__} keeps history, and has no runs()")

    def recent_runs(self, names: Sequence[str], limit: int) -> Program[Any, Any, list[Run]]:
        """The newest ``limit`` runs of each of ``names``. A store replaces this where one command reads several."""
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
        """The driver's message. The kit makes one line of it, without passwords."""
        return str(error)

    def hint(self, error: Exception) -> str | None:
        """What the user can do about an error, if that is known."""
        return None

    def is_refusal(self, error: Exception, failure: Failure) -> bool:
        """Whether the store replied with ``error``. If not, the caller gets a ``ProviderUnreachable``."""
        return failure is Failure.REFUSED

    def is_all_said(self, error: Exception) -> bool:
        """Whether message and hint make the traceback of the driver's ``error`` unnecessary."""
        return False

    # Few stores replace these.

    def free(self, record: LockRecord) -> Program[Any, Any, bool]:
        """Free the lock at once if the store still has the acquisition of ``record``. False: it has not.

        In one atomic step. The newest fire time becomes :func:`given_back`. The holder's release must then return
        False, and its run stays in the history. A store replaces this if ``undo_claim`` deletes the run. It also
        replaces this if a release after it looks like a retry and returns True, or if its holders may lack claim ids.
        """
        return self.undo_claim(record.name, record.locked_by, given_back(record))

    def undo_acquire(self, claim: Claim) -> Program[Any, Any, bool]:
        """Undo an acquire that may have been granted to ``claim``. False: the record has another claim id."""
        request = claim.request
        return self.undo_claim(request.name, claim.locked_by, former_of(request.fire_time))

    def read_before_take_over(self, request: LockRequest) -> Program[Any, Any, LockRecord | None]:
        """What :meth:`claim` gets as ``before``. A store whose claim reads what it replaces by itself returns None."""
        return self.record(request.name)

    def force_release(self, name: str, expected: LockRecord | None = None) -> Program[Any, Any, bool]:
        """See :func:`~shedlock_py.providers.kit.upkeep.force_release`."""
        return upkeep.force_release(self, name, expected)

    def forget_fire_time(self, name: str, expected: LockRecord | None = None) -> Program[Any, Any, bool]:
        """See :func:`~shedlock_py.providers.kit.upkeep.forget_fire_time`."""
        return upkeep.forget_fire_time(self, name, expected)

    # A store that writes history calls these. An error of history is no error of the operation.

    def is_history_on(self) -> bool:
        """Whether a grant or a release is to write history as well."""
        return self.history > 0 and self.clock() >= self._history_resumes_at

    def history_failed(self, error: Exception) -> None:
        """History could not be written: one warning, and no further attempt for a while. The lease counts."""
        self._history_resumes_at = self.clock() + HISTORY_PAUSE
        level = logging.DEBUG if self._has_warned_of_history else logging.WARNING
        self._has_warned_of_history = True
        logger.log(level, "the run history is not written, locks are not affected: %s", error)

    def resume_history(self) -> None:
        """Write history again, after its cause of failure was mended."""
        self._history_resumes_at = float("-inf")
