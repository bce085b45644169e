"""docs/how-to/one-scheduler.md and one-scheduler-more.md: one of two nodes runs the scheduler, then the other node."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from shedlock_py import provider_from_url
from shedlock_py.model.durations import parse_duration
from shedlock_py.model.slots import current_slot
from tests.guides.documents import EXAMPLES, Page
from tests.programs.applications import Application, application, copied
from tests.programs.beats import LEASE as LEASE_SECONDS
from tests.programs.beats import SLACK, WAYS, Beats
from tests.programs.command_lines import unit
from tests.support.polling import wait_until
from tests.support.redis import RedisEndpoint

PAGE = Page("one-scheduler")
MORE = Page("one-scheduler-more")
BROKER = 13
"""A database of the Redis server."""
LEASE = ("--lease-duration", "1500ms")
FIVE_MINUTES = timedelta(minutes=5)

# The package, the sign of a sent message, the page's five-minute schedule, and the test's faster schedule.
HOSTS = {
    "beat": ("celery", "Sending due task report", 'crontab(minute="*/5")', "0.5"),
    "taskiq": ("taskiq_redis", "Sending task taskiq_app:report", '"cron": "*/5 * * * *"', '"interval": 1'),
    "rq-cron": ("rq", "Enqueued job report", "*/5 * * * *", "* * * * * *"),
    "django": ("django", "report\n", 'minute="*/5"', 'second="*"'),
}


@pytest.fixture
def broker(redis_server: RedisEndpoint) -> str:
    with redis_server.client(BROKER) as client:
        client.flushdb()
    return redis_server.url(BROKER)


def command_line(name: str, broker: str) -> str:
    """That of the page, with short durations, and the tests' broker."""
    (line,) = [*PAGE.commands(f"shedlock lead {name} "), *MORE.commands(f"shedlock lead {name} ")]
    line = line.replace("redis://localhost/0", broker)
    return line.replace(f"lead {name}", f"lead {name} {' '.join(LEASE)}").replace(
        " beat --sched", " beat -l info --sched"
    )


@pytest.fixture
def nodes(tmp_path: Path, broker: str) -> Iterator[Nodes]:
    with Nodes(tmp_path, broker) as nodes:
        yield nodes


class Nodes(ExitStack):
    """Nodes in separate directories with a shared store."""

    def __init__(self, directory: Path, broker: str) -> None:
        super().__init__()
        self.directory = directory
        self.store = f"sqlite:///{directory}/locks.db"
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._variables = {"SHEDLOCK_STORE": self.store, "BROKER": broker, "PYTHONWARNINGS": "ignore", "PATH": programs}
        provider_from_url(self.store).create_schema()

    def start(self, number: int, command: str, old: str = "", new: str = "") -> Application:
        directory = copied("one_scheduler", self.directory / f"host-{number}")
        if "manage.py" in command:
            project = shutil.copytree(EXAMPLES / "django_project", directory / "project")
            shutil.move(directory / "run_scheduler.py", project / "reports/management/commands")
            directory = project
        for path in directory.rglob("*.py"):
            path.write_text(path.read_text().replace(old, new) if old else path.read_text())
        return self.enter_context(application(command, directory, 1, **self._variables))


@pytest.mark.parametrize("name", HOSTS)
def test_one_of_two_nodes_runs_it(name: str, nodes: Nodes, broker: str) -> None:
    package, sent, old, new = HOSTS[name]
    pytest.importorskip(package)

    def count(node: Application) -> int:
        return node.log.read_text().count(sent)

    both = [nodes.start(number, command_line(name, broker), old, new) for number in (1, 2)]
    wait_until(lambda: max(map(count, both)) >= 2, timeout=60, what="two runs on one node")
    leader, other = sorted(both, key=count, reverse=True)
    assert count(other) == 0
    leader.processes[0].send_signal(signal.SIGTERM)
    leader.processes[0].wait(30)
    before = count(leader)
    wait_until(lambda: count(other) >= 2, timeout=60, what="two runs on the other node")
    assert count(leader) == before


def test_huey_runs_a_slot_once_on_both_leaders_together(nodes: Nodes, broker: str) -> None:
    """Each consumer checks at its start. If the second consumer starts in a later slot, it runs that slot."""
    pytest.importorskip("huey")
    line = command_line("huey", broker)
    first = nodes.start(1, line, 'minute="*/5"', "")
    wait_until(lambda: re.search(r"^report$", first.log.read_text(), re.MULTILINE), timeout=60, what="a run")
    slot = current_slot(datetime.now(UTC), FIVE_MINUTES)
    second = nodes.start(2, line, 'minute="*/5"', "")
    wait_until(lambda: "waiting; " in second.log.read_text(), timeout=60, what="the second node")
    first.processes[0].send_signal(signal.SIGINT)
    first.processes[0].wait(30)
    wait_until(lambda: re.search(r"^skipped: already_ran$|^report$", second.log.read_text(), re.MULTILINE), timeout=60)
    assert "skipped: already_ran" in second.log.read_text() or current_slot(datetime.now(UTC), FIVE_MINUTES) != slot


def test_a_killed_leader_of_two_beats(redis_server: RedisEndpoint, tmp_path: Path) -> None:
    """No tick is doubled, and a new leader follows within the lease."""
    with redis_server.client(BROKER) as client:
        client.flushdb()
    with Beats(tmp_path, redis_server, BROKER) as beats:
        for way in WAYS[:2]:
            beats.kill(way)
        result = beats.end()
    assert result.doubled() == {}
    assert result.terms_in_order()
    assert max(result.leaderless["kill the node"]) < LEASE_SECONDS + SLACK


def test_the_command_lines_are_in_the_files() -> None:
    for name in (*HOSTS, "huey"):
        (line,) = [*PAGE.commands(f"shedlock lead {name} "), *MORE.commands(f"shedlock lead {name} ")]
        assert any(line in path.read_text() for path in PAGE.files()), name


def test_the_unit_and_the_manifest_have_the_command_line_of_the_page() -> None:
    (line,) = PAGE.commands("shedlock lead beat ")
    service = unit(PAGE.examples / "beat.service")["Service"]
    assert shlex.split(service["ExecStart"].replace("/srv/app/.venv/bin/", "")) == shlex.split(line)
    assert (service["Restart"], service["KillMode"], service["SuccessExitStatus"]) == ("always", "mixed", "143")
    pod = yaml.safe_load((PAGE.examples / "deployment.yaml").read_text())["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    words = [*container["command"], *container["args"]]
    port = words.index("--health-port")
    assert int(words[port + 1]) == container["livenessProbe"]["httpGet"]["port"]
    assert words[port + 2 : port + 4] == ["--health-host", "::"], "a probe comes from outside the pod"
    assert words[:port] + words[port + 4 :] == shlex.split(line)
    assert pod["terminationGracePeriodSeconds"] >= parse_duration(service["TimeoutStopSec"]).total_seconds()
