"""A leader that gets SIGTERM or Ctrl-C releases its lease, so that another node can lead at once."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.forked import Program
from tests.support.locks import opened, record_of


@pytest.mark.not_quick("starts the leader")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["threads", "asyncio", "blocking", "asyncio-scheduler"])
def test_the_lease_is_released_before_the_process_ends(tmp_path: Path, kind: str, number: signal.Signals) -> None:
    url = f"sqlite:///{tmp_path}/locks.db?timeout=60s"
    with opened(url) as provider:
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
        assert not record_of(provider, "election").is_held, err
