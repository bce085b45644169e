"""``shedlock doctor``: a sound store, and each fault that it finds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from shedlock_py import InMemoryLockProvider, Lease, LockRecord, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.model.durations import Duration
from shedlock_py.operators.checks import read_only_checks
from shedlock_py.provider import Check
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.cli.harness import in_a_process, provider_at, run, set_fire_time, shedlock_command, take
from tests.faults.small_disks import fill, tmpfs
from tests.support.database import DatabaseServer
from tests.support.ports import free_port

CHECKS = [
    "reach the store", "file system", "schema", "acquire", "refuse", "extend", "clock", "release", "fencing tokens",
    "round trip",
]  # fmt: skip


def check(store: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code, and the checks by name."""
    done = run("doctor", "--json", store=store)
    data = json.loads(done.stdout)
    assert set(data) == {"store", "ok", "checks"}
    assert data["ok"] is (done.exit_code == 0)
    for found in data["checks"]:
        assert set(found) == {"check", "status", "message", "hint", "seconds"}
    return done.exit_code, {found["check"]: found for found in data["checks"]}


def not_ok(checks: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: found["status"] for name, found in checks.items() if found["status"] != "ok"}


def test_all_is_well(store: str) -> None:
    take(store, "another")
    code, checks = check(store)
    assert code == 0
    assert list(checks) == CHECKS
    assert not_ok(checks) == {}
    assert abs(checks["clock"]["seconds"]) < 1
    assert 0 < checks["round trip"]["seconds"] < 1
    lines = run("doctor", store=store).stdout.splitlines()
    assert lines[0].startswith("<SqlAlchemyLockProvider shedlock at sqlite")
    assert [line.partition(": ")[0] for line in lines[1:]] == [f"✓ {name}" for name in CHECKS]
    records = provider_at(store).records()
    assert [(record.name, record.is_held) for record in records] == [("another", True), ("shedlock-doctor", False)]


def test_it_advises_on_lock_at_most_for_from_run_history(store: str) -> None:
    run("schema", "--create", store=f"{store}?history=20")
    provider = provider_at(f"{store}?history=20")
    for name, number in (("report", 10), ("seldom", 9)):
        for _ in range(number):
            provider.release(take(provider, name))
    lines = run("doctor", store=f"{store}?history=20").stdout.splitlines()
    advice = "99% of 10 runs took 0ms or less. Without keep_alive, a lock_at_most_for of 1m is enough"
    found = [re.sub(r"took \S+ or", "took 0ms or", line) for line in lines if "durations" in line]
    assert found == [f"✓ durations: 'report': {advice}"]
    lost = take(provider, "report")
    lost.outcome = "lost"
    provider.release(lost)
    code, checks = check(f"{store}?history=20")
    assert (code, not_ok(checks)) == (0, {"durations": "warning"})
    assert "1 of 11 runs lost their lease" in checks["durations"]["message"]


def test_a_run_with_odd_values_hides_no_advice_on_other_jobs(store: str) -> None:
    run("schema", "--create", store=f"{store}?history=20")
    provider = provider_at(f"{store}?history=20")
    for name in ("good", "odd"):
        for _ in range(10):
            provider.release(take(provider, name))
    with create_engine(store).begin() as connection:
        connection.exec_driver_sql("UPDATE shedlock_runs SET started = 'gone' WHERE name = 'odd'")
    messages = [line for line in run("doctor", store=f"{store}?history=20").stdout.splitlines() if "durations" in line]
    assert [message.split("'")[1] for message in messages] == ["good"]


@pytest.mark.parametrize("kept", [1, 50])
def test_a_run_history_that_cannot_be_written_fails_its_check(store: str, kept: int) -> None:
    with_history = [*CHECKS[:-1], "history", CHECKS[-1]]
    code, checks = check(f"{store}?history={kept}")
    assert (code, list(checks)) == (1, with_history)
    assert not_ok(checks) == {"schema": "warning", "history": "failed"}
    for name in ("schema", "history"):
        assert "no such table" in checks[name]["message"]
        assert "shedlock schema --create" in (checks[name]["hint"] or checks[name]["message"])
    assert run("schema", "--create", store=f"{store}?history={kept}").exit_code == 0
    code, checks = check(f"{store}?history={kept}")
    assert (code, list(checks), not_ok(checks)) == (0, with_history, {})
    with create_engine(store).begin() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER full BEFORE INSERT ON shedlock_runs BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
        )
    code, checks = check(f"{store}?history={kept}&timeout=4s")  # a new URL, so a new provider, which warns
    assert (code, not_ok(checks)) == (1, {"schema": "warning", "history": "failed"})
    assert "disk is full" in checks["schema"]["message"]


