"""``shedlock release``, ``prune``, ``schema`` and ``leader``."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, inspect

from shedlock_py import Lease, LockRecord, LockRequest
from shedlock_py.election.demotion import Demotion
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from tests.cli.harness import in_a_process, insert, job_of, provider_at, run, set_fire_time, take
from tests.cli.terminal import Terminal, command
from tests.support.database import DatabaseServer

# release


def test_release_of_a_held_lock_needs_force(store: str) -> None:
    lease = take(store, "job", holder="web-1:7", fire_time=datetime.now(UTC))
    provider = provider_at(store)
    done = run("release", "job", store=store)
    assert (done.exit_code, done.stdout) == (64, "")
    assert done.stderr.startswith("shedlock: lock 'job' is held by web-1:7 for ")
    assert "its task may still be running" in done.stderr
    assert "--force" in done.stderr
    assert done.stderr.count("\n") == 1
    assert job_of(store).is_held
    done = run("release", "job", "--force", store=store)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("lock 'job' is free; it was held by web-1:7 for ")
    assert not job_of(store).is_held
    assert job_of(store).last_fire_time is not None
    assert provider.extend(lease, "1m") is None
    take(store, "job")


def test_no_variable_forces(store: str) -> None:
    take(store, "job")
    assert run("release", "job", store=store, SHEDLOCK_FORCE="1", SHEDLOCK_RELEASE_FORCE="1").exit_code == 64


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_release_what_is_free(force: tuple[str, ...], store: str) -> None:
    provider_at(store).release(take(store, "job", holder="web-1:7"))
    done = run("release", "job", *force, store=store)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "shedlock: lock 'job' is not held; web-1:7 had it last\n"
    done = run("release", "jobb", *force, store=store)
    assert done.exit_code == 1
    assert done.stderr == "shedlock: the store has no lock 'jobb'; did you mean 'job'?\n"


def test_i2_release_with_force_does_not_free_the_lock_of_a_job_that_got_it_meanwhile(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = take(store, "job", holder="web-1:7")
    read = SqlAlchemyLockProvider.record

    def read_too_early(provider: SqlAlchemyLockProvider, name: str) -> LockRecord | None:
        record = read(provider, name)
        monkeypatch.setattr(SqlAlchemyLockProvider, "record", read)
        provider.release(lease)
        take(store, "job", holder="web-2:8")
        return record

    monkeypatch.setattr(SqlAlchemyLockProvider, "record", read_too_early)
    done = run("release", "job", "--force", store=store)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "web-1:7 does not hold lock 'job' any more, so nothing was freed; look at it again" in done.stderr
    assert job_of(store).is_held


# release --forget-fire-time


def take_with_wrong_clock(store: str) -> Lease:
    """Acquire a lock with a fire time a day ahead."""
    lease = take(store, "job", holder="web-1:7")
    set_fire_time(store, "job", datetime.now(UTC) + timedelta(days=1))
    return lease


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_the_fire_time_of_a_free_lock_is_forgotten(force: tuple[str, ...], store: str) -> None:
    provider_at(store).release(take_with_wrong_clock(store))
    now = LockRequest("job", "1m", fire_time=datetime.now(UTC))
    assert provider_at(store).acquire(now) is None
    done = run("release", "job", "--forget-fire-time", *force, store=store)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("the last fire time of lock 'job' is forgotten, which was 20")
    assert job_of(store).last_fire_time is None
    assert provider_at(store).acquire(now) is not None


def test_the_fire_time_of_a_held_lock_is_forgotten_when_it_is_freed(store: str) -> None:
    lease = take_with_wrong_clock(store)
    refused = run("release", "job", "--forget-fire-time", store=store)
    assert (refused.exit_code, refused.stdout) == (64, "")
    assert "its task may still be running" in refused.stderr
    assert job_of(store).last_fire_time is not None
    done = run("release", "job", "--force", "--forget-fire-time", store=store)
    assert (done.exit_code, done.stderr) == (0, "")
    freed, forgotten = done.stdout.splitlines()
    assert freed.startswith("lock 'job' is free; it was held by web-1:7 for ")
    assert forgotten.startswith("the last fire time of lock 'job' is forgotten")
    assert provider_at(store).extend(lease, "1m") is None
    assert provider_at(store).acquire(LockRequest("job", "1m", fire_time=datetime.now(UTC))) is not None


@pytest.mark.parametrize("held", [False, True])
def test_a_lock_without_a_fire_time(held: bool, store: str) -> None:
    lease = take(store, "job")
    if not held:
        provider_at(store).release(lease)
    done = run("release", "job", "--force", "--forget-fire-time", store=store)
    assert (done.exit_code, "is free" in done.stdout) == (1, held)
    assert done.stderr == "shedlock: lock 'job' has no fire time to forget\n"
    assert not job_of(store).is_held


def test_a_provider_that_cannot_forget_changes_nothing(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqlAlchemyLockProvider, "forget_fire_time", None, raising=False)
    take_with_wrong_clock(store)
    done = run("release", "job", "--force", "--forget-fire-time", store=store)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (78, "", 1)
    assert "cannot forget a fire time: it has no forget_fire_time()" in done.stderr
    assert job_of(store).is_held


# prune


def test_prune_deletes_only_what_was_unused_for_so_long(store: str) -> None:
    day = timedelta(days=1)
    insert(store, "old", "x", ago=91 * day, hold=timedelta(minutes=1))
    insert(store, "old\x1b[2J", "x", ago=91 * day, hold=timedelta(minutes=1))
    insert(store, "not so old", "x", ago=89 * day, hold=timedelta(minutes=1))
    insert(store, "held for long", "x", ago=91 * day, hold=92 * day)
    dry = run("prune", "--unused-for", "90d", "--dry-run", store=store)
    assert (dry.exit_code, dry.stdout) == (0, "old\nold\\x1b[2J\n")
    assert dry.stderr == "would delete 2 lock records\n"
    dry = run("prune", "--unused-for", "90d", "--dry-run", "--json", store=store)
    assert json.loads(dry.stdout) == {"deleted": 0, "names": ["old", "old\x1b[2J"]}
    assert len(provider_at(store).records()) == 4
    done = run("prune", "--unused-for", "90d", store=store)
    assert (done.exit_code, done.stdout) == (0, "old\nold\\x1b[2J\n")
    assert done.stderr == "deleted 2 lock records\n"
    assert [record.name for record in provider_at(store).records()] == ["held for long", "not so old"]
    done = run("prune", "--unused-for", "0s", "--json", store=store)
    assert json.loads(done.stdout) == {"deleted": 1, "names": ["not so old"]}


@in_a_process
@pytest.mark.parametrize("agrees", [True, False])
def test_at_a_terminal_prune_asks_and_deletes_no_name_that_it_has_not_shown(agrees: bool, store: str) -> None:
    insert(store, "old", "x", ago=timedelta(minutes=2), hold=timedelta(seconds=1))
    insert(store, "used again", "x", ago=timedelta(minutes=2), hold=timedelta(seconds=1))
    with Terminal(command("prune", "--unused-for", "1m", "--store", store)) as terminal:
        terminal.read_until("Delete 2 lock records? [y/N]")
        assert "old\nused again\n" in terminal.text
        take(store, "used again")
        insert(store, "old by now", "x", ago=timedelta(seconds=60), hold=timedelta(0))
        terminal.type("y\n" if agrees else "\n")
        assert terminal.end() == (0 if agrees else 1)
        assert ("deleted 1 lock record of 2; the others were used meanwhile" in terminal.text) == agrees
        assert ("nothing was deleted" in terminal.text) != agrees
    left = {record.name for record in provider_at(store).records()}
    assert left == {"used again", "old by now"} | (set() if agrees else {"old"})


@pytest.mark.parametrize("arguments", [(), ("--unused-for", "90"), ("--unused-for=-1d",), ("--unused-for", "soon")])
def test_prune_needs_a_duration(arguments: tuple[str, ...], store: str) -> None:
    done = run("prune", *arguments, store=store)
    assert done.exit_code == 64
    assert "--unused-for" in done.stderr


# schema


def test_the_ddl_of_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    done = run("schema", store=url)
    assert (done.exit_code, done.stderr) == (0, "")
    assert not (tmp_path / "locks.db").exists()
    twin = AsyncSqlAlchemyLockProvider(f"sqlite+aiosqlite:///{tmp_path}/locks.db")
    assert f"{twin.create_table_sql()};\n" == done.stdout
    with sqlite3.connect(tmp_path / "locks.db") as connection:
        connection.executescript(done.stdout)
    connection.close()
    take(url, "job")
    with closing(SqlAlchemyLockProvider(url, table_name="created")) as provider:
        provider.create_schema()
    engine = create_engine(url)
    assert _columns(engine, "shedlock") == _columns(engine, "created")
    engine.dispose()


def _columns(engine: Engine, table: str) -> list[str]:
    columns = inspect(engine).get_columns(table)
    return [f"{column['name']} {column['type']!r} {column['nullable']}" for column in columns]


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "mysql+pymysql", "mariadb+pymysql"])
def test_the_ddl_needs_no_server(scheme: str) -> None:
    done = run("schema", store=f"{scheme}://nobody:s3cret-pw@127.0.0.1:1/none")
    assert done.exit_code == 0
    assert done.stdout.startswith("CREATE TABLE IF NOT EXISTS shedlock (\n    name VARCHAR(64)")
    assert done.stdout.endswith(";\n")
    assert "\t" not in done.stdout


@pytest.mark.not_quick("starts the server of its parameter")
@pytest.mark.parametrize(
    ("fixture", "driver"),
    [
        ("postgres_server", "postgresql+psycopg"),
        ("mariadb_server", "mysql+pymysql"),
        ("mariadb_server", "mariadb+pymysql"),
        ("mysql_server", "mysql+pymysql"),
    ],
)
def test_the_ddl_of_a_server(fixture: str, driver: str, request: pytest.FixtureRequest) -> None:
    server: DatabaseServer = request.getfixturevalue(fixture)
    with server.new_database("tests_cli_schema"):
        engine = create_engine(server.url(driver, "tests_cli_schema"))
        printed = run("schema", store=engine.url.render_as_string(hide_password=False)).stdout
        with engine.begin() as connection:
            assert inspect(connection).get_table_names() == []
            connection.exec_driver_sql(printed)
            connection.exec_driver_sql(printed)  # does not require the table to be missing
        provider = SqlAlchemyLockProvider(engine)
        provider.create_schema()  # finds everything there
        lease = take(provider, "Job", fire_time=datetime.now(UTC))
        assert provider.acquire(LockRequest("job", "1m")) is not None  # names are compared byte by byte, on MySQL too
        assert provider.acquire(LockRequest("Job", "1m")) is None
        assert provider.release(lease)
        SqlAlchemyLockProvider(engine, table_name="created").create_schema()
        assert _columns(engine, "shedlock") == _columns(engine, "created")
        engine.dispose()


@pytest.mark.parametrize("query", ["?history=50", ""])
def test_the_ddl_of_the_table_of_runs(query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set history in the URL or in the variable. Both ``--create`` and the printed SQL make the table."""
    if not query:
        monkeypatch.setenv("SHEDLOCK_HISTORY", "50")
    for number, scheme in enumerate(("postgresql", "mysql", "mariadb")):
        done = run("schema", store=f"{scheme}://nobody:s3cret-pw@127.0.0.1:{number + 1}/none{query}")
        assert done.stdout.count("CREATE TABLE IF NOT EXISTS shedlock_runs (") == 1
    printed, created = (f"sqlite:///{tmp_path}/{name}.db" for name in ("printed", "created"))
    done = run("schema", store=f"{printed}{query}")
    with closing(sqlite3.connect(tmp_path / "printed.db")) as connection:
        connection.executescript(done.stdout)
    assert run("schema", "--create", store=f"{created}{query}").exit_code == 0
    engines = create_engine(printed), create_engine(created)
    assert [inspect(engine).get_table_names() for engine in engines] == [["shedlock", "shedlock_runs"]] * 2
    assert _columns(engines[0], "shedlock_runs") == _columns(engines[1], "shedlock_runs")
    for engine in engines:
        engine.dispose()


