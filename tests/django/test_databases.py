"""The provider of an entry of DATABASES. Tests do not connect, unless they say so."""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from sqlalchemy import create_engine, event, make_url, text

from shedlock_py import ConfigurationError, LockRequest
from shedlock_py.events import log_listener
from shedlock_py.integrations.django.apps import create_tables
from shedlock_py.integrations.django.conf import Conf, listeners_of
from shedlock_py.integrations.django.databases import connection_of, store_url
from shedlock_py.integrations.django.django_provider import DatabaseLockProvider
from shedlock_py.integrations.django.system_checks import check_deployment, check_settings
from tests.django.wrapped.base import DatabaseWrapper
from tests.support.database import DatabaseServer
from tests.support.django_projects import add_database, database

POSTGRES = {"ENGINE": "django.db.backends.postgresql", "NAME": "app"}
MYSQL = {"ENGINE": "django.db.backends.mysql", "NAME": "app"}
SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": "/var/lib/app.db"}
SECRET = "p@ss:w/rd"


def url_of(values: dict[str, Any], **options: Any) -> str:
    add_database("tested", {**values, "OPTIONS": options})
    url = store_url(connection_of("tested"))
    return url.render_as_string(hide_password=False)


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        (POSTGRES, {}, "postgresql+psycopg:///app"),
        (
            {**POSTGRES, "HOST": "db.example", "PORT": "6432", "USER": "alice", "PASSWORD": SECRET},
            {"sslmode": "verify-full", "sslrootcert": "/ca.pem", "connect_timeout": 2},
            "postgresql+psycopg://alice:p%40ss%3Aw%2Frd@db.example:6432/app"
            "?connect_timeout=2&sslmode=verify-full&sslrootcert=%2Fca.pem",
        ),
        ({**POSTGRES, "HOST": "/run/postgresql"}, {}, "postgresql+psycopg:///run/postgresql/app"),
        ({**POSTGRES, "NAME": ""}, {"service": "app"}, "postgresql+psycopg://?service=app"),
        (POSTGRES, {"passfile": Path("/pass")}, "postgresql+psycopg:///app?passfile=%2Fpass"),
        (
            {**POSTGRES, "HOST": "a,b", "PORT": "1,2"},
            {"target_session_attrs": "read-write"},
            "postgresql+psycopg:///app?host=a%2Cb&port=1%2C2&target_session_attrs=read-write",
        ),
        (
            POSTGRES,
            {"assume_role": "job runner", "options": "-c search_path=jobs"},
            "postgresql+psycopg:///app?options=-c+search_path%3Djobs+-c+role%3Djob%5C+runner",
        ),
        (POSTGRES, {"assume_role": r"CORP\jobs"}, "postgresql+psycopg:///app?options=-c+role%3DCORP%5C%5Cjobs"),
        (POSTGRES, {"pool": True, "server_side_binding": True, "isolation_level": 3}, "postgresql+psycopg:///app"),
        ({**POSTGRES, "TIME_ZONE": "Asia/Tokyo", "CONN_MAX_AGE": 60}, {}, "postgresql+psycopg:///app"),
        ({**POSTGRES, "ENGINE": "tests.django.wrapped"}, {}, "postgresql+psycopg://short-lived:token@/app"),
        (
            {**MYSQL, "HOST": "db.example", "PORT": 3307, "USER": "alice"},
            {"ssl": {"ca": "/ca.pem", "check_hostname": False}, "charset": "utf8", "isolation_level": None},
            "mysql+mysqldb://alice@db.example:3307/app?ssl_ca=%2Fca.pem&ssl_check_hostname=0",
        ),
        (
            {**MYSQL, "HOST": "/run/mysqld.sock"},
            {"init_command": "SET sql_mode='STRICT_TRANS_TABLES'"},
            "mysql+mysqldb:///app?init_command=SET+sql_mode%3D%27STRICT_TRANS_TABLES%27&unix_socket=%2Frun%2Fmysqld.sock",
        ),
        (
            {**MYSQL, "NAME": ""},
            {"read_default_file": "/etc/my.cnf"},
            "mysql+mysqldb://?read_default_file=%2Fetc%2Fmy.cnf",
        ),
        (SQLITE, {"timeout": 20, "transaction_mode": "IMMEDIATE"}, "sqlite:////var/lib/app.db"),
        ({**SQLITE, "NAME": Path("/var/lib/a b.db")}, {}, "sqlite:////var/lib/a b.db"),
    ],
    ids=lambda value: None,
)
def test_what_can_be_carried_over(values: dict[str, Any], options: dict[str, Any], expected: str) -> None:
    _needs_driver(values["ENGINE"])
    assert url_of(values, **options) == expected


def _needs_driver(engine: str) -> None:
    if engine.endswith("mysql"):
        pytest.importorskip("MySQLdb")