@pytest.mark.parametrize(
    ("url", "names", "message", "hint"),
    [
        ("postgresql://me:s3cret-pw@127.0.0.1:{port}/x", CHECKS[:1], "127.0.0.1", "right host, port and database?"),
        ("sqlite:///{dir}/mistyped.db", CHECKS[:1], "there is no SQLite file {dir}/mistyped.db", "schema --create"),
        ("sqlite:///{dir}/new.db", CHECKS[:1], "no such table", "from a shell: shedlock schema --create"),
    ],
    ids=["a dead server", "a missing file", "no table"],
)
def test_a_store_that_cannot_be_used(url: str, names: list[str], message: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / "new.db").touch()
    url, message = (text.format(dir=tmp_path, port=free_port()) for text in (url, message))
    code, checks = check(url)
    assert (code, list(checks)) == (1, names)
    assert not_ok(checks) == {names[-1]: "failed"}
    assert message in checks[names[-1]]["message"]
    assert checks[names[-1]]["hint"].endswith(hint)
    printed = run("doctor", store=url)
    assert (printed.exit_code, f"✗ {names[-1]}: " in printed.stdout) == (1, True)
    assert "s3cret-pw" not in printed.output
    assert [path.name for path in tmp_path.iterdir()] == ["new.db"]


@in_a_process
def test_a_full_disk() -> None:
    """The store's disk is full, not the disk of the output."""
    try:
        with tmpfs("300k") as directory:
            url = f"sqlite:///{directory}/locks.db"
            assert run("schema", "--create", store=url).exit_code == 0
            fill(directory)
            done = run("list", store=url)
            assert (done.exit_code, done.stdout) == (69, "")
            assert re.fullmatch(r"shedlock: records: (disk I/O error|database or disk is full)\n", done.stderr)
            words = ["run", "job", "--at-most", "1m", "--", "true"]
            ended = shedlock_command(*words, store=url)  # in a new process: it blocks signals
            assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (69, "", 1)
            code, checks = check(url)
    except OSError as error:
        pytest.skip(str(error))
    assert (code, list(checks)) == (1, ["reach the store"])
    assert checks["reach the store"]["hint"].startswith("is there room on its disk, ")


def test_locks_in_memory() -> None:
    code, checks = check("memory://")
    assert code == 0  # a warning: the store does nothing wrong
    assert not_ok(checks) == {"shared": "warning"}
    assert checks["shared"]["message"] == "locks in memory guard nothing between processes"
    assert "each replica runs every job" in checks["shared"]["hint"]
    assert "! shared: locks in memory guard nothing" in run("doctor", store="memory://").stdout


def test_a_fire_time_in_the_future(store: str) -> None:
    """A replica with a wrong clock leaves such a time."""
    take(store, "job")
    set_fire_time(store, "job", datetime.now(UTC) + timedelta(days=2))
    code, checks = check(store)
    assert code == 0
    assert checks["fire times"]["status"] == "warning"
    assert checks["fire times"]["message"].startswith("lock 'job': its last fire time, ")
    assert checks["fire times"]["hint"] == "forget it with: shedlock release job --forget-fire-time"