def test_the_ddl_of_a_provider_of_the_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app_for_cli.py").write_text(
        "from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider\n"
        "def locks():\n"
        f"    return SqlAlchemyLockProvider('sqlite:///{tmp_path}/app.db', table_name='Our Locks', schema='main')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    reference = "app_for_cli:locks"
    assert run("schema", store=reference).stdout.startswith('CREATE TABLE IF NOT EXISTS main."Our Locks" (\n')
    created = run("schema", "--create", store=reference)
    assert (created.exit_code, created.stdout) == (0, "")
    assert 'the schema of <SqlAlchemyLockProvider main."Our Locks" at ' in created.stderr
    assert run("list", store=reference).exit_code == 0


CLIENT = pytest.mark.not_quick("imports a large client")


@pytest.mark.parametrize(
    "url",
    [
        "memory://",
        "redis://127.0.0.1:1/0",
        "mongodb://me:s3cret-pw@127.0.0.1:1/x",
        "etcd://me:s3cret-pw@127.0.0.1:1",
        pytest.param("dynamodb://locks", marks=CLIENT),
        pytest.param("s3://locks", marks=CLIENT),
        pytest.param("kubernetes://default", marks=CLIENT),
    ],
)
def test_stores_without_a_schema(url: str) -> None:
    done = run("schema", store=url)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.endswith(" needs no table; --create adds its index, if it has one\n")
    assert "s3cret-pw" not in done.stderr


