"""The plan of ``make test-all``: a row is a set of tests in one environment.

The plan avoids the full product of versions. Each driver runs on each version of its server. Each interpreter and each
release of APScheduler runs the tests of our code, on the newest servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shedlock_py.model.stores import STORES

OLDEST, NEWEST = "3.11", "3.15"
APSCHEDULER_310 = ("apscheduler==3.10.4", "setuptools<81")  # it imports pkg_resources, which setuptools removed in 81

POSTGRES = ("tests/contract/test_postgresql.py", "tests/stores/sql", "-k", "postgres")
REAL_KUBERNETES = {"SHEDLOCK_TEST_KUBERNETES": "1"}
EVERY = ("tests", "--tier=all")
REDIS = ("tests/contract/test_redis.py", "tests/stores/redis", "tests/stores/redis_quorum")

MODULES = dict.fromkeys(store.module for store in STORES.values() if store.extra and not store.is_sql)
CLIENTS = ("TestUrl", "TestAsyncUrl", "TestAsyncPrograms")
# Tests that use the extras' packages, with every client. Without the tests that quote newer click's messages.
FLOORS = (
    "--tier=all",
    *("tests/core/test_versions.py", "tests/contract/test_sqlite.py", "tests/apscheduler", "tests/observability"),
    *(f"tests/contract/test_{store}.py::{name}" for store in MODULES for name in CLIENTS),
    *(f"tests/contract/test_{store}.py::TestAllWithUrl" for store in ("etcd", "dynamodb", "s3")),
    *("tests/cli/test_main.py", "tests/cli/test_run.py", "tests/cli/test_run_once_per.py", "tests/cli/test_manage.py"),
    *("tests/page/test_views.py", "tests/page/test_safety.py", "tests/page/test_changes.py", "tests/cli/test_page.py"),
    *("tests/django/test_site.py::test_on_a_test_database_in_memory", "tests/contract/test_django.py::TestAllOnSqlite"),
    *("tests/cli/test_show.py", "tests/cli/test_screens.py", "tests/cli/test_watch.py", "tests/cli/test_doctor.py"),
    "--deselect=tests/cli/test_main.py::test_a_mistake_is_one_line",
    "--deselect=tests/cli/test_run.py::test_a_mistake_is_one_line_with_a_hint",
)


@dataclass(frozen=True)
class Row:
    name: str
    what: str
    """The row's description on the page."""
    python: str = OLDEST
    tests: tuple[str, ...] = ("tests",)
    """Arguments for pytest."""
    packages: tuple[str, ...] = ()
    """Requirements besides the tests' own. Without them, pip takes the newest releases."""
    floors: bool = False
    """Install the oldest releases that the extras allow."""
    servers: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that choose server versions. Without them, the newest servers run."""
    command: tuple[str, ...] = ()
    """A program to run instead of pytest. Its last line is ``N passed, N failed``."""

    @property
    def environment(self) -> str:
        """Name of the virtual environment, which rows with the same packages share."""
        kind = "floors" if self.floors else "-".join(self.packages[:1]).replace("==", "-") or "newest"
        return f"{self.python}-{kind}"


ROWS = (
    Row("python-3.11", "every test, with every driver, on the newest servers", tests=EVERY, servers=REAL_KUBERNETES),
    Row("python-3.12", "the tests of `make test-full`", "3.12"),
    Row("python-3.13", "the tests of `make test-full`", "3.13"),
    Row("python-3.14", "the tests of `make test-full`", "3.14"),
    Row("python-3.15", "every test, with every driver, on the newest servers", "3.15", EVERY, servers=REAL_KUBERNETES),
    Row(
        "postgresql-oldest", "every driver on the PostgreSQL of Debian", tests=(*POSTGRES, "--tier=all"),
        servers={"SHEDLOCK_TEST_POSTGRES": "installed"},
    ),
    Row(
        "redis-oldest", "every client on the Redis of Debian", tests=(*REDIS, "--tier=all"),
        servers={"SHEDLOCK_TEST_REDIS": "installed"},
    ),
    Row("valkey", "every client on Valkey", tests=(*REDIS, "--tier=all"), servers={"SHEDLOCK_TEST_REDIS": "valkey"}),
    Row(
        "apscheduler-3.10", "the integration with APScheduler's older releases, on the oldest Python",
        tests=("tests/apscheduler",), packages=APSCHEDULER_310,
    ),
    Row(
        "apscheduler-3.10-newest-python", "the same on the newest Python", NEWEST,
        ("tests/apscheduler",), APSCHEDULER_310,
    ),
    Row(
        "django-newest", "the Django application on the newest Django, which the oldest Python has not", "3.13",
        ("--tier=all", "tests/django", "tests/contract/test_django.py", "tests/programs/test_django.py"),
    ),
    Row("formal", "the specifications of docs/formal, by TLC", command=("-m", "tests.formal")),
    Row("floors", "the oldest packages that the extras allow", tests=FLOORS, packages=("setuptools<81",), floors=True),
)  # fmt: skip