@pytest.mark.parametrize(
    ("values", "options", "part"),
    [
        ({**POSTGRES, "ENGINE": "django.db.backends.oracle"}, {}, "oracle"),
        ({"ENGINE": "no.such.engine", "NAME": "app"}, {}, "'no.such.engine' isn't an available database backend"),
        ({"ENGINE": "django.db.backends.dummy"}, {}, "engine django.db.backends.dummy"),
        ({"ENGINE": "tests.django.unknown", "NAME": "app"}, {}, "engine tests.django.unknown"),
        ({**POSTGRES, "NAME": ""}, {}, "Please supply the NAME"),
        ({**SQLITE, "NAME": "file:app.db?nolock=1"}, {}, "a NAME that is a URI"),
        (POSTGRES, {"sslpassword": [SECRET]}, r"OPTIONS\['sslpassword'\] .*a value of the type list"),
        (MYSQL, {"ssl": {"ca": "/ca.pem", "verify_mode": "required"}}, r"OPTIONS\['ssl'\]"),
        (MYSQL, {"ssl": True}, r"OPTIONS\['ssl'\]"),
        (MYSQL, {"auth_plugin": SECRET}, r"OPTIONS\['auth_plugin'\]"),
    ],
    ids=lambda value: None,
)
def test_the_rest_is_refused(values: dict[str, Any], options: dict[str, Any], part: str) -> None:
    """The error names the entry, the fault and the cure, but no value: it may be a password."""
    _needs_driver(values["ENGINE"])
    add_database("refused", {**values, "OPTIONS": options})
    with pytest.raises(ConfigurationError, match=part) as raised:
        DatabaseLockProvider(Conf("refused")).current()
    assert "DATABASES['refused']" in str(raised.value)
    assert SECRET not in str(raised.value)


def test_an_alias_that_there_is_not() -> None:
    add_database("there", SQLITE)
    with pytest.raises(ConfigurationError, match=r"'elsewhere' is not in DATABASES; aliases: .*'there'"):
        DatabaseLockProvider(Conf("elsewhere")).current()


def test_a_database_in_memory_is_refused_where_no_test_runner_has_made_it() -> None:
    add_database("memory", {**SQLITE, "NAME": ":memory:"})
    with pytest.raises(ConfigurationError, match="in-memory SQLite database"):
        DatabaseLockProvider(Conf("memory")).acquire(LockRequest("a", "1m"))


