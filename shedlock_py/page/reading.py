"""What the page reads from a provider. Sync, for worker threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from shedlock_py import overdue
from shedlock_py.display import one_line, printable
from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable
from shedlock_py.history import Run
from shedlock_py.provider import LockProvider, can
from shedlock_py.record import LockRecord
from shedlock_py.request import is_valid_name

T = TypeVar("T")

PRESENT_ONLY = "The page knows the present and not the past."


class Store:
    """A provider, as one reply of the page needs it.

    :ivar why_no_history: why there are no runs, for people to read, once :meth:`runs` or :meth:`recent_runs` has
        returned None. Without history, the page shows what it can.
    """

    def __init__(self, provider: Any) -> None:
        self.provider: Any = provider  # with methods that LockProvider does not have
        self.locks: LockProvider = provider
        self.why_no_history = f"This provider keeps no run history. {PRESENT_ONLY}"

    @property
    def shown(self) -> str:
        """The store for people to read; providers hide the password of their URL."""
        return printable(repr(self.provider))

    def records(self) -> list[LockRecord]:
        return self.locks.records()

    def runs(self, name: str, limit: int) -> list[Run] | None:
        """The last runs of one name; None: this provider keeps no history."""
        if not can(self.provider, "runs"):
            return None
        if not is_valid_name(name):  # another program has written its record; it has no runs
            return []
        runs: list[Run] | None = self._history(lambda: self.provider.runs(name, limit))
        return runs

    def recent_runs(self, names: Sequence[str]) -> dict[str, list[Run]] | None:
        """The last runs of each of ``names``, in few requests; None: this provider keeps no history."""
        if not can(self.provider, "runs"):
            return None
        return self._history(lambda: overdue.recent_runs(self.provider, names))

    def _history(self, read: Callable[[], T]) -> T | None:
        """What ``read`` returns; None if there is no history, or only that part of the store fails."""
        try:
            return read()
        except ConfigurationError as error:  # says whether history= in the URL helps: some stores keep none
            why = printable(one_line(error))
            self.why_no_history = f"{why[:1].upper()}{why[1:]}. {PRESENT_ONLY}"
            return None
        except ProviderUnreachable:
            raise
        except ProviderError as error:
            self.why_no_history = f"The run history cannot be read: {printable(one_line(error))}"
            return None
