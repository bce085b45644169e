"""Check-ins at Sentry's cron monitors. Needs the extra ``sentry``. The application calls ``sentry_sdk.init()``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from shedlock_py import ConfigurationError, Event, LockAcquired, LockEvent, RunMissed, TaskFinished
from shedlock_py.integrations import REPORTED_MISSES, Label, Slugs, label_of, missing_extra

try:
    from sentry_sdk.crons import capture_checkin
except ModuleNotFoundError as error:
    raise missing_extra("sentry", "sentry-sdk", error) from error

if TYPE_CHECKING:
    from sentry_sdk.types import MonitorConfig

__all__ = ["SentryCronListener"]

T = TypeVar("T")

LONGEST_SLUG = 50
"""The longest slug of a monitor that Sentry takes, in characters."""


class SentryCronListener:
    """Checks in at Sentry's cron monitors: ``configure(…, listeners=[SentryCronListener()])``

    The replica that runs a job reports ``in_progress`` at the start. At the end it reports ``ok``, or ``error`` if the
    task raised or was cancelled, with the duration. A run that is finally lost reports ``error``. A skip and an
    unreachable store report nothing: Sentry notices a job that nobody runs. The SDK sends in its own thread, so jobs do
    not wait for Sentry.

    :param slugs: the monitor's slug for each lock name; other locks report nothing. By default all locks report, and
        the slug is the lock name in lower case, with "-" for all characters but a-z, 0-9 and "_", cut to 50 characters.
        A name without such characters does not report.
    :param configs: the configuration of monitors by lock name, as for ``capture_checkin``. Sentry creates or updates
        the monitor: ``{"nightly-report": {"schedule": {"type": "crontab", "value": "0 2 * * *"}}}``.
    :param label: returns the name of a monitor for a lock name. By default names that were filled from a template
        ("sync-{tenant}") share the monitor of their template. ``label=str`` gives each name its own monitor.
    :raises ConfigurationError: ``slugs`` or ``configs`` is not a mapping, or a slug is not valid.
    """

    def __init__(
        self,
        slugs: Mapping[str, str] | None = None,
        *,
        configs: Mapping[str, MonitorConfig] | None = None,
        label: Label | None = None,
    ) -> None:
        for what, given in (("slugs", slugs), ("configs", configs)):
            if given is not None and not isinstance(given, Mapping):
                raise ConfigurationError(f"{what} must be a mapping by lock name, not {given!r}")
        given_slugs: Mapping[str, Any] = slugs or {}
        for name, slug in given_slugs.items():
            if not isinstance(slug, str) or not re.fullmatch(f"[a-z0-9_-]{{1,{LONGEST_SLUG}}}", slug):
                raise ConfigurationError(
                    f"slugs[{name!r}] must be 1 to {LONGEST_SLUG} of a-z, 0-9, '-' and '_', not {slug!r}"
                )
        self._slugs = slugs
        self._made_slugs = Slugs(LONGEST_SLUG)
        self._configs = configs or {}
        self._label = label

    def __call__(self, event: Event) -> None:
        match event:
            case LockAcquired(_, lease):
                self._check_in(event, "in_progress", lease.claim_id, monitor_config=self._of(event, self._configs))
            case TaskFinished(_, lease, duration, outcome):
                status = "ok" if outcome == "succeeded" else "error"
                self._check_in(event, status, lease.claim_id, duration=duration.total_seconds())
            case RunMissed(_, _, reason) if reason in REPORTED_MISSES:
                self._check_in(event, "error", None)  # a check-in of its own

    def _check_in(self, event: LockEvent, status: str, claim_id: str | None, **more: Any) -> None:
        slug = self._slug_of(event)
        if slug:
            # The claim id serves as the check-in's id: 32 hexadecimal digits, new for each run.
            capture_checkin(monitor_slug=slug, check_in_id=claim_id, status=status, **more)

    def _slug_of(self, event: LockEvent) -> str | None:
        if self._slugs is None:
            return self._made_slugs.of(label_of(event.lock_name, event.template, self._label))
        return self._of(event, self._slugs)

    def _of(self, event: LockEvent, values: Mapping[str, T]) -> T | None:
        """Return the value for the lock name of ``event``, or else for its label."""
        return values.get(event.lock_name) or values.get(label_of(event.lock_name, event.template, self._label))
