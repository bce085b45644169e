"""`python -m shedlock_py` and `shedlock` are the same command, with the same message if the extra is missing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import click
import pytest

import shedlock_py
from shedlock_py import Settings, hold
from shedlock_py.cli.app import Commands, shedlock
from tests.cli.harness import file_store, in_a_process, provider_at, run, shedlock_command, take

PAGE = Path(__file__).parents[2] / "docs/reference/command-line.md"


def output(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


@in_a_process
def test_both_names_are_the_same_command() -> None:
    script = shutil.which("shedlock", path=sysconfig.get_path("scripts"))
    assert script, "pip install -e . makes it"
    module, installed = shedlock_command("--help"), output(script, "--help")
    assert module.returncode == installed.returncode == 0
    assert module.stdout.replace("python -m shedlock_py", "shedlock") == installed.stdout
    assert run("--version").stdout == f"shedlock, version {shedlock_py.__version__}\n"


@in_a_process
@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_the_extra_it_says_which(package: str) -> None:
    """Nothing finds the package, as if it was never installed."""
    code = (
        "import sys, importlib.machinery as m\n"
        "find = m.PathFinder.find_spec\n"
        f"m.PathFinder.find_spec = lambda name, *more: None if name == {package!r} else find(name, *more)\n"
        "import runpy; sys.argv = ['shedlock', 'list']; runpy.run_module('shedlock_py', run_name='__main__')"
    )
    done = output(sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr == (
        f"shedlock: the command line needs the package {package!r}: pip install 'shedlock_py[cli]'\n"
    )


@in_a_process
def test_a_click_that_is_too_old_is_named() -> None:
    code = (
        "import importlib.metadata as m\n"
        "real = m.version\n"
        "m.version = lambda name: '8.2.1' if name == 'click' else real(name)\n"
        "import runpy, sys; sys.argv = ['shedlock', 'list']; runpy.run_module('shedlock_py', run_name='__main__')"
    )
    done = output(sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr == (
        "shedlock: click 8.2.1 is too old: shedlock_py needs click>=8.3; pip install --upgrade 'shedlock_py[cli]'\n"
    )


@in_a_process
def test_an_import_error_of_another_kind_is_not_hidden() -> None:
    code = (
        "import sys; sys.modules['shedlock_py.settings.defaults'] = None; from shedlock_py.__main__ import main; main()"
    )
    assert "shedlock_py.settings.defaults" in output(sys.executable, "-c", code).stderr


def test_alone_it_prints_help() -> None:
    result = run()
    assert result.exit_code == 64
    assert "Commands:" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--colour"], "shedlock: No such option '--colour' (see shedlock --help)\n"),
        (["rnu"], "shedlock: No such command 'rnu'. Did you mean 'run'? (see shedlock --help)\n"),
        (["show"], "shedlock: Missing argument 'NAME' (see shedlock show --help)\n"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], text: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (64, "", text)


OF_NO_OPTION = {"SHEDLOCK_HISTORY", "SHEDLOCK_ACTIVE"}


def test_help_and_the_page_name_every_variable() -> None:
    """Variables exist only for commands that run unattended, and for the durations of electors, which a demotion must
    know."""
    assert isinstance(shedlock, Commands)
    page = PAGE.read_text()
    section = page.partition("## Environment variables")[2].partition("\n## ")[0]
    variables = set[str]()
    for name, command in {"": shedlock, **shedlock.commands}.items():
        result = run(*name.split(), "--help")
        assert result.exit_code == 0
        assert command.help, name
        help_text = re.sub(r"\s+", " ", result.stdout)
        for param in command.params:
            if not isinstance(param, click.Option):
                continue
            variable = param.envvar
            assert not variable or f"env var: {variable}" in help_text, f"shedlock {name} --help: {variable} is missing"
            is_unattended = name in ("run", "once", "lead", "page", "demote")
            assert not variable or is_unattended or variable == "SHEDLOCK_STORE", f"shedlock {name}: {variable}"
            variables |= {str(variable)} if variable else set()
    assert len(variables) <= 16
    rows = "\n".join(re.findall(r"^\|([^|]+)\|", section, re.MULTILINE))
    named = set(re.findall(r"`(SHEDLOCK_\w+)`", rows))
    unnamed, left_over = [*(variables | OF_NO_OPTION) - named], named - variables - OF_NO_OPTION
    assert not unnamed, f"docs/reference/command-line.md, the table of variables, does not name: {', '.join(unnamed)}"
    assert not left_over, f"docs/reference/command-line.md names what no option has: {', '.join(left_over)}"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completion_of_the_page(shell: str) -> None:
    page = PAGE.read_text()
    assert f"_SHEDLOCK_COMPLETE={shell}_source shedlock" in page
    result = run(_SHEDLOCK_COMPLETE=f"{shell}_source")
    assert result.exit_code == 0
    assert f"_SHEDLOCK_COMPLETE={shell}_complete" in result.stdout


@pytest.mark.parametrize("command", ["show", "history", "pause", "run", "lead"])
def test_the_store_is_one_line_of_the_help(command: str) -> None:
    lines = run(command, "--help", COLUMNS="80").stdout.splitlines()
    (number,) = [number for number, line in enumerate(lines) if line.startswith("  --store URL ")]
    assert lines[number].endswith("[env var: SHEDLOCK_STORE]")


def test_the_main_help_says_what_each_command_does_without_an_ellipsis() -> None:
    commands = run("--help", COLUMNS="80").stdout.partition("Commands:\n")[2]
    assert len(commands.splitlines()) == 17
    assert "..." not in commands


def test_bash_completes_names_with_colons(tmp_path: Path) -> None:
    """Bash breaks words at colons, and replaces the text after the last colon."""
    store = file_store(tmp_path)
    for name in ("reports:eu:daily", "reports:us:daily", "reports", "team@mail"):
        provider_at(store).release(take(store, name))
    cases = {
        "reports:\n:": [],
        "reports\n:\neu\n:\nd": ["daily"],
        "reports\n:": ["eu:daily", "us:daily"],
        "reports\n:\nu": ["us:daily"],
        "team\n@": ["mail"],
        "rep": ["reports", "reports:eu:daily", "reports:us:daily"],
        "--store\n=\nsqlite\n:\n/nosuch": [],
    }
    shown = {f"show\n{typed}": expected for typed, expected in cases.items()}
    others = {"lead\n--takeover\n=\nob": ["observed"], 'pause\n--why\n""\nrep': shown["show\nrep"]}
    for typed, expected in (shown | others).items():
        words = f"shedlock\n{typed}"
        variables = {"COMP_WORDS": words, "COMP_CWORD": str(words.count("\n")), "_SHEDLOCK_COMPLETE": "bash_complete"}
        assert run(store=store, **variables).stdout.split() == [f"plain,{each}" for each in expected], typed


def test_fish_splits_a_completion_at_its_first_comma() -> None:
    assert 'string split -m 1 ","' in run(_SHEDLOCK_COMPLETE="fish_source").stdout


def test_completion_offers_commands_and_options() -> None:
    words = {"COMP_WORDS": "shedlock ru", "COMP_CWORD": "1", "_SHEDLOCK_COMPLETE": "bash_complete"}
    assert run(**words).stdout == "plain,run\n"
    words |= {"COMP_WORDS": "shedlock run job --onc", "COMP_CWORD": "3"}
    assert run(**words).stdout == "plain,--once-per\n"


@pytest.mark.slow("starts three interpreters")
@in_a_process
def test_where_there_are_neither_unix_signals_nor_posix_spawn_only_run_and_lead_are_refused(tmp_path: Path) -> None:
    """Windows has neither."""
    program = (
        "import os, signal\n"
        "for name in ('SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2', 'SIGPIPE', 'SIGXFSZ', 'SIGCHLD'):\n"
        "    delattr(signal, name)\n"
        "del os.posix_spawn\n"
        "from shedlock_py.__main__ import main\n"
        "main()\n"
    )

    def run_there(*arguments: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", program, *arguments]
        environ = {**os.environ, "SHEDLOCK_STORE": file_store(tmp_path)}
        return subprocess.run(words, capture_output=True, text=True, env=environ, check=False)

    assert run_there("list").returncode == 0
    for command in (("run", "job", "--at-most", "1m"), ("lead", "job")):
        refused = run_there(*command, "--", sys.executable)
        assert (refused.returncode, refused.stderr.count("\n")) == (78, 1)
        assert f"shedlock {command[0]} needs Linux, macOS or another Unix" in refused.stderr


def test_an_error_message_controls_no_terminal(tmp_path: Path) -> None:
    done = run("list", "job", "\x1b[2J\u202emore", store=file_store(tmp_path))
    assert done.exit_code == 64
    assert "\\x1b[2J\\u202emore" in done.stderr
    assert done.stderr.rstrip("\n").isprintable()


@pytest.mark.parametrize("ending", ["\n", "\r\n", " "])
def test_white_space_around_the_url_is_the_same_store_for_command_and_application(tmp_path: Path, ending: str) -> None:
    """For example, a Secret made with ``echo``, or a file with the line ends of Windows."""
    store = file_store(tmp_path)
    with Settings.from_env({"SHEDLOCK_STORE": store + ending}).apply(), hold("job", lock_at_most_for="1m"):
        for done in (run("list", "--json", store=store + ending), run("list", "--json", "--store", store + ending)):
            assert [record["name"] for record in json.loads(done.stdout)] == ["job"]
    assert {path.name.removesuffix("-wal").removesuffix("-shm") for path in tmp_path.iterdir()} == {"locks.db"}


def test_a_control_character_inside_the_url() -> None:
    done = run("list", store="redis://:secret@ho\nst")
    assert done.exit_code == 78
    assert "has a control character" in done.stderr
    assert "secret" not in done.stderr
