"""Reads of the page from a provider. Sync, for worker threads."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable
from shedlock_py.model import overdue
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import is_valid_name
from shedlock_py.model.run import Run
from shedlock_py.operators.display import one_line, printable
from shedlock_py.page.jobs import Job
from shedlock_py.provider import can

T = TypeVar("T")

FRESH = 2.0
"""A read also serves other requests for so many seconds."""
PRESENT_ONLY = "The page shows the present, but no past runs."


class Shared:
    """Reads that serve all requests of two seconds, because every open tab requests the same list."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._mutex = threading.Lock()
        self._reads: dict[object, _Read] = {}

    def get(self, key: object, read: Callable[[], T]) -> tuple[T, float]:
        """Return the result of ``read`` or of an earlier read for ``key``, and when that read began."""
        with self._mutex:
            self._reads = {each: found for each, found in self._reads.items() if found.is_fresh(self.clock())}
            is_first = key not in self._reads
            found = self._reads.setdefault(key, _Read(self.clock()))
        if is_first:
            try:
                found.future.set_result(read())
            except BaseException as error:
                found.future.set_exception(error)
            finally:
                found.ended = self.clock()
        return found.future.result(), found.began

    def forget(self) -> None:
        """Forget all reads, because something has changed."""
        with self._mutex:
            self._reads = {}


class _Read:
    def __init__(self, began: float) -> None:
        self.future: Future[Any] = Future()
        self.began, self.ended = began, math.inf

    def is_fresh(self, now: float) -> bool:
        return now - self.ended <= FRESH


class Store:
    """A provider, as one reply of the page needs it.

    :ivar why_no_history: why the page does not show runs, for people. Set when :meth:`runs` or :meth:`jobs` finds no
        run history. The page then shows everything else.
    """

    def __init__(self, provider: Any, shared: Shared | None = None) -> None:
        self._shared = shared or Shared()
        self._oldest = self._shared.clock()
        """When the oldest read of this reply began."""
        self._records_of: float | None = None
        """When the read of the records began."""
        self.provider: Any = provider  # with methods that LockProvider does not have
        self.why_no_history = f"This provider keeps no run history. {PRESENT_ONLY}"

    @property
    def shown(self) -> str:
        """The store's name for people. Providers hide the password of their URL."""
        return printable(repr(self.provider))

    def records(self) -> list[LockRecord]:
        records: list[LockRecord]
        records, self._records_of = self._read("records", self.provider.records)
        return records

    def runs(self, name: str, limit: int) -> list[Run] | None:
        """Return the last runs of one name, or None without run history."""
        if not can(self.provider, "runs"):
            return None
        if not is_valid_name(name):  # another program has written the record: runs() would refuse the name
            return []
        runs: list[Run] | None = self._history(lambda: self.provider.runs(name, limit))
        return runs

    def jobs(self, records: Sequence[LockRecord]) -> tuple[list[Job], bool]:
        """Return the jobs of ``records`` with their last runs, and whether run history exists. Send few requests."""
        names = tuple(record.name for record in records)

        def read() -> tuple[list[Job], str]:
            found = self._recent_runs(names)
            jobs = [Job(record, None if found is None else found.get(record.name, [])) for record in records]
            for job in jobs:  # computed here, once for all requests that wait
                _ = job.rank, job.next_in
            return jobs, self.why_no_history if found is None else ""

        # The key includes when the records were read: after a change, a later reply must not get these jobs.
        (jobs, why_not), _ = self._read(("jobs", self._records_of, *names), read)
        self.why_no_history = why_not or self.why_no_history
        return jobs, not why_not

    @property
    def has_history(self) -> bool:
        return self.jobs(())[1]

    def _recent_runs(self, names: Sequence[str]) -> dict[str, list[Run]] | None:
        if not can(self.provider, "runs"):
            return None
        return self._history(lambda: overdue.recent_runs(self.provider, names))

    def _read(self, key: object, read: Callable[[], T]) -> tuple[T, float]:
        found = self._shared.get(key, read)
        self._oldest = min(self._oldest, found[1])
        return found

    @property
    def age(self) -> float:
        """The age of this reply's oldest read, in seconds."""
        return self._shared.clock() - self._oldest

    def _history(self, read: Callable[[], T]) -> T | None:
        """Return the result of ``read``. None without history, or if only the history fails."""
        try:
            return read()
        except (
            ConfigurationError
        ) as error:  # its message says whether history= in the URL helps: some stores never have history
            why = printable(one_line(error))
            self.why_no_history = f"{why[:1].upper()}{why[1:]}. {PRESENT_ONLY}"
            return None
        except ProviderUnreachable:
            raise
        except ProviderError as error:
            self.why_no_history = f"The run history cannot be read: {printable(one_line(error))}"
            return None
