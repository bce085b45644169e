"""Rolling restarts of three replicas in mid-job."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shedlock_py import provider_from_url
from tests.support.forked import Program
from tests.support.polling import wait_until

pytestmark = [pytest.mark.slow("restarts replicas while they run a job"), pytest.mark.not_quick("starts replicas")]
RESTARTS = 4


class Deployment:
    def __init__(self, directory: Path, kind: str, seconds: float, **options: Any) -> None:
        self._log, self._errors = directory / "log", directory / "errors"
        self._log.touch()
        url = f"sqlite:///{directory}/locks.db"
        provider_from_url(url).create_schema()
        self._words = ["-m", "tests.programs.deployed", kind, url, str(self._log), str(seconds), json.dumps(options)]
        self.replicas = [self._started() for _ in range(3)]
        self.wait_for_replicas()

    def _started(self) -> Program:
        with self._errors.open("a") as errors:
            return Program(self._words, stderr=errors)

    def lines(self) -> list[tuple[str, str, int]]:
        """What happened, the fire time, and the process."""
        found = re.findall(r"^(\w+) (.*) (\d+)$", self._log.read_text(), re.MULTILINE)
        return [(what, fire_time, int(pid)) for what, fire_time, pid in found]

    def runs(self, what: str) -> Counter[str]:
        return Counter(fire_time for each, fire_time, _ in self.lines() if each == what)

    def warnings(self) -> list[str]:
        return re.findall(r"^WARNING shedlock_py (.*)$", self._errors.read_text(), re.MULTILINE)

    def restart_in_mid_job(self) -> None:
        """Replace the replica that runs the job."""
        found: list[Program] = []

        def find() -> bool:
            found[:] = self.running()
            return bool(found)

        wait_until(find, timeout=60, what="a run")
        replica = found[0]
        self.replicas.remove(replica)
        self.replicas.append(self._started())
        replica.terminate()
        assert replica.wait(60) == 0
        self.wait_for_replicas()

    def running(self) -> list[Program]:
        """The replicas that run the job."""
        lines = self.lines()
        pids = [pid for what, fire_time, pid in lines if what == "begun" and ("ended", fire_time, pid) not in lines]
        return [replica for replica in self.replicas if replica.pid in pids]

    def wait_for_replicas(self) -> None:
        def are_up() -> bool:
            up = {pid for what, _, pid in self.lines() if what == "up"}
            return {replica.pid for replica in self.replicas} <= up

        wait_until(are_up, timeout=60, what="three replicas")

    def stop(self) -> None:
        for replica in self.replicas:
            replica.terminate()
        assert [replica.wait(60) for replica in self.replicas] == [0] * 3

    def kill(self) -> None:
        for replica in self.replicas:
            replica.kill()
        print(self._log.read_text(), self._errors.read_text())  # pytest shows it if the test fails


@pytest.fixture
def deployments() -> Iterator[list[Deployment]]:
    started: list[Deployment] = []
    yield started
    for deployment in started:
        deployment.kill()


@pytest.mark.parametrize("kind", ["scheduler", "repeated"])
def test_i14_a_run_that_a_deploy_cuts_short_is_never_repeated_and_has_one_warning(
    kind: str, deployments: list[Deployment], tmp_path: Path
) -> None:
    deployment = Deployment(tmp_path, kind, 60, drain="50ms")
    deployments.append(deployment)
    for _ in range(RESTARTS):
        deployment.restart_in_mid_job()
    deployment.stop()
    begun = deployment.runs("begun")
    assert set(begun.values()) == {1}
    assert deployment.runs("ended") == Counter()
    lost = [
        re.search("the run of (.*) is lost: it was cancelled, or its process shut down", line)
        for line in deployment.warnings()
    ]
    assert Counter(match[1].replace("T", " ") if match else None for match in lost) == begun


@pytest.mark.parametrize("kind", ["scheduler", "repeated"])
def test_i14_a_deploy_cuts_no_run_short_that_ends_within_the_drain_time(
    kind: str, deployments: list[Deployment], tmp_path: Path
) -> None:
    """By the default of ``drain``."""
    deployment = Deployment(tmp_path, kind, 0.5)
    deployments.append(deployment)
    for _ in range(RESTARTS):
        deployment.restart_in_mid_job()
    deployment.stop()
    assert set(deployment.runs("begun").values()) == {1}
    assert deployment.runs("ended") == deployment.runs("begun")
    assert deployment.warnings() == []


def test_with_recover_each_run_that_is_cut_short_is_run_again(deployments: list[Deployment], tmp_path: Path) -> None:
    """By a replica that was refused in its slot."""
    deployment = Deployment(tmp_path, "repeated", 0.8, drain=0, lock={"recover": True, "max_recoveries": 15})
    deployments.append(deployment)
    for _ in range(RESTARTS):
        deployment.restart_in_mid_job()

    def is_done() -> bool:
        words = "".join(deployment.warnings())
        return words.count("was cut short") == words.count("it runs here again") > 0 and not deployment.running()

    wait_until(is_done, timeout=60, what="the end of the last run")
    assert "is lost" not in "".join(deployment.warnings())
