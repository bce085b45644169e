"""docs/how-to/cron.md: three hosts run the crontab's lines at once; each command runs once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.guides.documents import Page
from tests.support.polling import wait_until

HOSTS = 3
PAGE = Page("cron")
CRONTAB = (PAGE.examples / "crontab").read_text()
VARIABLES = dict(re.findall(r"^(\w+)=(.*)$", CRONTAB, re.MULTILINE))
COMMANDS = re.findall(r"^(?:\S+ ){5} *(.*)$", re.sub(r"^#.*$", "", CRONTAB, flags=re.MULTILINE), re.MULTILINE)
PROGRAMS = [re.split(" -- ", command)[1].split()[0] for command in COMMANDS]
PERIODS = {"5m": 300, "1h": 3600}


@pytest.fixture
def host(tmp_path: Path) -> dict[str, str]:
    """The environment of cron's commands: little more than the crontab's variables. The programs record their runs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in PROGRAMS:
        script = programs / program
        script.write_text(f'#!/bin/sh\necho "$SHEDLOCK_LOCK_NAME $SHEDLOCK_FENCING_TOKEN $*" >> {tmp_path}/ran\n')
        script.chmod(0o755)
    (tmp_path / "ran").touch()
    environment = {
        **VARIABLES,
        "HOME": str(tmp_path),
        "LOGNAME": "app",
        "SHELL": "/bin/sh",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(programs), "/usr/bin", "/bin"]),
        "SHEDLOCK_STORE": f"sqlite:///{tmp_path}/locks.db",
    }
    (create,) = PAGE.commands("shedlock schema ")
    subprocess.run(["/bin/sh", "-c", create], env=environment, stdin=subprocess.DEVNULL, timeout=60, check=True)
    return environment


def start(command: str, host: dict[str, str]) -> subprocess.Popen[str]:
    """Start a command like cron."""
    return subprocess.Popen(
        [host["SHELL"], "-c", command],
        env=host,
        cwd=host["HOME"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def avoid_a_new_period(command: str) -> None:
    """Wait if a period begins while the hosts work here; a period begins half a minute early."""
    (text,) = re.findall(r"--once-per (\S+)", command)
    wait_until(lambda: (time.time() + 30) % PERIODS[text] < PERIODS[text] - 20, timeout=30, what="a new period")


def on_all_hosts(command: str, host: dict[str, str]) -> list[str]:
    processes = [start(command, host) for _ in range(HOSTS)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * HOSTS, outputs
    return outputs


def ran(host: dict[str, str]) -> list[str]:
    return (Path(host["HOME"]) / "ran").read_text().splitlines()


def test_there_are_two_lines() -> None:
    assert len(COMMANDS) == len(set(PROGRAMS)) == 2
    assert set(VARIABLES) == {"PATH", "SHEDLOCK_STORE"}


@pytest.mark.parametrize("command", COMMANDS, ids=PROGRAMS)
def test_a_line_runs_once(command: str, host: dict[str, str]) -> None:
    avoid_a_new_period(command)
    outputs = on_all_hosts(command, host)
    (line,) = ran(host)
    name, token, *arguments = line.split(" ")
    assert f"shedlock run {name} " in command
    assert int(token) > 0
    assert command.endswith(" ".join(arguments))
    assert set(outputs) == {""}, "cron would send a mail"


@pytest.mark.parametrize("command", COMMANDS, ids=PROGRAMS)
def test_a_host_that_is_late_does_not_run_it_again(command: str, host: dict[str, str]) -> None:
    avoid_a_new_period(command)
    for _ in range(HOSTS):
        process = start(command, host)
        process.communicate(timeout=60)
    assert len(ran(host)) == 1
    without = re.sub(r" --once-per \S+", "", command)
    start(without, host).communicate(timeout=60)
    assert len(ran(host)) == 2, "without --once-per a short job runs on each host"


def test_the_commands_to_try(host: dict[str, str]) -> None:
    outputs = []
    for command in [*PAGE.commands("shedlock run "), *PAGE.commands("shedlock show "), *PAGE.commands("shedlock list")]:
        process = start(command, host)
        outputs.append(process.communicate(timeout=60)[0])
        assert process.returncode == 0, outputs
    ran, shown, listed = outputs
    name, _, token = ran.strip().partition(", fencing token ")
    assert name == "try-it"
    freed = str(int(token) + 1)  # the release adds 1
    assert freed in shown
    assert freed in listed


def test_without_locks_each_host_runs_it(host: dict[str, str]) -> None:
    on_all_hosts(COMMANDS[0].partition(" -- ")[2], host)
    assert len(ran(host)) == HOSTS
