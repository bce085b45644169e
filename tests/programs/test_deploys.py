"""Rolling restarts of three replicas in mid-job."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from shedlock_py import provider_from_url
from tests.support import tiers
from tests.support.forked import Program
from tests.support.polling import wait_until
from tests.support.ports import free_port
from tests.support.processes import kill_tree
from tests.support.scripts import PROJECT

pytestmark = [
    pytest.mark.slow("restarts replicas while they run a job"),
    pytest.mark.not_quick("starts replicas"),
    pytest.mark.timeout(900),  # twenty restarts, a few for each fire time
]
RESTARTS = 20 if tiers.runs("all") else 4
SERVERS = {
    "uvicorn": "uvicorn tests.programs.deployed:app --port {port}",
    "gunicorn": "gunicorn tests.programs.deployed:app -k uvicorn.workers.UvicornWorker --bind 127.0.0.1:{port}",
}
ENOUGH = timedelta(seconds=6)
"""A run is cut short at least this long before the next fire time, so that there is time to run it again."""
MOST_RECOVERIES = 3  # the default
Process = Program | subprocess.Popen[bytes]


class Deployment:
    """:param server: the program that runs the application; "" for a plain process."""

    def __init__(
        self, url: str, folder: Path, kind: str, *,
        every: int, work: float, server: str = "", lock: dict[str, Any] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.every = timedelta(seconds=every)
        self._server = server
        self._log, self._errors = folder / "log", folder / "errors"
        self._log.touch()
        provider: Any = provider_from_url(url)
        provider.create_schema()
        provider.close()
        self._config: dict[str, Any] = {
            "kind": kind,
            "url": url,
            "log": str(self._log),
            "name": f"job-{uuid4().hex[:8]}",
        }
        self._config |= {"every": every, "work": work, "lock": lock or {}, "options": options}
        self._processes: dict[int, Process] = {}
        self._ended: set[int] = set()
        for _ in range(3):
            self._start()
        self._wait_for_replicas()

    def _start(self) -> None:
        number = len(self._processes)
        config = json.dumps({**self._config, "number": number})
        with self._errors.open("a") as errors:
            if not self._server:
                self._processes[number] = Program(["-m", "tests.programs.deployed", config], stderr=errors)
                return
            program, *words = SERVERS[self._server].format(port=free_port()).split()
            self._processes[number] = subprocess.Popen(
                [Path(sys.executable).with_name(program), *words],
                cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                env={**os.environ, "REPLICA": config},
            )  # fmt: skip

    def lines(self) -> list[tuple[str, str, int]]:
        """Return the log's lines: the event, the fire time, and the replica's number."""
        found = re.findall(r"^(\w+) (\S+) (\d+)$", self._log.read_text(), re.MULTILINE)
        return [(what, fire_time, int(number)) for what, fire_time, number in found]

    def runs(self, what: str) -> Counter[datetime]:
        return Counter(datetime.fromisoformat(at) for each, at, _ in self.lines() if each == what)

    def warnings(self, pattern: str = "(.*)") -> list[str]:
        """Return the matches of ``pattern`` in the library's warnings."""
        return re.findall(rf"^WARNING shedlock_py {pattern}$", self._errors.read_text(), re.MULTILINE)

    def other_warnings(self) -> list[str]:
        """Return the warnings of another kind than "an earlier run had the lock", which is true on a busy machine."""
        return [each for each in self.warnings() if "did not begin: an earlier run had the lock" not in each]

    def restart_in_mid_job(self, may_end: Callable[[datetime], bool] = lambda _: True) -> None:
        """Replace the replica that runs the job.

        :param may_end: whether a run of this fire time may be cut short. Otherwise wait for the next run.
        """
        found: list[int] = []

        def find() -> bool:
            found[:] = [number for at, number in self._running() if may_end(at)]
            return bool(found)

        wait_until(find, timeout=60, what="a run")
        self._start()
        self._end(found[0])
        self._wait_for_replicas()

    def _running(self) -> list[tuple[datetime, int]]:
        """Return the unfinished runs with their living replicas."""
        lines = self.lines()
        return [
            (datetime.fromisoformat(at), number)
            for what, at, number in lines
            if what == "begun" and ("ended", at, number) not in lines and number not in self._ended
        ]

    def _end(self, *numbers: int) -> None:
        self._ended.update(numbers)
        for number in numbers:
            self._processes[number].send_signal(signal.SIGTERM)
        for number in numbers:
            # uvicorn raises the signal again after its shutdown.
            assert self._processes[number].wait(60) in ([0, -signal.SIGTERM] if self._server == "uvicorn" else [0])

    def _wait_for_replicas(self) -> None:
        def are_up() -> bool:
            up = {number for what, _, number in self.lines() if what == "up"}
            return self._processes.keys() - self._ended <= up

        wait_until(are_up, timeout=120, what="three replicas")

    def stop(self) -> None:
        self._end(*(self._processes.keys() - self._ended))

    def kill(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                kill_tree(process.pid)
                process.wait(60)
        print(self._log.read_text(), self._errors.read_text())  # pytest shows it if the test fails


Deploy = Callable[..., Deployment]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/locks.db"
    server = request.getfixturevalue(f"{request.param}_server")
    return str(server.url("postgresql") if request.param == "postgres" else server.url())


@pytest.fixture
def deploy(url: str, tmp_path: Path) -> Iterator[Deploy]:
    started: list[Deployment] = []

    def start(kind: str, **options: Any) -> Deployment:
        started.append(Deployment(url, tmp_path, kind, **options))
        return started[-1]

    yield start
    for deployment in started:
        deployment.kill()


on_all_stores = pytest.mark.parametrize("url", ["sqlite", "postgres", "redis"], indirect=True)
on_one_store = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
of_both_kinds = pytest.mark.parametrize("kind", ["scheduler", "repeated"])


def check_without_recovery(deployment: Deployment) -> None:
    """Assert that all runs are cut short: each run has begun once, and has one warning."""
    for _ in range(RESTARTS):
        deployment.restart_in_mid_job()
    deployment.stop()
    begun = deployment.runs("begun")
    assert len(begun) >= RESTARTS
    assert set(begun.values()) == {1}
    assert deployment.runs("ended") == Counter()
    lost = deployment.warnings(r"lock \S+ the run of (\S+) is lost: it was cancelled, or its process shut down.*")
    assert Counter(datetime.fromisoformat(at) for at in lost) == begun
    assert len(deployment.other_warnings()) == len(lost)


@on_all_stores
@of_both_kinds
def test_i14_a_run_that_a_deploy_cuts_short_is_never_repeated_and_has_one_warning(deploy: Deploy, kind: str) -> None:
    check_without_recovery(deploy(kind, every=1, work=60, drain="50ms"))


@on_one_store
@of_both_kinds
def test_i14_a_deploy_cuts_no_run_short_that_ends_within_the_drain_time(deploy: Deploy, kind: str) -> None:
    """``drain`` has its default."""
    deployment = deploy(kind, every=1, work=0.5)
    for _ in range(RESTARTS):
        deployment.restart_in_mid_job()
    deployment.stop()
    assert set(deployment.runs("begun").values()) == {1}
    assert deployment.runs("ended") == deployment.runs("begun")
    assert deployment.other_warnings() == []


def check_recovery(deployment: Deployment) -> None:
    """Most runs are cut short, some of them three times: each fire time since the first run is finished."""
    cuts: Counter[datetime] = Counter()

    def may_end(fire_time: datetime) -> bool:
        return cuts[fire_time] < MOST_RECOVERIES and datetime.now(UTC) < fire_time + deployment.every - ENOUGH

    def cut_short() -> Counter[datetime]:
        pattern = r"lock \S+ the run of (.+) was cut short, and is given back for another replica"
        return Counter(map(datetime.fromisoformat, deployment.warnings(pattern)))

    while (cuts := cut_short()).total() < RESTARTS:  # a run may end just before the signal comes
        deployment.restart_in_mid_job(may_end)

    def is_idle() -> bool:
        begun = deployment.runs("begun")
        return begun.total() == deployment.runs("ended").total() + cut_short().total()

    last = max(cuts)
    wait_until(lambda: is_idle() and deployment.runs("ended")[last], timeout=60, what=f"the run of {last}")
    begun, ended = deployment.runs("begun"), deployment.runs("ended")
    assert begun.keys() == ended.keys()
    first, last = min(begun), max(begun)
    due = {first + number * deployment.every for number in range((last - first) // deployment.every + 1)}
    assert due == set(begun)
    assert set(ended.values()) == {1}, "who has ended was not recovered"
    assert deployment.warnings(".*(is lost).*") == []


@on_all_stores
@of_both_kinds
def test_i14_with_recover_each_run_that_a_deploy_cuts_short_is_finished(deploy: Deploy, kind: str) -> None:
    check_recovery(deploy(kind, every=10, work=0.8, drain=0, lock={"recover": True}))


@on_one_store
@pytest.mark.parametrize("server", SERVERS)
def test_i14_so_it_is_under_a_server_of_asgi(deploy: Deploy, server: str) -> None:
    lock = {"recover": True}
    check_recovery(deploy("scheduler", every=15, work=2, drain=0, lock=lock, server=server))
