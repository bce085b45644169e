"""docs/how-to/systemd.md: systemd accepts the units, and shedlock the command lines in them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from shedlock_py.model.durations import parse_duration
from tests.guides.documents import Page
from tests.programs.command_lines import PROGRAM, try_twice, unit

PAGE = Page("systemd")
SERVICE, TIMER = "nightly-report.service", "nightly-report.timer"


def test_the_keys_are_in_the_right_sections() -> None:
    """A partial check, for machines without systemd."""
    service, timer = unit(PAGE.examples / SERVICE), unit(PAGE.examples / TIMER)
    assert {section: set(service[section]) for section in service.sections()} == {
        "Unit": {"Description", "Wants", "After"},
        "Service": {"Type", "User", "EnvironmentFile", "ExecStart", "KillMode", "TimeoutStopSec"},
    }
    assert {section: set(timer[section]) for section in timer.sections()} == {
        "Unit": {"Description"},
        "Timer": {"OnCalendar", "Persistent"},
        "Install": {"WantedBy"},
    }
    assert service["Service"]["Type"] == "oneshot"
    assert timer["Timer"]["OnCalendar"].endswith(" UTC")


def test_shedlock_takes_the_command_line(tmp_path: Path) -> None:
    record, output = try_twice(shlex.split(unit(PAGE.examples / SERVICE)["Service"]["ExecStart"]), tmp_path)
    assert record.name == "nightly-report"
    assert record.last_fire_time is not None
    assert output in [block.text for block in PAGE.of("text")]


def test_a_catch_up_run_is_in_the_same_period() -> None:
    """With Persistent=true the job starts whenever the host comes up that day."""
    words = shlex.split(unit(PAGE.examples / SERVICE)["Service"]["ExecStart"])
    assert unit(PAGE.examples / TIMER)["Timer"]["Persistent"] == "true"
    assert parse_duration(words[words.index("--once-per") + 1]).total_seconds() == 24 * 3600


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return  # without systemd here, the tests above check the keys
    for name in (SERVICE, TIMER, "shedlock.env"):
        text = (PAGE.examples / name).read_text()
        text = text.replace("/srv/app/.venv/bin/shedlock", str(PROGRAM))
        (tmp_path / name).write_text(text.replace("/etc/shedlock.env", f"{tmp_path}/shedlock.env"))

    def verify() -> str:
        command = [analyze, "verify", str(tmp_path / TIMER), str(tmp_path / SERVICE)]
        environment = {**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=environment, check=False
        )
        return "".join(line for line in done.stderr.splitlines(True) if str(tmp_path) in line or "nightly" in line)

    assert verify() == ""
    service = tmp_path / SERVICE
    service.write_text(service.read_text().replace("KillMode", "KilMode"))
    assert "KilMode" in verify(), "it would have been reported"
