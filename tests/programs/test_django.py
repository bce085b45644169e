"""docs/how-to/django.md and django-schedulers.md: what is started on three hosts runs on one."""

from __future__ import annotations

import re
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.guides.documents import EXAMPLES, Page
from tests.support.database import DatabaseServer
from tests.support.django_projects import Project, database, finish
from tests.support.polling import wait_until

HOSTS = 3
SKIPPED = "skipped: nightly-report (held)"
WRITTEN = "written: 42 pages"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    target = tmp_path / "project"
    return Project(
        Path(shutil.copytree(EXAMPLES / "django_project", target, ignore=shutil.ignore_patterns("__pycache__")))
    )


def new_project(directory: Path) -> Project:
    """Make a reader's project: Django's own project and application, and the page's code."""
    project = Project.new(directory / "mysite")
    project.django_admin("startapp", "reports")
    for block in [*Page("django").blocks, *Page("django-schedulers").blocks]:
        if "excerpt" in block.title:
            project.add_settings(block.text.replace("INSTALLED_APPS =", "INSTALLED_APPS +="))
        elif block.title:
            path = project.directory / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
    return project


def on_all_hosts(project: Project, **variables: str) -> list[str]:
    """Return the output of the command on each host, sorted."""
    processes = [project.start("nightly_report", **variables) for _ in range(HOSTS)]
    return sorted(output.strip() for output, _ in map(finish, processes))


def test_the_guide_in_a_new_project_on_sqlite(tmp_path: Path) -> None:
    """The guide's steps: migrate, the tests, the check, and then the command."""
    project = new_project(tmp_path)
    assert "\nOK\n" in "".join(project.manage("test"))
    assert not (project.directory / "db.sqlite3").exists()  # the tests touch no real database
    assert project.manage("migrate")[1] == ""
    assert on_all_hosts(project) == [SKIPPED, SKIPPED, WRITTEN]
    output, _ = project.manage(*Page("django").commands("python manage.py shedlock list")[0].split()[2:])
    assert "nightly-report" in output
    with closing(SqlAlchemyLockProvider(f"sqlite:///{project.directory}/db.sqlite3")) as provider:
        record = provider.record("nightly-report")
    assert record is not None
    assert 0 < record.remaining.total_seconds() <= 60


def test_without_locks_all_of_them_run(project: Project) -> None:
    assert on_all_hosts(project, SHEDLOCK_ACTIVE="0") == [WRITTEN] * HOSTS


def test_without_migrate_it_says_what_is_missing(project: Project) -> None:
    _, errors = project.manage("nightly_report", code=1)
    assert "create the table shedlock once" in errors


def test_one_host_of_three_runs_it_on_postgresql(project: Project, postgres_server: DatabaseServer) -> None:
    with postgres_server.new_database("how_to_django"):
        project.add_settings(DATABASES={"default": database(postgres_server.url("postgresql", "how_to_django"))})
        assert project.manage("migrate")[1] == ""
        assert on_all_hosts(project) == [SKIPPED, SKIPPED, WRITTEN]


@contextmanager
def hosts(project: Project, command: str, number: int) -> Iterator[list[Path]]:
    """Start `number` processes of an endless command, each with a file for its output."""
    logs = [project.directory / f"{command}-{host}.log" for host in range(number)]
    processes = []
    try:
        for log in logs:
            processes.append(project.start_logged(log, command))
        yield logs
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(60)


def test_a_scheduler_on_each_host_runs_each_fire_time_once(project: Project) -> None:
    program = project.directory / "reports/management/commands/run_jobs.py"
    text = program.read_text().replace('print("tick"', 'print("tick", int(time())')
    program.write_text(f"from time import time\n{text}")
    project.manage("migrate")

    def seconds() -> list[str]:
        return [second for log in logs for second in re.findall(r"^tick (\d+)", log.read_text(), re.MULTILINE)]

    with hosts(project, "run_jobs", HOSTS) as logs:
        wait_until(lambda: len(seconds()) >= 5, what="five fire times", timeout=60)
    assert len(seconds()) <= len(range(int(min(seconds())), int(max(seconds())) + 1))


def test_django_apscheduler_runs_on_the_leader_only(project: Project) -> None:
    project.manage("migrate")
    with hosts(project, "scheduler", 2) as logs:
        wait_until(lambda: sum(log.read_text().count("tick") for log in logs) >= 4, what="four ticks", timeout=60)
        wait_until(lambda: all("started" in log.read_text() for log in logs), what="two nodes", timeout=60)
    assert sorted("tick" in log.read_text() for log in logs) == [False, True]
    executions = "SELECT count(*), count(DISTINCT run_time) FROM django_apscheduler_djangojobexecution"
    with sqlite3.connect(project.directory / "db.sqlite3") as connection:
        number, fire_times = connection.execute(executions).fetchone()
    connection.close()
    assert number == fire_times >= 3  # django-apscheduler's own list may lack the last run


def test_django_crontask_enqueues_each_fire_time_once(project: Project) -> None:
    pytest.importorskip("crontask", reason="django-crontask needs Python 3.12 and Django 6")
    project.add_settings("INSTALLED_APPS += ['crontask']")
    tasks = project.directory / "reports" / "tasks.py"
    trigger = 'CronTrigger(second="*")'
    text = (
        tasks.read_text().replace('"0 3 * * *"', trigger).replace('print("clean-up"', 'print("clean-up", int(time())')
    )
    tasks.write_text(f"from time import time\nfrom apscheduler.triggers.cron import CronTrigger\n{text}")
    project.manage("migrate")

    def seconds() -> list[str]:
        return [second for log in logs for second in re.findall(r"^clean-up (\d+)", log.read_text(), re.MULTILINE)]

    with hosts(project, "crontask", HOSTS) as logs:
        wait_until(lambda: all("Starting scheduler" in log.read_text() for log in logs), what="schedulers", timeout=60)
        before = len(seconds())
        wait_until(lambda: len(seconds()) >= before + 4, what="four fire times", timeout=60)
    assert len(seconds()) <= len(range(int(min(seconds())), int(max(seconds())) + 1))


STALE = """
from django.db import connection
from reports.report import write_report
from shedlock_py import LeaseLostError, LockRequest
from shedlock_py.integrations.django import lock_provider

def meanwhile(execute, sql, *rest):
    if sql.startswith("UPDATE report"):
        lock_provider().take_over(LockRequest("report", "10m"))
    return execute(sql, *rest)

with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE report (content VARCHAR(99))")
    cursor.execute("INSERT INTO report VALUES ('empty')")
write_report("42 pages")
try:
    with connection.execute_wrapper(meanwhile):
        write_report("by a stale holder")
except LeaseLostError:
    print("refused")
with connection.cursor() as cursor:
    cursor.execute("SELECT content FROM report")
    print(cursor.fetchone())
"""


def test_i7_a_stale_holder_does_not_write(project: Project, postgres_server: DatabaseServer) -> None:
    """docs/how-to/fencing-a-transaction.md: another host takes over between the beginning and the check."""
    with postgres_server.new_database("how_to_django"):
        project.add_settings(DATABASES={"default": database(postgres_server.url("postgresql", "how_to_django"))})
        project.manage("migrate")
        output, _ = project.manage("shell", "-c", STALE)
    assert output.splitlines()[-2:] == ["refused", "('42 pages',)"]
