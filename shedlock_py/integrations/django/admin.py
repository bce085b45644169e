"""The admin: lists of locks and runs from the provider, and the actions of operators on locks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import transaction
from django.http import HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.decorators import method_decorator

from shedlock_py.errors import ConfigurationError, ProviderError
from shedlock_py.events import OperatorAction
from shedlock_py.integrations.django import lock_provider
from shedlock_py.integrations.django.conf import read_settings
from shedlock_py.integrations.django.models import Lock, Run
from shedlock_py.model.record import LockRecord, Pause
from shedlock_py.model.request import is_valid_name
from shedlock_py.model.run import Run as HistoryRun
from shedlock_py.operators import changes, display

ROWS = 100
MOST_LOCKS = 200
"""The list of all runs shows the last runs of so many locks."""
NOT_DONE = "Not done"  # a prefix, because the admin capitalizes messages, and some begin with a lock name
ACTIONS: dict[OperatorAction, tuple[str, str, str]] = {
    "pause": ("shedlock.pause_lock", "Pause", "is paused"),
    "resume": ("shedlock.pause_lock", "Resume", "is resumed"),
    "force_release": ("shedlock.force_release_lock", "Free by force", "was freed by force"),
}
"""The permission of each action, its label, and its report."""


class _FromProvider(admin.ModelAdmin):
    """A list from the provider. Its model has no rows."""

    def _no_permission(self, *_: Any) -> bool:
        return False

    has_add_permission = has_change_permission = has_delete_permission = _no_permission

    def change_view(self, request: Any, object_id: str, *_: Any, **__: Any) -> HttpResponse:
        """Redirect to the list, because the admin's own history links here."""
        return self.back()

    def back(self) -> HttpResponse:
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:shedlock_{self.opts.model_name}_changelist"))

    def render(self, request: Any, template: str, **values: Any) -> HttpResponse:
        request.current_app = self.admin_site.name
        context = {**self.admin_site.each_context(request), "opts": self.opts, **values}
        return TemplateResponse(request, f"admin/shedlock/{template}.html", context)

    def shown(self, request: Any, template: str, read: Callable[[], list[Any]], **values: Any) -> HttpResponse:
        """Return a page of the rows from ``read``, or of its error."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        status = 200
        try:
            rows = read()
        except (ConfigurationError, ProviderError) as error:
            rows = []
            status = 503 if isinstance(error, ProviderError) else 200
            messages.error(request, f"Cannot be read: {display.printable(display.one_line(error))}")
        page = Paginator(rows, ROWS).get_page(request.GET.get("page"))
        response = self.render(request, template, page=page, **values)
        response.status_code = status
        return response


@admin.register(Lock)
class LockAdmin(_FromProvider):
    # With ATOMIC_REQUESTS on SQLite, a transaction of the view would wait for the provider's own connection. If the
    # transaction failed later, it would also lose the log of the changes.
    @method_decorator(transaction.non_atomic_requests)
    def changelist_view(self, request: Any, extra_context: Any = None) -> HttpResponse:
        if request.method == "POST":
            return self._change(request)
        prefix = request.GET.get("q", "")
        allowed = [
            (name, label) for name, (permission, label, _) in ACTIONS.items() if request.user.has_perm(permission)
        ]
        runs = reverse(f"{self.admin_site.name}:shedlock_run_changelist")
        return self.shown(
            request,
            "locks",
            lambda: [_lock_row(record) for record in lock_provider().records(prefix)],
            title="Locks",
            prefix=prefix,
            actions=allowed,
            runs=runs,
        )

    def _change(self, request: Any) -> HttpResponse:
        """Show the confirmation of the chosen action, or carry out a confirmed action."""
        action = cast(OperatorAction, request.POST.get("action", ""))
        if action not in ACTIONS:
            messages.warning(request, "Choose an action.")
            return self.back()
        if not request.user.has_perm(ACTIONS[action][0]) or not self.has_view_permission(request):
            raise PermissionDenied
        names = request.POST.getlist("name")
        if not names:
            messages.warning(request, "Choose locks.")
        try:
            if "confirmed" in request.POST:
                names = self._carry_out(request, action, names)
            return self._confirm(request, action, names)
        except ProviderError as error:
            messages.error(request, f"{NOT_DONE}: {display.printable(display.one_line(error))}")
            return self.back()

    def _confirm(self, request: Any, action: OperatorAction, names: list[str]) -> HttpResponse:
        """Return the page with the consequence for each lock."""
        wanted = []
        for name in names:
            try:
                changes.refuse(lock_provider(), action, name, read_settings().elections)
                wanted.append((name, changes.confirmation(lock_provider(), action, name, request.POST.dict())))
            except (changes.NotDone, ConfigurationError) as error:
                messages.warning(request, f"{NOT_DONE}: {display.printable(str(error))}")
        if not wanted:
            return self.back()
        return self.render(
            request,
            "confirm",
            title=ACTIONS[action][1],
            action=action,
            wanted=wanted,
            fields=wanted[0][1].fields,
        )

    def _carry_out(self, request: Any, action: OperatorAction, names: list[str]) -> list[str]:
        """Carry out the action for one lock after the other. Return the locks that need another value in the form."""
        seen = request.POST.getlist("seen")
        try:
            by = Pause.validated(request.user.get_username()).by
        except ConfigurationError:
            by = f"user {request.user.pk}"
        for number, name in enumerate(names):
            values: Mapping[str, str] = {**request.POST.dict(), "seen": "".join(seen[number : number + 1])}
            try:
                changes.refuse(lock_provider(), action, name, read_settings().elections)
                changes.carry_out(lock_provider(), action, name, values, by)
            except changes.NotDone as error:
                messages.warning(request, f"{NOT_DONE}: {error}")
            except ConfigurationError as error:
                messages.error(request, f"{NOT_DONE}: {display.printable(str(error))}")
                return names[number:]
            else:
                done = f"Lock {display.printable(name)!r} {ACTIONS[action][2]}."
                messages.success(request, done)
                self.log_change(request, Lock(name=name), done)
        return []


def _lock_row(record: LockRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "shown": display.printable(record.name),
        "state": display.state_of(record),
        "holder": display.holder_of(record),
        "since": display.local_iso(record.locked_at),
        "until": display.local_iso(record.lock_until),
        "token": display.token_of(record),
        "fire_time": display.local_iso(record.last_fire_time),
    }


@admin.register(Run)
class RunAdmin(_FromProvider):
    def changelist_view(self, request: Any, extra_context: Any = None) -> HttpResponse:
        name = request.GET.get("name", "")
        title = f"Runs of {display.printable(name)}" if name else "Runs"
        return self.shown(request, "runs", lambda: _run_rows(name), title=title, name=name)


def _run_rows(name: str) -> list[dict[str, Any]]:
    """Return the last runs of one lock, or of the locks that were held last. Newest first."""
    provider = lock_provider()
    if name:
        record = provider.record(name)
        runs: list[HistoryRun] = provider.runs(name)
        return [] if record is None else [_run_row(run, record) for run in runs]
    records = {record.name: record for record in provider.records() if is_valid_name(record.name)}
    names = sorted(records, key=lambda each: records[each].locked_at, reverse=True)[:MOST_LOCKS]
    found = [run for runs in provider.recent_runs(names).values() for run in runs]
    return [_run_row(run, records[run.name]) for run in sorted(found, key=lambda run: run.started, reverse=True)]


def _run_row(run: HistoryRun, record: LockRecord) -> dict[str, Any]:
    duration = display.duration_of(run, record)
    return {
        "shown": display.printable(run.name),
        "started": display.local_iso(run.started),
        "duration": display.NOTHING if duration is None else display.in_words(duration),
        "outcome": display.outcome_of(run, record),
        "holder": display.printable(run.holder),
        "token": str(run.fencing_token),
        "fire_time": display.local_iso(run.fire_time),
        "error": display.printable(run.error or display.NOTHING),
    }
