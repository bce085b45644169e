"""Screens for people, on terminals of 80 and 120 columns, and without a terminal."""

from __future__ import annotations

import re
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shedlock_py.election.demotion import Demotion
from tests.cli.harness import file_store, in_a_process, insert, provider_at, shedlock_command, take
from tests.cli.terminal import Terminal, command, environment
from tests.support.availability import private_server
from tests.support.forked import Program
from tests.support.polling import wait_until
from tests.support.redis import RedisServer

pytestmark = in_a_process


LONG_NAME = "sync-of-the-customer-acme-corporation-incorporated-in-europe-1"
LONG_HOLDER = "web-7f9c4d5b6-x2x9k.production.example.com:4711"
COLOUR = re.compile(r"\x1b\[([0-9;]+)m")


@pytest.fixture
def store(tmp_path: Path) -> str:
    store = file_store(tmp_path)
    take(store, LONG_NAME, "1h", holder=LONG_HOLDER)
    provider_at(store).release(take(store, "cleanup", holder="web-1:1"))
    take(store, "[red]markup[/red]", "30m", holder="[bold]me[/bold]")
    insert(store, "clear\x1b[2Jscreen", "x\x1b]0;title\x07", ago=timedelta(0), hold=timedelta(hours=1))
    provider_at(store).take_over(Demotion("node-1", timedelta(0)).request("election", timedelta(hours=1)))
    return store


def column(lines: list[str], title: str) -> list[str]:
    """Return the cells below ``title``, one per line."""
    start = lines[0].index(title)
    width = len(re.match(rf"{title}(?: |$)*", lines[0][start:]).group())  # type: ignore[union-attr]  # it is there
    return [line[start : start + width].rstrip() for line in lines[1:]]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("arguments", [("history", "job"), ("overdue", "--grace", "0s")])
def test_of_runs_only_names_and_errors_are_folded(columns: int, arguments: tuple[str, ...], tmp_path: Path) -> None:
    store = f"{file_store(tmp_path)}?history=5"
    provider: Any = provider_at(store)
    provider.create_schema()
    for _ in range(5):
        lease = take(store, "job", holder=LONG_HOLDER)
        lease.outcome, lease.error = "failed", "ConnectionError: no route to host db-7.production.example.com:5432"
        provider.release(lease)
    with Terminal(command(*arguments), columns=columns, SHEDLOCK_STORE=store) as terminal:
        terminal.end()
    lines = [line for line in terminal.text.splitlines() if line.strip()]
    assert max(map(len, lines)) <= columns
    titles = re.split(r"  +", lines[0].strip())
    assert ("Token" in titles) is (columns == 120 and arguments[0] == "history")
    if arguments[0] == "history":
        assert [cell for cell in column(lines, "Started") if cell] == [
            cell for cell in column(lines, "Started") if re.fullmatch(r"\d\d:\d\d:\d\d", cell)
        ]
        assert len([cell for cell in column(lines, "Outcome") if cell]) == 5
        assert LONG_HOLDER in "".join(column(lines, "Holder"))
        assert "db-7.production.example.com:5432" in "".join(column(lines, "Error"))


@pytest.mark.parametrize("columns", [80, 120])
def test_a_list_fits_its_terminal_and_cuts_no_name(columns: int, store: str) -> None:
    with Terminal(command("list"), columns=columns, SHEDLOCK_STORE=store) as terminal:
        assert terminal.end() == 0
    lines = [line for line in terminal.text.splitlines() if line.strip()]
    assert max(map(len, lines)) <= columns
    titles = ["Lock", "State", "Holder", "Last start", "Until"]
    assert re.split(r"  +", lines[0].strip()) == titles + (["Token", "Fire time"] if columns == 120 else [])
    # Names are folded, not cut: the pieces make up the whole name.
    names, holders = "".join(column(lines, "Lock")), "".join(column(lines, "Holder"))
    for whole in (LONG_NAME, "cleanup", "[red]markup[/red]", "clear\\x1b[2Jscreen"):
        assert whole in names
    for whole in (LONG_HOLDER, "[bold]me[/bold]", "x\\x1b]0;title\\x07"):
        assert whole in holders
    assert set(column(lines, "State")) - {""} == {"held", "free", "demoted"}
    assert "…" not in terminal.text


