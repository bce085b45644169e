"""manage.py of a real project: migrate, check, and the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, inspect, make_url, text

from shedlock_py import LockRequest
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.support.django_projects import CLONE, Project, database

HISTORY = 5
JAVA = (
    "CREATE TABLE shedlock (name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, locked_at TIMESTAMP NOT NULL, "
    "locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))"
)
"""The table of ShedLock's README for PostgreSQL."""


LIKE_SQLITE = pytest.mark.slow("the migration is the same")


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=LIKE_SQLITE),
        pytest.param("mysql", marks=LIKE_SQLITE),
        pytest.param("mariadb", marks=LIKE_SQLITE),
    ]
)
def url(request: pytest.FixtureRequest, small_project: Project) -> Iterator[str]:
    """A new database, the default of the project."""
    if request.param == "sqlite":
        yield f"sqlite:///{small_project.directory}/db.sqlite3"
        return
    if request.param != "postgresql":
        pytest.importorskip("MySQLdb")
    server = request.getfixturevalue(f"{request.param.replace('postgresql', 'postgres')}_server")
    with server.new_database("django_project"):
        found = server.url(request.param, "django_project")
        small_project.add_settings(DATABASES={"default": database(found)})
        yield found


def definition(connection: Connection, table: str) -> Any:
    """Return the database's definition of a table, without its name."""
    match connection.dialect.name:
        case "mysql" | "mariadb":
            found = connection.execute(text(f"SHOW CREATE TABLE {table}")).one()[1]
        case "sqlite":
            found = connection.execute(text("SELECT sql FROM sqlite_master WHERE name = :it"), {"it": table}).scalar()
        case _:
            return [{**column, "type": repr(column["type"])} for column in inspect(connection).get_columns(table)] + [
                inspect(connection).get_pk_constraint(table)["constrained_columns"]
            ]
    return re.sub(rf"\b{table}\b", "TABLE", str(found))


def test_migrate_makes_the_tables_of_create_schema(small_project: Project, url: str) -> None:
    small_project.add_settings(SHEDLOCK={"HISTORY": HISTORY})
    _, errors = small_project.manage("migrate")
    assert errors == ""
    with closing(SqlAlchemyLockProvider(url, table_name="reference", history=HISTORY)) as reference:
        reference.create_schema()
    engine = create_engine(url)
    with engine.connect() as connection:
        assert definition(connection, "shedlock") == definition(connection, "reference")
        assert definition(connection, "shedlock_runs") == definition(connection, "reference_runs")
    engine.dispose()


@pytest.mark.slow("runs migrate twice")
@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_a_table_that_is_there_stays_as_it_is(small_project: Project, url: str) -> None:
    with closing(SqlAlchemyLockProvider(url)) as provider:
        provider.create_schema()
        assert provider.acquire(LockRequest("nightly", "10m")) is not None
        _, errors = small_project.manage("migrate")
        assert errors == ""
        record = provider.record("nightly")
    assert record is not None
    assert record.is_held