def test_a_table_of_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/java.db"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE shedlock (name VARCHAR(64) PRIMARY KEY, lock_until TIMESTAMP, locked_at TIMESTAMP, "
            "locked_by TEXT)"
        )
    engine.dispose()
    code, checks = check(url)
    assert (code, list(checks)) == (1, ["reach the store"])
    assert "ALTER TABLE shedlock ADD COLUMN fencing_token" in checks["reach the store"]["hint"]
    (tmp_path / "java_for_doctor.py").write_text(
        "from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider\n"
        f"locks = SqlAlchemyLockProvider({url!r}, extra_columns=False)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    code, checks = check("java_for_doctor:locks")
    assert (code, list(checks)) == (0, CHECKS)
    assert checks["fencing tokens"]["status"] == "warning"


@contextmanager
def table_with(type_: str, server: DatabaseServer) -> Iterator[str]:
    """Yield the name of a database with a lock table. Its times have that type."""
    database = "tests_cli_doctor"
    with server.new_database(database):
        with server.connect(database) as connection:
            connection.exec_driver_sql(
                f"CREATE TABLE shedlock (name VARCHAR(64) PRIMARY KEY, lock_until {type_}, locked_at {type_}, "
                f"locked_by VARCHAR(255), fencing_token BIGINT, last_fire_time {type_})"
            )
        yield database


@pytest.mark.not_quick("starts the server of its parameter")
@pytest.mark.parametrize(
    ("fixture", "driver", "type_", "code", "name", "status"),
    [
        ("postgres_server", "postgresql+psycopg", "timestamptz", 1, "reach the store", "failed"),
        ("mariadb_server", "mysql+pymysql", "TIMESTAMP(6) DEFAULT '2026-01-01'", 0, "schema", "warning"),
        ("mysql_server", "mysql+pymysql", "TIMESTAMP(6) DEFAULT '2026-01-01'", 0, "schema", "warning"),
        pytest.param(
            *("mysql_server", "mysql+asyncmy", "TIMESTAMP(6) DEFAULT '2026-01-01'", 0, "schema", "warning"),
            marks=pytest.mark.slow("as with the sync driver"),
        ),
    ],
)
def test_times_that_follow_the_session(
    fixture: str, driver: str, type_: str, code: int, name: str, status: str, request: pytest.FixtureRequest
) -> None:
    server: DatabaseServer = request.getfixturevalue(fixture)
    with table_with(type_, server) as database:
        url = server.url(driver, database)
        found, checks = check(url)
        assert (found, checks[name]["status"]) == (code, status)
        text = f"{checks[name]['message']} {checks[name]['hint']}"
        assert "sessions" in text
        assert "ALTER TABLE shedlock" in text


@pytest.mark.not_quick("starts the server of its parameter")
@pytest.mark.parametrize("fixture", ["mariadb_server", "mysql_server"])
def test_a_lock_that_is_held_is_not_called_free_in_another_time_zone(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    """Columns of type TIMESTAMP, an application and an operator in different zones: an error instead of "free"."""
    server: DatabaseServer = request.getfixturevalue(fixture)
    with table_with("TIMESTAMP(6) NOT NULL DEFAULT '2026-01-01'", server) as database:
        here = server.url("mysql+pymysql", database)
        there = create_engine(here, connect_args={"init_command": "SET time_zone = '+06:00'"})
        application = SqlAlchemyLockProvider(there)
        assert application.acquire(LockRequest("job", "10m")) is not None
        for arguments in (("list",), ("show", "job"), ("release", "job"), ("release", "job", "--force")):
            done = run(*arguments, store=here)
            assert (done.exit_code, done.stdout) == (69, ""), arguments
            assert "this session cannot tell whether the lock is held" in done.stderr
            assert "not held" not in done.stderr
            assert "ALTER TABLE shedlock" in done.stderr  # the provider's hint about the time zone
            assert "time zone is that of the applications that wrote the rows" in done.stderr
        record = application.record("job")
        assert record is not None
        assert record.is_held
        application.close()
        there.dispose()


def test_another_doctor_is_at_work(store: str) -> None:
    take(store, "shedlock-doctor", "1m", holder="[b]other")
    code, checks = check(store)
    assert (code, list(checks)) == (0, CHECKS[:4])
    assert checks["acquire"]["status"] == "warning"
    assert "held by [b]other" in checks["acquire"]["message"]
    assert "! acquire: lock 'shedlock-doctor' is held by [b]other" in run("doctor", store=store).stdout


class Contested(InMemoryLockProvider):
    """Another doctor gets the lock as soon as the lock is free."""

    def release(self, lease: Lease) -> bool:
        is_released = super().release(lease)
        super().acquire(LockRequest(lease.name, "10s", holder="other"))
        return is_released


# Stores with faults


class GrantsTwice(InMemoryLockProvider):
    def acquire(self, request: LockRequest) -> Lease | None:
        return self.take_over(request)


class ExtendsNothing(InMemoryLockProvider):
    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return lease


class ReleasesNothing(InMemoryLockProvider):
    def release(self, lease: Lease) -> bool:
        return True


class NeverGrantsAgain(InMemoryLockProvider):
    def acquire(self, request: LockRequest) -> Lease | None:
        return None if super().record(request.name) else super().acquire(request)


class SkewedClock(InMemoryLockProvider):
    def record(self, name: str) -> LockRecord | None:
        record, hour = super().record(name), timedelta(hours=1)
        if record is None:
            return None
        times = {field: getattr(record, field) + hour for field in ("locked_at", "lock_until", "read_at")}
        return replace(record, **times)


class CountsBack(InMemoryLockProvider):
    def acquire(self, request: LockRequest) -> Lease | None:
        lease = super().acquire(request)
        if lease is not None and lease.fencing_token is not None:
            lease.fencing_token = -lease.fencing_token
        return lease


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (GrantsTwice, {"refuse": "failed", "extend": "failed", "release": "failed"}),
        (ExtendsNothing, {"extend": "failed"}),
        (ReleasesNothing, {"release": "failed", "fencing tokens": "failed", "round trip": "warning"}),
        (NeverGrantsAgain, {"fencing tokens": "failed", "round trip": "warning"}),
        (Contested, {"fencing tokens": "warning", "round trip": "warning"}),
        (SkewedClock, {"clock": "warning"}),
        (
            CountsBack,
            {"extend": "failed", "release": "failed", "fencing tokens": "failed", "round trip": "warning"},
        ),
    ],
)
def test_a_store_that_does_wrong(
    make: type[InMemoryLockProvider], wrong: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make, "is_shared", True)
    code, checks = check(f"tests.cli.test_doctor:{make.__name__}")
    assert not_ok(checks) == wrong
    assert code == (1 if "failed" in wrong.values() else 0)
    if make is SkewedClock:
        assert checks["clock"]["seconds"] == pytest.approx(3600, abs=5)
        assert "locking is not affected" in checks["clock"]["hint"]


