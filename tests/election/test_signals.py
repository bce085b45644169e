"""A leader that gets SIGTERM or Ctrl-C releases its lease, so that another node can lead at once."""

from __future__ import annotations

import signal
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shedlock_py import provider_from_url
from tests.support.forked import Program


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["threads", "asyncio", "blocking", "asyncio-scheduler"])
def test_the_lease_is_released_before_the_process_ends(tmp_path: Path, kind: str, number: signal.Signals) -> None:
    url = f"sqlite:///{tmp_path}/locks.db?timeout=60s"
    provider: Any = provider_from_url(url)
    with closing(provider):
        provider.create_schema()
        command = ["-m", "tests.election.leader", url, kind]
        with Program(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "leads\n"
                process.send_signal(number)
                _, err = process.communicate(timeout=30)
            finally:
                process.kill()
        assert process.returncode == (143 if number == signal.SIGTERM else -number), err
        assert not provider.record("election").is_held, err
