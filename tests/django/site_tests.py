"""Tests that Django's runner runs in a real project, on a test database: ``test_site.py`` starts them."""

from __future__ import annotations

import asyncio
import html
import io
import signal
import threading
from typing import Any
from unittest import mock

from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core import checks
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings

from shedlock_py import InMemoryLockProvider, LockRequest, ProviderUnreachable, Skipped, scheduler_lock
from shedlock_py.integrations.django import lock_provider
from shedlock_py.operators import changes

LOCKS = "/admin/shedlock/lock/"
RUNS = "/admin/shedlock/run/"
HOSTILE = "evil<script>\u202e"


@scheduler_lock("guarded", "30m", "0s")
def guarded() -> str:
    return "done"


@scheduler_lock("guarded-async", "30m", "0s")
async def guarded_async() -> str:
    return threading.current_thread().name


class PageTest(TestCase):
    """A test case with short messages: Django's would show the whole page."""

    def assertContains(self, page: Any, text: str, count: int | None = None, status_code: int = 200) -> None:
        shown = html.unescape(page.content.decode()).partition('id="content-start"')[2].partition("<footer")[0]
        assert page.status_code == status_code, page
        assert shown.count(text) == count if count is not None else text in shown, f"{text!r} in {shown}"

    def assertNotContains(self, page: Any, text: str) -> None:
        assert text not in page.content.decode(), text


class TestDatabaseTest(TransactionTestCase):
    """The locks are in Django's test database; the real database is not touched."""

    def test_a_guard_uses_the_test_database(self) -> None:
        assert guarded() == "done"
        record = lock_provider().record("guarded")
        assert record is not None
        assert (connection.vendor == "sqlite") is isinstance(lock_provider().current(), InMemoryLockProvider)
        if connection.vendor != "sqlite":
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM shedlock WHERE name = 'guarded'")
                assert cursor.fetchone() == (1,)
        assert lock_provider().runs("guarded")[0].outcome == "ok"  # HISTORY is on

    def test_no_connection_stays_open(self) -> None:
        guarded()
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
                assert cursor.fetchone() == (1,)

    def test_another_thread_is_skipped(self) -> None:
        lease = lock_provider().acquire(LockRequest("guarded", "10m"))
        assert lease is not None
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(guarded.attempt()))
        thread.start()
        thread.join()
        assert isinstance(found[0], Skipped)
        assert lock_provider().release(lease)

    def test_async_code_uses_the_sync_provider_in_a_worker_thread(self) -> None:
        assert asyncio.run(guarded_async()) == threading.current_thread().name  # the task itself runs on the event loop
        assert lock_provider().record("guarded-async") is not None

    def test_flush_keeps_the_locks(self) -> None:
        guarded()
        call_command("flush", verbosity=0, interactive=False)
        assert lock_provider().record("guarded") is not None


