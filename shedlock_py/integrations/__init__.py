"""Adapters to tools that run or watch jobs. Each adapter is an extra. This module has their shared parts."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, get_args

from shedlock_py.events import MissReason, logger
from shedlock_py.guard.context import running
from shedlock_py.guard.shutdown import describe

Label = Callable[[str], str]
REPORTED_MISSES = frozenset(get_args(MissReason)) - {"held", "contested", "unreachable", "cancelled"}
"""The reasons of a ``RunMissed`` that becomes a failed check-in.

If the lock was held or contested, or the store was unreachable, another replica may have run the job; otherwise the
monitoring service misses the job. A cancelled run has already checked in as failed.
"""


def label_of(name: str, template: str | None, label: Label | None) -> str:
    """Return the label of a lock name: by ``label`` if given, else the name's template, else the name."""
    return label(name) if label else template or name


def slug_of(name: str) -> str:
    """Return ``name`` as the slug of a check: a-z, 0-9, "-" and "_". Empty if ``name`` has no such character."""
    return re.sub("[^a-z0-9_]+", "-", name.lower()).strip("-")


MOST_LABELS = 10_000
"""The number of labels that a process remembers, because names may be made at run time."""


class Slugs:
    """The slugs of labels. Warns once about a label without a slug, and about a label that shares a slug.

    :param longest: the longest slug that the service takes, in characters.
    """

    def __init__(self, longest: int | None = None) -> None:
        self._longest = longest
        self._slugs: dict[str, str] = {}
        self._labels: dict[str, str] = {}
        """The first label of each slug."""

    def of(self, label: str) -> str:
        slug = self._slugs.get(label)
        if slug is None:
            slug = slug_of(label)[: self._longest]
            if len(self._slugs) >= MOST_LABELS:
                return slug
            self._slugs[label] = slug
            first = self._labels.setdefault(slug, label)
            if not slug:
                logger.warning(
                    "lock %r does not check in: its name has no a-z, 0-9 or _; give it another name by label=",
                    label,
                )
            elif first != label:
                logger.warning(
                    "locks %r and %r share the check %r: if one job stops, the check-ins of the other hide it; give "
                    "one lock another name by label=",
                    first,
                    label,
                    slug,
                )
        return slug


def missing_extra(extra: str, package: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error for an integration if its package is not installed."""
    return ModuleNotFoundError(
        f"shedlock_py.integrations.{extra} needs the package {package!r}: pip install 'shedlock_py[{extra}]'",
        name=error.name,
    )


# The end of an application: drain the schedulers, shut them down, then close the store.


def is_scheduler(item: object) -> bool:
    """Return whether ``item`` is a scheduler of APScheduler. APScheduler may not be installed."""
    schedulers: Any = sys.modules.get("apscheduler.schedulers.base")
    return schedulers is not None and isinstance(item, schedulers.BaseScheduler)


def stop_item(item: Any) -> Any:
    """Stop an elector, or a drained scheduler."""
    if is_scheduler(item):
        return item.shutdown(wait=False) if item.running else None
    return item.shutdown() if hasattr(item, "shutdown") else item.stop()


def drain_schedulers(items: Iterable[Any], seconds: float) -> None:
    """Let the schedulers among ``items`` begin no new runs, and wait for their runs for at most ``seconds``."""
    if schedulers := list(filter(is_scheduler, items)):
        from shedlock_py.integrations.apscheduler.drain import stop_beginning, wait_for_runs  # late: needs APScheduler

        wait_for_runs(stop_beginning(*schedulers), seconds)


async def drain_schedulers_async(items: Iterable[Any], seconds: float) -> None:
    """Like :func:`drain_schedulers`, for asyncio."""
    if schedulers := list(filter(is_scheduler, items)):
        from shedlock_py.integrations.apscheduler.drain import stop_beginning, wait_for_runs_async

        await wait_for_runs_async(stop_beginning(*schedulers), seconds)


def warn_of_running(provider: Any) -> bool:
    """Return whether guarded tasks of this process still use ``provider``, and warn about them.

    Such a provider must not be closed.
    """
    store = getattr(provider, "sync_provider", provider)
    left = [active for active in list(running) if active.owner.is_current() and active.provider is store]
    if left:
        names = ", ".join(sorted({describe(active) for active in left}))
        logger.warning("still running after the drain time, so their leases are kept until the process ends: %s", names)
    return bool(left)