@pytest.mark.parametrize("arguments", [("list",), ("watch",), ("doctor",)])
def test_no_colour_that_is_hard_to_read_on_white_or_on_black(arguments: tuple[str, ...], store: str) -> None:
    with Terminal(command(*arguments), SHEDLOCK_STORE=store) as terminal:
        if arguments == ("watch",):
            terminal.read_until(lambda text: "Ctrl-C ends" in text and "election" in text)
        else:
            assert terminal.end() == 0
    used = {code for codes in COLOUR.findall(terminal.raw) for code in codes.split(";")}
    assert "32" in used, "green"
    assert used <= {"0", "1", "31", "32", "35", "90"}, "reset, bold, red, green, magenta; grey for the rest of a bar"


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours_where_they_are_not_wanted(variables: dict[str, Any], store: str) -> None:
    with Terminal(command("list"), SHEDLOCK_STORE=store, **variables) as terminal:
        assert terminal.end() == 0
    assert {code for codes in COLOUR.findall(terminal.raw) for code in codes.split(";")} <= {"0", "1"}


def test_watch_shows_each_change_and_ends_with_ctrl_c(store: str) -> None:
    with Terminal(command("watch", "--every", "100ms"), columns=120, SHEDLOCK_STORE=store) as terminal:
        terminal.read_until(lambda text: "4 of 5 locks held at " in text and "━" in text)
        lease = take(store, "new", "10m", holder="web-9:9")
        terminal.read_until(lambda text: re.search(r"5 of 6 locks held .*\n.*(\n.*)*new +held +web-9:9 ", text))
        provider_at(store).release(lease)
        seen = len(terminal.text)
        terminal.read_until(lambda text: re.search(r"4 of 6 locks held .*\n.*(\n.*)*new +free ", text[seen:]))
        terminal.type("\x03")
        assert terminal.end() == 0
    assert "Traceback" not in terminal.text
    assert terminal.raw.rstrip().endswith("\x1b[?25h"), "the cursor is there again"


def test_watch_of_more_locks_than_lines_shows_those_that_are_held(store: str) -> None:
    for i in range(30):
        insert(store, f"a-free-{i:02}", "x", ago=timedelta(hours=1), hold=timedelta(minutes=1))
    with Terminal(command("watch", "--every", "100ms"), lines=12, columns=120, SHEDLOCK_STORE=store) as terminal:
        terminal.read_until(lambda text: "election" in text)
    assert "a-free-00" in terminal.text
    assert "a-free-20" not in terminal.text


def test_watch_shows_that_the_store_is_away() -> None:
    with private_server("redis", RedisServer) as server:
        server.stop()
        with Terminal(command("watch", "--every", "100ms"), columns=120, SHEDLOCK_STORE=server.url()) as terminal:
            terminal.read_until(
                lambda text: re.search(r"records: .*; trying again\s+no reply from the store yet", text)
            )
            server.start()
            terminal.read_until(lambda text: re.search(r"0 of 0 locks held at .*\s+no locks", text))
            server.stop()
            away = re.compile(r"records: .*; shown as of \d\d:\d\d:\d\d; trying again")
            terminal.read_until(lambda text: away.search(text.replace("\n", " ")))
            terminal.type("\x03")
            assert terminal.end() == 0
        assert "Traceback" not in terminal.text


@pytest.mark.parametrize(("name", "text"), [("list", "größe \\U0001f411"), ("doctor", "ok round trip: ")])
def test_what_is_piped_is_text_in_any_encoding(name: str, text: str, store: str) -> None:
    take(store, "größe 🐑")
    done = shedlock_command(name, store=store, PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert text in done.stdout


@pytest.mark.slow("starts two interpreters")
def test_what_is_piped_is_text_without_a_locale(store: str) -> None:
    take(store, "größe 🐑")
    for name in ("list", "doctor"):
        environ = environment(SHEDLOCK_STORE=store, LC_ALL="C")
        done = subprocess.run(command(name), env=environ, capture_output=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, b""), name
        assert b"\x1b" not in done.stdout


def test_the_end_of_the_reader_is_no_failure_with_a_traceback(store: str) -> None:
    with Program(
        ["-m", "shedlock_py", "watch", "--every", "100ms"],
        env=environment(SHEDLOCK_STORE=store),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "held" in process.stdout.readline()
        process.stdout.close()
        take(store, "another")
        wait_until(lambda: process.poll() is not None, timeout=20, what="the end of watch")
        assert process.stderr.read() == ""