# leader


def test_leader_says_who_leads_or_who_led_last(store: str) -> None:
    done = run("leader", "election", store=store)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "shedlock: nobody leads in 'election': nobody ever led\n"

    lease = take(store, "election", "15s", holder="node-1")
    done = run("leader", "election", store=store)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("node-1 leads in 'election' since 20")
    assert f"term {lease.fencing_token}; its lease ends in 1" in done.stdout
    data = json.loads(run("leader", "election", "--json", store=store).stdout)
    assert set(data) == {"name", "leader", "term", "since", "lock_until", "remaining"}
    assert (data["name"], data["leader"], data["term"]) == ("election", "node-1", lease.fencing_token)
    assert 0 < data["remaining"] <= 15

    provider = provider_at(store)
    provider.release(lease)
    done = run("leader", "election", store=store)
    assert done.exit_code == 1
    assert done.stderr.startswith("shedlock: nobody leads in 'election': node-1 led until 20")
    provider.take_over(Demotion("node-1", timedelta(0)).request("election", timedelta(minutes=5)))
    done = run("leader", "election", store=store)
    assert done.exit_code == 1
    why = "node-1 was demoted; the next election is in 5m"
    assert done.stderr.startswith(f"shedlock: nobody leads in 'election': {why}")
    done = run("leader", "election", "--json", store=store)
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {
        "name": "election", "leader": None, "term": None, "since": None, "lock_until": None, "remaining": None,
    }  # fmt: skip
