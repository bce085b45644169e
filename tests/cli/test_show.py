"""``shedlock list`` and ``shedlock show``: their output without a terminal, and as JSON."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from shedlock_py.cli.app import shedlock
from shedlock_py.election.demotion import Demotion
from shedlock_py.settings.urls import forget_moved
from tests.cli.harness import in_a_process, insert, provider_at, run, set_fire_time, shedlock_command, take
from tests.support.holders import unchecked
from tests.support.ports import free_port

KEYS = {
    "paused", "paused_by", "pause_reason",
    "name", "held", "done", "demoted", "holder", "claim_id", "locked_by", "locked_at", "lock_until", "remaining",
    "fencing_token", "last_fire_time", "stuck",
}  # fmt: skip
HOSTILE_NAME = "\x1b[2J\x1b]0;owned\x07[red]x[/red]\n\x9b31m\u202eevil"
HOSTILE_HOLDER = "[link=http://evil]me[/link]\r\x1b[1A"


def test_the_list_shows_each_lock_with_its_state_and_holder(store: str) -> None:
    lease = take(store, "nightly report", holder="web-1:7")
    fire_time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    provider_at(store).release(take(store, "cleanup", holder="web-2:8", fire_time=fire_time))
    done = run("list", store=store)
    assert done.exit_code == 0
    title, cleanup, nightly = done.stdout.splitlines()
    assert title.split() == ["LOCK", "STATE", "UNTIL", "LAST_START", "TOKEN", "FIRE_TIME", "HOLDER"]
    assert cleanup.startswith("cleanup         free   -  ")
    assert cleanup.endswith("  web-2:8")
    assert datetime.fromisoformat(cleanup.split()[5]) == fire_time
    assert nightly.startswith("nightly report  held   ")
    assert nightly.split()[-2:] == ["-", "web-1:7"]
    assert str(lease.fencing_token) in nightly
    assert "\x1b" not in done.output


def test_a_line_is_never_wrapped(store: str) -> None:
    take(store, "x" * 64, holder="h" * 200)
    lines = run("list", store=store, COLUMNS="40").stdout.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("x" * 64)
    assert lines[1].endswith("h" * 200)


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (30, "Lock State Holder"), (50, "Lock State Holder Until"), (60, "Lock State Holder Last start Until"),
    ],
)  # fmt: skip
def test_a_narrow_terminal_has_room_for_names(on_terminal: None, store: str, width: int, titles: str) -> None:
    take(store, "sync-feeds-of-acme", holder="reports-7d9c5b6f4:1")
    done = run("list", store=store, FORCE_COLOR="1", NO_COLOR="", TERM="xterm", COLUMNS=str(width))
    title, *lines = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).splitlines()
    assert title.split() == titles.split()
    assert max(map(len, lines)) <= width
    columns = [title.index(each) for each in ("Lock", "State", "Holder")]
    end = title.index("Holder") + 20 if width == 30 else title.index(titles.split()[3])
    assert "".join(line[: columns[1]].strip() for line in lines) == "sync-feeds-of-acme"
    assert "".join(line[columns[2] : end].strip() for line in lines) == "reports-7d9c5b6f4:1"


def test_a_list_that_is_piped_is_a_lock_a_line_also_with_force_color(store: str) -> None:
    take(store, "n" * 64, holder="h" * 200)
    done = run("list", store=store, FORCE_COLOR="1", NO_COLOR="", TERM="xterm", COLUMNS="80")
    [_, line] = done.stdout.splitlines()
    assert line.startswith("n" * 64)
    assert line.endswith("h" * 200)


def test_a_terminal_that_is_said_to_have_no_columns(on_terminal: None, store: str) -> None:
    take(store, "job")
    assert "job" in run("list", store=store, COLUMNS="0").stdout


def test_columns_stand_below_each_other_whatever_the_script(store: str) -> None:
    take(store, "名前🐑")
    take(store, "größe")
    title, first, second = run("list", store=store).stdout.splitlines()
    # three characters have two columns each
    assert title.index("STATE") == first.index("held") == second.index("held") + 3


def test_without_a_command_the_locks_that_matter_most(store: str) -> None:
    assert run().exit_code == 64
    url = f"{store}?history=5"
    provider: Any = provider_at(url)
    provider.create_schema()
    for number in range(12):
        lease = take(url, f"job-{number:02}")
        lease.outcome = "failed" if number == 3 else "ok"
        provider.release(lease)
    take(url, "runs")
    done = run(store=url)
    assert (done.exit_code, done.stderr) == (0, "and 3 other locks: shedlock list; more: shedlock --help\n")
    names = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    assert names == ["job-03", "runs", *(f"job-{number:02}" for number in range(11, 3, -1))]
    assert "runs" in run(store=store).stdout, "also without history"


def test_list_with_a_prefix_and_only_what_is_held(store: str) -> None:
    take(store, "a-held")
    take(store, "b-held")
    provider_at(store).release(take(store, "a-free"))

    def names(*arguments: str) -> list[str]:
        return [record["name"] for record in json.loads(run("list", "--json", *arguments, store=store).stdout)]

    assert names() == ["a-free", "a-held", "b-held"]
    assert names("a-") == ["a-free", "a-held"]
    assert names("--held") == ["a-held", "b-held"]
    assert names("--held", "a-") == ["a-held"]
    assert names("c-") == []
    nothing = run("list", "--held", "c-", store=store)
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert nothing.stderr == "no held locks that start with 'c-' in the store\n"


def test_an_empty_store(store: str) -> None:
    done = run("list", store=store)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "no locks in the store\n")
    assert json.loads(run("list", "--json", store=store).stdout) == []


@pytest.mark.parametrize("arguments", [("list",), ("show", "job")])
def test_json_has_every_field_of_a_record(arguments: tuple[str, ...], store: str) -> None:
    lease = take(store, "job", holder="web-1:7")
    data = json.loads(run(*arguments, "--json", store=store).stdout)
    record = data[0] if isinstance(data, list) else data
    assert set(record) == KEYS
    assert record["name"] == "job"
    assert record["held"] is True
    assert record["demoted"] is False
    assert (record["holder"], record["claim_id"]) == ("web-1:7", lease.claim_id)
    assert record["locked_by"] == f"web-1:7#{lease.claim_id}"
    assert record["fencing_token"] == lease.fencing_token
    assert record["last_fire_time"] is None
    times = [datetime.fromisoformat(record[key]) for key in ("locked_at", "lock_until")]
    assert times[1] - times[0] == timedelta(minutes=10)
    assert all(moment.utcoffset() == timedelta(0) for moment in times)
    assert 540 < record["remaining"] <= 600


@pytest.fixture
def time_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


@pytest.mark.parametrize("time_zone", ["Asia/Kathmandu"], indirect=True)
def test_show_tells_everything_about_one_lock(time_zone: str, store: str) -> None:
    lease = take(store, "job", holder="web-1:7", fire_time=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    done = run("show", "job", store=store)
    lines = {line[:13].strip(): line[15:] for line in done.stdout.splitlines()}
    assert lines["lock"] == "job"
    assert lines["state"].startswith("held, for another ")
    assert lines["holder"] == "web-1:7"
    assert lines["claim id"] == lease.claim_id
    assert lines["token"] == str(lease.fencing_token)
    assert lines["fire time"] == "2026-01-02 03:04:05.000000 UTC (2026-01-02 08:49:05 +0545)"
    assert set(lines) >= {"last start", "until", "store's clock"}
    provider_at(store).release(lease)
    done = run("show", "job", store=store)
    assert "state          free\nlast holder    web-1:7\n" in done.stdout


def test_a_token_of_zero_is_not_taken_for_none(store: str) -> None:
    """``ADD COLUMN fencing_token BIGINT NOT NULL DEFAULT 0`` leaves such a token."""
    insert(store, "job", "a-host", ago=timedelta(minutes=5), hold=timedelta(hours=1))
    with sqlite3.connect(store.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE shedlock SET fencing_token = 0")
    connection.close()
    assert "  0  -  a-host" in re.sub("  +", "  ", run("list", store=store).stdout)
    assert "token          0\n" in run("show", "job", store=store).stdout


def test_show_a_record_of_java(store: str) -> None:
    insert(store, "java", "a-host", ago=timedelta(minutes=5), hold=timedelta(minutes=1))
    record = json.loads(run("show", "java", "--json", store=store).stdout)
    assert (record["holder"], record["claim_id"], record["fencing_token"]) == ("a-host", None, None)
    assert record["held"] is False
    assert record["remaining"] == 0
    assert "claim id       -\n" in run("show", "java", store=store).stdout


def test_show_a_demoted_election(store: str) -> None:
    provider_at(store).take_over(Demotion("node-1", timedelta(0)).request("election", timedelta(minutes=1)))
    assert "state          nobody leads: node-1 was demoted; the next election is in 1m" in run(
        "show", "election", store=store
    ).stdout.replace("60s", "1m")
    assert json.loads(run("show", "election", "--json", store=store).stdout)["demoted"] is True
    assert "demoted  " in run("list", store=store).stdout


def test_a_holder_that_looks_like_a_demotion_without_end(store: str) -> None:
    assert provider_at(store).acquire(unchecked("election", "10m", f"demoted {10**30}ms node-1"))
    for arguments in (("list",), ("show", "election"), ("leader", "election")):
        done = run(*arguments, store=store)
        assert "internal error" not in done.stderr
        assert "node-1" in done.output


def test_show_what_does_not_exist(store: str) -> None:
    take(store, "nightly-report")
    take(store, "Cleanup")
    for name, hint in [
        ("nightly_report", "did you mean 'nightly-report'?"),
        ("cleanup", "did you mean 'Cleanup'?"),
        ("zzz", "see: shedlock list"),
    ]:
        done = run("show", name, store=store)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr == f"shedlock: the store has no lock {name!r}; {hint}\n"


def test_a_hostile_record_controls_no_terminal(store: str) -> None:
    insert(store, HOSTILE_NAME, HOSTILE_HOLDER, ago=timedelta(0), hold=timedelta(minutes=1))
    listed = run("list", store=store)
    assert len(listed.stdout.splitlines()) == 2
    assert "\\x1b[2J\\x1b]0;owned\\x07[red]x[/red]\\n\\x9b31m\\u202eevil  held" in listed.stdout
    assert listed.stdout.endswith("[link=http://evil]me[/link]\\r\\x1b[1A\n")
    text = run("list", "--json", store=store).stdout
    for output in (listed.stdout, text, run("show", "near", store=store).stderr):
        assert all(character.isprintable() or character == "\n" for character in output)
    (record,) = json.loads(text)
    assert (record["name"], record["holder"]) == (HOSTILE_NAME, HOSTILE_HOLDER)


@in_a_process
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_json_is_readable_where_every_character_can_be_written_and_json_elsewhere(encoding: str, store: str) -> None:
    take(store, "größe-\N{GRINNING FACE}")
    done = shedlock_command("list", "--json", store=store, PYTHONIOENCODING=encoding)
    assert [record["name"] for record in json.loads(done.stdout)] == ["größe-\N{GRINNING FACE}"]
    assert ('"name": "größe-\N{GRINNING FACE}"' in done.stdout) is (encoding == "utf-8")


@in_a_process
def test_a_store_that_cannot_be_closed_changes_no_exit_code(store: str, tmp_path: Path) -> None:
    (tmp_path / "not_closed.py").write_text(
        "from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider\n"
        "class Locks(SqlAlchemyLockProvider):\n"
        "    def close(self): raise OSError('gone')\n"
        f"locks = Locks({store!r})\n"
    )
    words = ["run", "job", "--at-most", "1m", "--", "sh", "-c", "exit 5"]
    done = shedlock_command(*words, store="not_closed:locks", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (5, "shedlock: the store could not be closed: gone\n")


# Errors: one line, never a traceback or a password

NAMING = [("show",), ("leader",), ("demote",), ("release",), ("resume",), ("history",), ("pause", "--for", "1h")]


@pytest.mark.parametrize("arguments", [*NAMING, ("list",), ("watch",)])
def test_a_name_that_cannot_be_one_is_wrong_usage(arguments: tuple[str, ...], store: str) -> None:
    done = run(*arguments, "a\tb", store=store)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (64, "", 1)
    assert "has a control character" in done.stderr
    assert f"(see shedlock {arguments[0]} --help)" in done.stderr


READING = [("list",), ("show", "x"), ("watch",), ("leader", "x"), ("demote", "x"), ("prune", "--unused-for=1d")]
RUNNING = ("run", "x", "--at-most", "1m", "--", "true")


@pytest.mark.parametrize("arguments", READING)
def test_a_missing_table_is_one_line_with_its_cure(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "new.db").touch()
    done = run(*arguments, store=f"sqlite:///{tmp_path}/new.db")
    assert (done.exit_code, done.stdout) == (69, "")
    assert done.stderr.count("\n") == 1
    assert "no such table: main.shedlock" in done.stderr
    assert done.stderr.endswith("shedlock schema --create\n")


@pytest.mark.parametrize(
    ("arguments", "url"),
    [
        *((arguments, "sqlite:///mistyped.db") for arguments in (*READING, ("release", "x", "--force"))),
        pytest.param(RUNNING, "sqlite:///mistyped.db", marks=in_a_process),
        (("list",), "sqlite+pysqlite:///mistyped.db"),
        (("list",), "sqlite:///no/mistyped.db"),
    ],
)
def test_the_file_of_a_mistyped_path_is_not_created(
    arguments: tuple[str, ...], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    forget_moved(url)  # `run` stays in this process, which has opened the same URL in another directory
    path = tmp_path / url.partition(":///")[2]
    if arguments == RUNNING:  # it blocks signals in its process
        completed = shedlock_command(*arguments, store=url)
        exit_code, stdout, stderr = completed.returncode, completed.stdout, completed.stderr
    else:
        done = run(*arguments, store=url)
        exit_code, stdout, stderr = done.exit_code, done.stdout, done.stderr
    assert (exit_code, stdout) == (69, "")
    assert stderr == (
        f"shedlock: there is no SQLite file {path} — is the path right? To create the file: shedlock schema --create\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_the_cure_for_a_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("schema", "--create", store="sqlite:///new.db").exit_code == 0
    assert run("list", store="sqlite:///new.db").stderr == "no locks in the store\n"


# A fire time that a replica with a wrong clock has left


def with_future_fire_time(store: str) -> None:
    now = datetime.now(UTC)
    provider = provider_at(store)
    provider.release(take(store, "right", fire_time=now + timedelta(seconds=20)))
    provider.release(take(store, "wrong; no $job"))
    set_fire_time(store, "wrong; no $job", now + timedelta(days=1))


@pytest.mark.parametrize("arguments", [("list",), ("list", "--json"), ("show", "wrong; no $job")])
def test_a_fire_time_in_the_future_is_named_with_its_cure(arguments: tuple[str, ...], store: str) -> None:
    with_future_fire_time(store)
    done = run(*arguments, store=store)
    assert done.exit_code == 0
    assert "in the future" not in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("shedlock: lock 'wrong; no $job': its last fire time, 20")
    assert re.search(r", is (1d|23h 59m) in the future: a replica's clock was wrong, and runs ", line)
    assert line.endswith("; forget it with: shedlock release 'wrong; no $job' --forget-fire-time")


@pytest.mark.parametrize("arguments", [("list", "right"), ("show", "right")])
def test_a_fire_time_of_a_moment_ahead_is_no_fault(arguments: tuple[str, ...], store: str) -> None:
    """A period of --once-per begins half a minute before its nominal time."""
    with_future_fire_time(store)
    assert run(*arguments, store=store).stderr == ""


# Output that cannot be written


@in_a_process
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
@pytest.mark.parametrize("arguments", [("list",), ("list", "--json"), ("show", "job"), ("schema",), ("doctor",)])
def test_an_output_on_a_full_disk(arguments: tuple[str, ...], store: str) -> None:
    take(store, "job")
    with Path("/dev/full").open("w") as full:
        done = shedlock_command(*arguments, store=store, stdout=full)
    assert (done.returncode, done.stderr) == (74, "shedlock: the output cannot be written: No space left on device\n")


@in_a_process
@pytest.mark.parametrize(
    "arguments",
    [("list",), ("list", "--json"), ("show", "job"), ("doctor",), ("watch",), ("schema",), ("--help",), ("list", "-h")],
)
def test_a_reader_that_has_closed_the_output(arguments: tuple[str, ...], store: str) -> None:
    """Exit code 1 would mean the answer no."""
    take(store, "job")
    reader, writer = os.pipe()
    os.close(reader)
    done = shedlock_command(*arguments, store=store, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (74, "")


@in_a_process
def test_a_note_that_nobody_reads_changes_nothing(store: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for arguments in (("list",), ("prune", "--unused-for", "1d", "--dry-run")):
        done = shedlock_command(*arguments, store=store, stderr=writer)
        assert (done.returncode, done.stdout) == (0, "")
    os.close(writer)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "redis"])
def test_a_dead_server(scheme: str) -> None:
    done = run("list", store=f"{scheme}://me:s3cret-pw@127.0.0.1:{free_port()}/0")
    assert (done.exit_code, done.stdout) == (69, "")
    assert done.stderr.startswith("shedlock: records: ")
    assert done.stderr.count("\n") == 1
    assert "s3cret-pw" not in done.stderr


@pytest.mark.parametrize(
    ("store", "message"),
    [
        (None, "no store: give --store URL or set SHEDLOCK_STORE"),
        ("oracle://me:s3cret-pw@host/db", "unknown scheme 'oracle'"),
        ("me:s3cret-pw@host/db", "the given text is neither a URL"),
        ("no.such.module:provider", "cannot import"),
    ],
)
def test_a_wrong_store(store: str | None, message: str) -> None:
    done = run("list", store=store)
    assert (done.exit_code, done.stdout) == (78, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert "s3cret-pw" not in done.stderr


# Completion


def completed(incomplete: str, *arguments: str) -> list[str]:
    return [
        item.value for item in ShellComplete(shedlock, {}, "shedlock", "_").get_completions([*arguments], incomplete)
    ]


def test_lock_names_are_completed(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take(store, "nightly-report")
    take(store, "nightly-mail")
    take(store, "other")
    take(store, "größe/2:a@b")
    hostile = ["nightly\nhostile", "nightly;reboot", "nightly$(reboot)", "nightly`reboot`", "nightly a", "night*", "-f"]
    for name in hostile:  # bash would copy them to the command line unchanged
        insert(store, name, "x", ago=timedelta(0), hold=timedelta(0))
    assert completed("night", "show", "--store", store) == ["nightly-mail", "nightly-report"]
    monkeypatch.setenv("SHEDLOCK_STORE", store)
    for command in ("show", "release", "leader", "demote", "list", "watch"):
        assert completed("nightly-r", command) == ["nightly-report"], command
    assert completed("", "show") == ["größe/2:a@b", "nightly-mail", "nightly-report", "other"]


@pytest.mark.parametrize("store", ["", "oracle://x", "sqlite:////no/such/dir/x.db", "redis://127.0.0.1:1/0"])
def test_completion_is_silent_about_errors(
    store: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHEDLOCK_STORE", store)
    assert completed("x", "show") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("time_zone", ["America/New_York"], indirect=True)
def test_moments_at_the_end_of_time(time_zone: str, store: str) -> None:
    """West of UTC, the first moments of the year 1 do not have a local time."""
    take(store, "job", fire_time=datetime.min.replace(tzinfo=UTC))
    for arguments in (("list",), ("show", "job")):
        assert run(*arguments, store=store).exit_code == 0