@pytest.mark.slow("starts a Python with Django")
def test_pymysql_in_the_place_of_mysqlclient() -> None:
    """``pymysql.install_as_MySQLdb()``: the locks use Django's driver, whatever else is installed."""
    script = (
        "import pymysql; pymysql.install_as_MySQLdb(); "
        "from tests.django.test_databases import MYSQL, url_of; print(url_of(MYSQL, ssl={'ca': '/ca.pem'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("mysql+pymysql:///app?ssl_ca=%2Fca.pem\n", "")


def test_parameters_that_change_make_a_new_provider() -> None:
    """A backend may make a password for each connection, and the test runner changes NAME."""
    add_database("changing", SQLITE)
    provider = DatabaseLockProvider(Conf("changing"))
    first = provider.current()
    assert provider.current() is first
    connection_of("changing").settings_dict["NAME"] = "/var/lib/other.db"
    assert provider.current() is not first
    assert "/var/lib/other.db" in repr(provider)


def ids(check: Any, **values: Any) -> list[str]:
    add_database("checked", {**SQLITE, **values})
    with override_settings(SHEDLOCK={"DATABASE": "checked"}):
        return [found.id for found in check()]


def test_a_replica_is_warned_of() -> None:
    assert ids(check_settings) == []
    assert ids(check_settings, TEST={"MIRROR": "default"}) == ["shedlock.W003"]


def test_before_a_deployment_a_file_is_warned_of() -> None:
    assert ids(check_deployment) == ["shedlock.W006"]
    assert ids(check_deployment, **POSTGRES) == []


class Forbidding:
    def allow_migrate(self, db: str, app_label: str, **_: Any) -> bool:
        return app_label != "shedlock"


def test_migrate_makes_no_tables_where_a_router_forbids_them(tmp_path: Path) -> None:
    file = tmp_path / "routed.db"
    add_database("routed", {**SQLITE, "NAME": str(file)})
    for routers, is_made in (([f"{__name__}.Forbidding"], False), ([], True)):
        with override_settings(SHEDLOCK={"DATABASE": "routed"}, DATABASE_ROUTERS=routers):
            create_tables("routed")
        assert file.exists() is is_made


def test_a_listener_may_be_a_path() -> None:
    assert listeners_of({"listeners": ["shedlock_py.events.log_listener", print]}) == [log_listener, print]
    with pytest.raises(ConfigurationError, match=r"settings.SHEDLOCK\['LISTENERS'\]: .*no_such"):
        listeners_of({"listeners": ["shedlock_py.events.no_such"]})
    for given in ("reports.metrics.count_event", None, 5):
        with pytest.raises(ConfigurationError, match=r"settings.SHEDLOCK\['LISTENERS'\] must be a list"):
            listeners_of({"listeners": given})


def test_no_password_in_its_repr() -> None:
    add_database("secret", {**POSTGRES, "USER": "alice", "PASSWORD": SECRET, "OPTIONS": {"sslpassword": SECRET}})
    shown = repr(DatabaseLockProvider(Conf("secret")))
    assert "alice:***@" in shown
    assert "p%40ss" not in shown
    assert SECRET not in shown


def test_a_role_is_assumed(postgres_server: DatabaseServer) -> None:
    """OPTIONS["assume_role"] on a real server: the role owns the locks."""
    with postgres_server.new_database("django_role"):
        values = database(postgres_server.url("postgresql", "django_role"))
        admin = create_engine(postgres_server.url("postgresql+psycopg", "django_role"), isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.execute(text('CREATE ROLE "job runner"; GRANT CREATE ON SCHEMA public TO "job runner"'))
        try:
            add_database("role", {**values, "OPTIONS": {"assume_role": "job runner"}})
            provider = DatabaseLockProvider(Conf("role"))
            provider.create_schema()
            provider.close()
            with admin.connect() as connection:
                owner = connection.execute(text("SELECT tableowner FROM pg_tables WHERE tablename = 'shedlock'"))
                assert owner.scalar() == "job runner"
        finally:
            with admin.connect() as connection:
                connection.execute(text('DROP OWNED BY "job runner"; DROP ROLE "job runner"'))
            admin.dispose()


@pytest.mark.parametrize("server", ["mysql_server", "mariadb_server"])
def test_a_lock_on_a_server_through_the_driver_of_django(server: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("MySQLdb")
    found: DatabaseServer = request.getfixturevalue(server)
    with found.new_database("django_lock"):
        url = make_url(found.url("mysql", "django_lock"))
        add_database(server, database(url.render_as_string(hide_password=False)))
        provider = DatabaseLockProvider(Conf(server))
        provider.create_schema()
        lease = provider.acquire(LockRequest("nightly", "1m"))
        assert lease is not None
        assert provider.acquire(LockRequest("nightly", "1m")) is None
        assert provider.release(lease)
        provider.close()


def test_short_lived_credentials_are_made_for_each_connection_and_not_for_each_call(
    postgres_server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like tokens of Amazon RDS: a Django backend makes them when its parameters are read."""
    with postgres_server.new_database("django_rotating"):
        admin = create_engine(
            postgres_server.url("postgresql+psycopg", "django_rotating"), isolation_level="AUTOCOMMIT"
        )
        sql = "DROP ROLE IF EXISTS rotating; CREATE ROLE rotating SUPERUSER LOGIN PASSWORD 'first'"
        with admin.connect() as connection:
            connection.execute(text(sql))
        values = database(postgres_server.url("postgresql", "django_rotating"))
        add_database("rotating", {**values, "ENGINE": "tests.django.wrapped"})
        monkeypatch.setattr(DatabaseWrapper, "credentials", {"user": "rotating", "password": "first"})
        monkeypatch.setattr(DatabaseWrapper, "made", made := count())
        provider = DatabaseLockProvider(Conf("rotating"))
        current = provider.current()
        used: list[str] = []
        event.listen(current._client.engine, "do_connect", lambda _d, _r, _a, given: used.append(given["password"]))
        provider.create_schema()
        for _ in range(3):
            lease = provider.acquire(LockRequest("job", "1m"))
            assert lease is not None
            assert provider.release(lease)
        assert provider.current() is current
        assert used == ["first"]
        assert next(made) == 2, "once for the place, and once for the connection"
        with admin.connect() as connection:
            connection.execute(text("ALTER ROLE rotating PASSWORD 'second'"))
        DatabaseWrapper.credentials["password"] = "second"
        provider.close()
        assert provider.record("job") is not None
        assert used == ["first", "second"]
        provider.close()
        admin.dispose()


def test_verify_needs_a_test_database_with_a_file() -> None:
    add_database("tested", SQLITE)
    provider = DatabaseLockProvider(Conf("tested"))
    connection_of("tested").settings_dict["NAME"] = ":memory:"  # as the test runner does
    lease = provider.acquire(LockRequest("a", "1m"))
    assert lease is not None
    with pytest.raises(ConfigurationError, match=r"\['TEST'\] = \{'NAME': 'test.sqlite3'\}"):
        provider.verify(lease, connection_of("tested"))