class BreaksDuringExtend(InMemoryLockProvider):
    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        raise ProviderError("cut off", operation="extend")


breaks = BreaksDuringExtend()


def test_a_store_that_breaks_in_the_middle_is_left_without_a_lease() -> None:
    code, checks = check("tests.cli.test_doctor:breaks")
    assert (code, not_ok(checks)) == (1, {"shared": "warning", "extend": "failed"})
    assert checks["extend"]["message"] == "cut off"
    assert [record.is_held for record in breaks.records()] == [False]


class IsStandby(InMemoryLockProvider):
    is_shared = True

    def checks(self) -> list[Check]:
        return [Check("disk", "warning", "it is slow"), Check("replication", "failed", "a standby", "take the primary")]


class StopsReplying(InMemoryLockProvider):
    is_shared = True

    def checks(self) -> list[Check]:
        raise ProviderUnreachable("no reply", operation="checks")


standby, silent = IsStandby(), StopsReplying()


def test_a_setting_with_which_locks_do_not_work_ends_it_before_a_lock_is_tried() -> None:
    code, checks = check("tests.cli.test_doctor:standby")
    assert (code, list(checks)) == (1, ["reach the store", "disk", "replication"])
    assert checks["replication"]["hint"] == "take the primary"
    assert (
        "✗ replication: a standby\n  take the primary\n" in run("doctor", store="tests.cli.test_doctor:standby").stdout
    )
    assert standby.records() == []
    assert [found.check for found in read_only_checks(standby)] == ["reach the store", "disk", "replication"]


def test_a_store_that_stops_replying_when_its_settings_are_read() -> None:
    code, checks = check("tests.cli.test_doctor:silent")
    assert (code, not_ok(checks)) == (1, {"settings": "failed"})
    assert [found.status for found in read_only_checks(silent)] == ["ok", "failed"]
