"""Command lines of `shedlock run` in unit files and manifests, run by the real program with another command."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from pathlib import Path

from shedlock_py import LockRecord, provider_from_url

PROGRAM = Path(sys.executable).with_name("shedlock")


def try_twice(words: list[str], directory: Path) -> tuple[LockRecord, str]:
    """Run `words` twice, with `true` as the command. Return the lock record, and the second run's standard error.

    Replace the host's program and store, too.
    """
    assert Path(words[0]).name == "shedlock"
    assert "--" in words, "the words behind it are the command's own options"
    url = f"sqlite:///{directory}/locks.db"
    provider = provider_from_url(url)
    provider.create_schema()
    errors = []
    for _ in range(2):
        done = subprocess.run(
            [PROGRAM, *words[1 : words.index("--") + 1], "true"],
            env={**os.environ, "SHEDLOCK_STORE": url},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        errors.append(done.stderr)
    (record,) = provider.records()
    assert not record.is_held
    assert record.fencing_token
    assert errors[0] == ""
    return record, errors[1]


def unit(path: Path) -> configparser.ConfigParser:
    """Read a systemd unit file."""
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # as its documentation describes
    parser.read(path)
    return parser