@pytest.mark.slow("runs manage.py several times")
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_table_of_shedlock_for_java_does_not_make_migrate_fail(small_project: Project, url: str) -> None:
    """Both migrate and check say what the table lacks. With EXTRA_COLUMNS = False it works unchanged."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(JAVA))
    engine.dispose()
    _, errors = small_project.manage("migrate")
    assert "ALTER TABLE shedlock ADD COLUMN fencing_token" in errors
    _, errors = small_project.manage("check", "--database", "default")
    assert "shedlock.W004" in errors
    assert "extra_columns=False" in errors
    small_project.add_settings(SHEDLOCK={"EXTRA_COLUMNS": False})
    output, errors = small_project.manage("shedlock", "run", "nightly", "--at-most", "1m", "--", "echo", "it runs")
    assert (output, errors) == ("it runs\n", "")


@pytest.mark.slow("runs manage.py several times")
def test_before_migrate_the_check_says_so_and_history_can_be_switched_on_later(small_project: Project) -> None:
    def check() -> str:
        return small_project.manage("check", "--database", "default")[1]

    assert "(shedlock.W004) reach the store: records: no such table" in check()
    assert small_project.manage("migrate")[1] == ""  # no warning about tables that it adds itself
    assert check() == ""
    small_project.add_settings(SHEDLOCK={"HISTORY": HISTORY})
    assert "(shedlock.W004) history: runs" in check()
    small_project.manage("migrate")
    assert check() == ""


@pytest.mark.slow("runs manage.py several times")
def test_the_tables_are_in_the_database_that_the_setting_names(small_project: Project) -> None:
    directory = small_project.directory
    databases = {
        name: {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{directory}/{name}.db"}
        for name in ("default", "locks")
    }
    small_project.add_settings(DATABASES=databases, SHEDLOCK={"DATABASE": "locks", "TABLE_NAME": "leases"})
    small_project.manage("migrate")
    small_project.manage("migrate", "--database", "locks")
    for name, expected in (("default", []), ("locks", ["leases"])):
        engine = create_engine(f"sqlite:///{directory}/{name}.db")
        tables = inspect(engine).get_table_names()
        assert [table for table in tables if table != "django_migrations"] == expected
        engine.dispose()


@pytest.mark.slow("runs manage.py several times")
def test_the_command_line_uses_the_store_of_the_settings(small_project: Project, tmp_path: Any) -> None:
    elsewhere = f"sqlite:///{tmp_path}/elsewhere.db"
    with closing(SqlAlchemyLockProvider(elsewhere)) as provider:
        provider.create_schema()
    small_project.manage("migrate")
    arguments = ("run", "nightly", "--at-most", "1m", "--at-least", "30s", "--", "sh", "-c", "echo ran; exit 3")
    output, errors = small_project.manage("shedlock", *arguments, code=3, SHEDLOCK_STORE=elsewhere)
    assert output == "ran\n", errors
    output, _ = small_project.manage("shedlock", "list", "--json")
    assert [record["name"] for record in json.loads(output)] == ["nightly"]
    output, _ = small_project.manage("shedlock", "list", "--json", "--store", elsewhere)
    assert json.loads(output) == []  # --store overrides the settings, which override the variable
    _, errors = small_project.manage("shedlock", "shwo", code=64)
    assert errors.startswith("shedlock: No such command 'shwo'")
    assert "manage.py shedlock --help" in errors


@pytest.mark.slow("runs manage.py several times")
def test_the_command_line_takes_the_options_that_django_has_honoured(small_project: Project) -> None:
    (small_project.directory / "more").mkdir()
    (small_project.directory / "more" / "of_production.py").write_text("from mysite.settings import *")
    small_project.manage("migrate")
    options = ("--settings=of_production", "--pythonpath", "more")
    words = ("echo", "--settings", "of the command")
    output, _ = small_project.manage("shedlock", "run", "job", *options, "--at-most", "1m", "--", *words)
    assert output == "--settings of the command\n"
    output, _ = small_project.manage("shedlock", *options, "list", "--json")
    assert [record["name"] for record in json.loads(output)] == ["job"]


@pytest.mark.slow("runs manage.py several times")
def test_a_wrong_setting_is_reported_and_nothing_runs_without_a_lock(small_project: Project) -> None:
    small_project.add_settings(SHEDLOCK={"DEFAULT_LOCK_AT_MOST_FOR": "ten minutes"})
    _, errors = small_project.manage("check", code=1)
    assert "(shedlock.E001) default_lock_at_most_for" in errors
    script = "from shedlock_py import scheduler_lock; scheduler_lock('a', '1m')(lambda: print('ran'))()"
    output, errors = small_project.manage("shell", "-c", script, code=1)
    assert "ran" not in output
    assert "ConfigurationError: default_lock_at_most_for" in errors


def test_nothing_is_connected_and_no_driver_is_used_before_the_first_lock(small_project: Project) -> None:
    """Everything that needs no lock works, although the database does not exist."""
    small_project.add_settings(DATABASES={"default": {**database("postgresql://a:b@127.0.0.1:1/none")}})
    script = (
        "import sys, threading; from shedlock_py.settings.lookup import configured_providers; "
        "print(len(configured_providers()), 'sqlalchemy.dialects.postgresql' in sys.modules, threading.active_count())"
    )
    words = [
        sys.executable,
        "-W",
        "error",
        "manage.py",
        "shell",
        "-v0",
        "-c",
        script,
    ]  # the fork server has imported drivers
    done = subprocess.run(
        words,
        cwd=small_project.directory,
        env={**os.environ, "PYTHONPATH": str(CLONE)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 False 1\n", "")


@pytest.mark.slow("waits for a server that is not there")
def test_a_url_is_not_shown(small_project: Project) -> None:
    """An operator sees no password, even if the server cannot be reached."""
    url = make_url("postgresql://alice:s3cret%40pw@127.0.0.1:1/none")
    small_project.add_settings(DATABASES={"default": database(url.render_as_string(hide_password=False))})
    output, errors = small_project.manage("shedlock", "doctor", code=1)
    assert "alice:***@127.0.0.1:1" in output + errors
    assert "s3cret" not in output + errors