class OrmTest(TestCase):
    """The models never have rows, whatever the table contains."""

    def test_dumpdata_leaves_locks_out(self) -> None:
        guarded()
        for arguments in ([], ["--all"]):
            output = io.StringIO()
            call_command("dumpdata", "shedlock", *arguments, stdout=output)
            assert output.getvalue().strip() == "[]"

    def test_the_migration_is_complete(self) -> None:
        call_command("makemigrations", "--check", "--dry-run", verbosity=0)

    def test_call_command_does_not_run_or_lead(self) -> None:
        """They would block this process's signals and replace the library's settings."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        for words in (["run", "job", "--at-most", "1m"], ["lead", "election"]):
            with self.assertRaisesRegex(CommandError, "subprocess"):  # noqa: PT027 (Django runs this, not pytest)
                call_command("shedlock", *words, "--", "true")
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
        assert lock_provider().record("job") is lock_provider().record("election") is None

    def test_call_command_writes_to_the_given_streams_and_exits_with_its_code(self) -> None:
        guarded()
        output, errors = io.StringIO(), io.StringIO()
        if connection.vendor == "sqlite":
            return  # locks in memory belong to this process: shedlock list refuses or warns
        call_command("shedlock", "list", "guarded", stdout=output)
        assert "guarded" in output.getvalue()
        with self.assertRaises(SystemExit) as raised:  # noqa: PT027 (Django runs this, not pytest)
            call_command("shedlock", "resume", "guarded", stdout=output, stderr=errors)
        assert raised.exception.code == 1
        assert "lock 'guarded' is not paused" in errors.getvalue()


class AdminTest(PageTest):
    def setUp(self) -> None:
        for record in lock_provider().records():
            lock_provider().force_release(record.name)
        lock_provider().prune("0s")
        self.client.force_login(User.objects.create_superuser("alice"))

    def log_in_with(self, *permissions: str) -> None:
        user = User.objects.create_user("bob", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        self.client.force_login(user)

    def confirm(self, action: str, name: str, **values: str) -> Any:
        """Choose the action, read the page that names the consequence, and submit its form."""
        page = self.client.post(LOCKS, {"action": action, "name": name})
        seen = [each.seen for _, each in page.context["wanted"]]
        fields = {field.name: field.value for field in page.context["fields"]}
        data = {"action": action, "confirmed": "yes", "name": name, "seen": seen, **fields, **values}
        return self.client.post(LOCKS, data, follow=True)

    def acquire(self, name: str) -> Any:
        return lock_provider().acquire(LockRequest(name, "10m", holder="host-1"))

    def test_the_lists_show_locks_and_runs_and_can_be_searched(self) -> None:
        self.acquire("nightly-report")
        self.acquire("other")
        page = self.client.get(LOCKS)
        self.assertContains(page, "nightly-report")
        self.assertContains(page, "host-1")
        self.assertNotContains(self.client.get(LOCKS, {"q": "nightly"}), "other")
        page = self.client.get(RUNS)
        self.assertContains(page, "running", 2)
        self.assertContains(self.client.get(RUNS, {"name": "other"}), "running", 1)
        self.assertContains(self.client.get("/admin/"), "/admin/shedlock/lock/")

    def test_nothing_can_be_added_changed_or_deleted(self) -> None:
        self.acquire("nightly-report")
        assert self.client.get(f"{LOCKS}add/").status_code == 403
        assert self.client.get(f"{LOCKS}nightly-report/change/").url == LOCKS
        assert self.client.post(f"{LOCKS}nightly-report/delete/", {"post": "yes"}).status_code in (302, 403)
        assert lock_provider().record("nightly-report") is not None

    def test_names_cannot_inject_html(self) -> None:
        lock_provider().pause("a", "1h", HOSTILE, by="mallory<b>")
        page = self.client.get(LOCKS)
        self.assertNotContains(page, "<script>\u202e")
        self.assertNotContains(page, "mallory<b>")
        self.assertContains(page, "evil<script>\\u202e")

    def test_pause_and_resume(self) -> None:
        page = self.client.post(LOCKS, {"action": "pause", "name": ["a", "b"]})
        self.assertContains(page, "No replica starts a until the pause ends")
        self.assertContains(page, "No replica starts b until the pause ends")
        assert lock_provider().record("a") is None  # nothing has happened yet
        data = {"action": "pause", "confirmed": "yes", "name": ["a", "b"], "seen": ["", ""], "for": "2h", "why": "move"}
        page = self.client.post(LOCKS, data, follow=True)
        self.assertContains(page, "Lock 'a' is paused.")
        self.assertContains(page, "Lock 'b' is paused.")
        record = lock_provider().record("a")
        assert record is not None
        assert record.pause is not None
        assert (record.is_paused, record.pause.by, record.pause.reason) == (True, "alice", "move")
        page = self.client.post(LOCKS, {"action": "resume", "name": "a"})
        self.assertContains(page, "the next run takes place at its next time")
        self.assertContains(self.confirm("resume", "a"), "Lock 'a' is resumed.")
        record = lock_provider().record("a")
        assert record is not None
        assert not record.is_held
        assert [entry.object_id for entry in LogEntry.objects.order_by("id")] == ["a", "b", "a"]

    def test_a_bad_duration_is_asked_for_again(self) -> None:
        page = self.confirm("pause", "a", **{"for": "soon", "why": "kept"})
        self.assertContains(page, "soon")
        self.assertContains(page, 'value="kept"')
        assert lock_provider().record("a") is None

    def test_a_held_lock_is_freed_by_force_after_a_confirmation(self) -> None:
        self.acquire("a")
        page = self.client.post(LOCKS, {"action": "force_release", "name": "a"})
        self.assertContains(page, "a second one can start beside it at once")
        self.assertContains(self.confirm("force_release", "a"), "Lock 'a' was freed by force.")
        record = lock_provider().record("a")
        assert record is not None
        assert not record.is_held

    def test_with_atomic_requests_an_action_is_in_no_transaction(self) -> None:
        """On SQLite the view's own writes would wait for each other: the action worked, returned 500, and was not
        logged."""
        depths: list[int] = []
        with (
            mock.patch.dict(connections.settings["default"], ATOMIC_REQUESTS=True),
            mock.patch.object(
                changes, "carry_out", side_effect=lambda *_: depths.append(len(connection.savepoint_ids))
            ),
        ):
            outside = len(connection.savepoint_ids)
            self.confirm("pause", "a")
        assert depths == [outside]

    def test_a_user_whose_name_a_record_cannot_hold_is_named_by_its_key(self) -> None:
        user = User.objects.create_superuser("x" * 150)
        self.client.force_login(user)
        self.assertContains(self.confirm("pause", "a", **{"for": "1h", "why": ""}), "Lock 'a' is paused.")
        record = lock_provider().record("a")
        assert record is not None
        assert record.pause is not None
        assert record.pause.by == f"user {user.pk}"

    def test_a_paused_lock_is_resumed_and_not_freed_by_force(self) -> None:
        lock_provider().pause("a", "1h")
        page = self.client.post(LOCKS, {"action": "force_release", "name": "a"}, follow=True)
        self.assertContains(page, "Use Resume instead")

    def test_what_has_changed_since_the_page_was_shown_is_left_alone(self) -> None:
        lease = self.acquire("a")
        page = self.client.post(LOCKS, {"action": "force_release", "name": "a"})
        seen = page.context["wanted"][0][1].seen
        lock_provider().release(lease)
        self.acquire("a")
        data = {"action": "force_release", "confirmed": "yes", "name": "a", "seen": seen}
        self.assertContains(self.client.post(LOCKS, data, follow=True), "has changed meanwhile")
        record = lock_provider().record("a")
        assert record is not None
        assert record.is_held

    def test_one_who_may_only_look_is_offered_no_action_and_can_do_none(self) -> None:
        self.acquire("a")
        self.log_in_with("view_lock")
        self.assertNotContains(self.client.get(LOCKS), "<select")
        for action in ("pause", "resume", "force_release"):
            for values in ({}, {"confirmed": "yes", "seen": "", "for": "1h"}):
                assert self.client.post(LOCKS, {"action": action, "name": "a", **values}).status_code == 403
        assert self.client.get(RUNS).status_code == 403

    def test_each_action_has_its_permission(self) -> None:
        self.acquire("a")
        self.log_in_with("view_lock", "pause_lock")
        self.assertContains(self.client.get(LOCKS), "<option", 3)
        assert self.client.post(LOCKS, {"action": "force_release", "name": "a"}).status_code == 403
        assert self.client.post(LOCKS, {"action": "pause", "name": "a"}).status_code == 200

    def test_a_confirmation_shows_no_lock_to_one_who_may_not_see_locks(self) -> None:
        self.acquire("a")
        self.log_in_with("pause_lock", "force_release_lock")
        for action in ("pause", "force_release"):
            assert self.client.post(LOCKS, {"action": action, "name": "a"}).status_code == 403

    @override_settings(SHEDLOCK={"ELECTIONS": ["leader"]})
    def test_a_leader_is_not_freed_by_force(self) -> None:
        self.acquire("leader")
        page = self.client.post(LOCKS, {"action": "force_release", "name": "leader"}, follow=True)
        self.assertContains(page, "another node would lead beside it. Demote it instead")
        (record,) = lock_provider().records()
        data = {"action": "force_release", "confirmed": "yes", "name": "leader"}
        data["seen"] = " ".join(map(str, record.acquisition))
        self.assertContains(self.client.post(LOCKS, data, follow=True), "Demote it instead")
        assert lock_provider().records()[0].is_held

    def test_one_without_permission_sees_nothing(self) -> None:
        self.log_in_with()
        assert self.client.get(LOCKS).status_code == 403
        self.client.logout()
        assert self.client.get(LOCKS).status_code == 302

    def test_a_request_of_another_site_changes_nothing(self) -> None:
        strict = self.client_class(enforce_csrf_checks=True)
        strict.force_login(User.objects.get(username="alice"))
        data = {"action": "pause", "confirmed": "yes", "name": "a", "seen": "", "for": "1h"}
        assert strict.post(LOCKS, data).status_code == 403
        assert lock_provider().record("a") is None

    def test_an_outage_is_shown_as_one(self) -> None:
        fault = mock.Mock(side_effect=ProviderUnreachable("no reply", operation="records"))
        with mock.patch.object(lock_provider(), "records", fault):
            page = self.client.get(LOCKS)
        assert page.status_code == 503
        self.assertContains(page, "Cannot be read: no reply", status_code=503)


def found(**values: Any) -> list[str]:
    with override_settings(**values):
        return [check.id for check in checks.run_checks(tags=["shedlock"])]


class CheckTest(SimpleTestCase):
    databases = "__all__"

    def test_a_good_project(self) -> None:
        assert found() == (["shedlock.W001"] if connection.vendor == "sqlite" else [])

    def test_mistakes_in_the_setting(self) -> None:
        for mistake in (
            {"DATABSE": "default"},
            {"DATABASE": "other"},
            {"DATABASE": None},
            {"ELECTIONS": "leader"},
            ["default"],
            *([{"HISTORY": -1}, {"TABLE_NAME": "100%"}] if connection.vendor != "sqlite" else []),
        ):
            with self.subTest(mistake):
                assert found(SHEDLOCK=mistake) == ["shedlock.E001"]

    def test_the_near_key_is_named(self) -> None:
        with override_settings(SHEDLOCK={"database": "default"}):
            (error,) = checks.run_checks(tags=["shedlock"])
        assert "did you mean 'DATABASE'?" in error.msg

    def test_a_router_that_forbids_the_application(self) -> None:
        if connection.vendor != "sqlite":
            assert found(DATABASE_ROUTERS=[f"{__name__}.Forbidding"]) == ["shedlock.W002"]

    def test_locking_that_is_switched_off(self) -> None:
        with mock.patch.dict("os.environ", SHEDLOCK_ACTIVE="0"), self.assertLogs("shedlock_py"):
            ids = [check.id for check in checks.run_checks(tags=["shedlock"], include_deployment_checks=True)]
        assert "shedlock.W005" in ids

    def test_the_real_database_is_another_one(self) -> None:
        assert settings.DATABASES["default"]["NAME"] == connection.settings_dict["NAME"]


class Forbidding:
    def allow_migrate(self, _db: str, app_label: str, **_: Any) -> bool | None:
        return False if app_label == "shedlock" else None
