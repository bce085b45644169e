"""Adapters to tools that run or watch jobs, each of which is an extra. Here: what several of them share."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, get_args

from shedlock_py.events import MissReason, logger
from shedlock_py.guard.context import running
from shedlock_py.guard.shutdown import describe

Label = Callable[[str], str]
REPORTED_MISSES = frozenset(get_args(MissReason)) - {"unreachable", "cancelled"}
"""The reasons of a ``RunMissed`` that is a failed check-in. Where the store was unreachable, another replica may have
run the job; if none did, the monitoring service misses it. A run that was cancelled has checked in as failed."""


def label_of(name: str, template: str | None, label: Label | None) -> str:
    """The label of a lock name: by ``label`` if there is one, else its template if it was filled from one."""
    return label(name) if label else template or name


def slug_of(name: str) -> str:
    """``name`` as monitoring services name a check: of a-z, 0-9, "-" and "_". Empty: it has none of these."""
    return re.sub("[^a-z0-9_]+", "-", name.lower()).strip("-")


MOST_LABELS = 10_000
"""The number of labels that a process remembers. Names may be made at run time."""


class Slugs:
    """The slugs of labels. Warns once of each label that has none, or that shares the slug of another one.

    :param longest: how many characters of a slug the service takes.
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
                    "lock %r does not check in: none of a-z, 0-9 and _ is in its name; give it such a name by label=",
                    label,
                )
            elif first != label:
                logger.warning(
                    "locks %r and %r share the check %r: if one stops, the check-ins of the other hide it; give one "
                    "another name by label=",
                    first,
                    label,
                    slug,
                )
        return slug


def missing_extra(extra: str, package: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error for an integration whose package is not installed."""
    return ModuleNotFoundError(
        f"shedlock_py.integrations.{extra} needs the package {package!r}: pip install 'shedlock_py[{extra}]'",
        name=error.name,
    )


# How an application ends: its schedulers are drained and shut down, and its store is closed last.


def is_scheduler(item: object) -> bool:
    """Whether ``item`` is a scheduler of APScheduler, which may not be installed."""
    schedulers: Any = sys.modules.get("apscheduler.schedulers.base")
    return schedulers is not None and isinstance(item, schedulers.BaseScheduler)


def stop_item(item: Any) -> Any:
    """Stop a scheduler after its jobs were waited for, or an elector."""
    if is_scheduler(item):
        return item.shutdown(wait=False) if item.running else None
    return item.shutdown() if hasattr(item, "shutdown") else item.stop()


def drain_schedulers(items: Iterable[Any], seconds: float) -> None:
    """Let the schedulers among ``items`` begin no run, and wait for the runs of all of them, so long at most."""
    if executors := _stop_beginning(items):
        from shedlock_py.integrations.apscheduler.drain import wait_for_runs

        wait_for_runs(executors, seconds)


async def drain_schedulers_async(items: Iterable[Any], seconds: float) -> None:
    """:func:`drain_schedulers` for asyncio."""
    if executors := _stop_beginning(items):
        from shedlock_py.integrations.apscheduler.drain import wait_for_runs_async

        await wait_for_runs_async(executors, seconds)


def _stop_beginning(items: Iterable[Any]) -> list[Any]:
    """Let the schedulers among ``items`` begin no run, and return their executors."""
    schedulers = list(filter(is_scheduler, items))
    if not schedulers:
        return []
    from shedlock_py.integrations.apscheduler.drain import executors_of, stop_beginning

    for scheduler in schedulers:
        stop_beginning(scheduler)
    return executors_of(*schedulers)


def warn_of_running(provider: Any) -> bool:
    """Whether guarded tasks of this process still use ``provider``: it must not be closed, and a warning names them."""
    store = getattr(provider, "sync_provider", provider)
    left = [active for active in list(running) if active.owner.is_current() and active.provider is store]
    if left:
        names = ", ".join(sorted({describe(active) for active in left}))
        logger.warning("still running after the drain time, their leases are kept until the process ends: %s", names)
    return bool(left)
