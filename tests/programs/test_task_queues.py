"""docs/how-to/task-queues.md and arq-dramatiq.md: of two schedulers, workers or replicas, each fire time runs once."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from shedlock_py import InMemoryLockProvider, configure, provider_from_url, scheduler_lock
from shedlock_py.model.run import MOST_RUNS, Run
from tests.guides.documents import Page
from tests.programs.applications import Application, application, copied, emptied
from tests.support.polling import wait_until
from tests.support.processes import signal_tree
from tests.support.redis import RedisEndpoint

PAGES = Page("task-queues"), Page("arq-dramatiq")
BROKER, STORE = 14, 15
"""Databases of the Redis server."""
NOWHERE = "redis://127.0.0.1:1/0"
RAN, SKIPPED = "writing the report\n", "skipped"


def rq_sent(redis: RedisEndpoint) -> list[datetime]:
    import rq

    with redis.client(BROKER) as client:
        jobs = rq.Queue("default", connection=client).jobs
        return [job.created_at.replace(microsecond=0) for job in jobs]


def dramatiq_sent(redis: RedisEndpoint) -> list[datetime]:
    with redis.client(BROKER) as client:
        messages = [json.loads(message) for message in client.hvals("dramatiq:default.msgs")]
    times = [datetime.fromisoformat(message["options"]["scheduled_at"]) for message in messages]
    return [time.replace(second=0, microsecond=0) for time in times]


def need(package: str) -> None:
    """Skip the test if the package is not installed. Importing it here would turn its warnings into errors."""
    if find_spec(package) is None:
        pytest.skip(f"no {package}")


@dataclass
class Library:
    package: str
    program: str
    scheduler: str
    """The start of its command lines."""
    worker: str
    several: str
    """Options for two workers."""
    one: str
    """Options for one sequential worker."""
    faster: list[tuple[str, str]]
    sent: Callable[[RedisEndpoint], list[datetime]]
    """Returns the fire times of messages that no worker has taken."""


LIBRARIES = {
    "rq": Library(
        "rq",
        "rq_jobs.py",
        "rq cron ",
        "rq worker ",
        "",
        "",
        [("*/5 * * * *", "* * * * * *"), ('once_per="5m"', 'once_per="1s"')],
        rq_sent,
    ),
    "dramatiq": Library(
        "periodiq",
        "dramatiq_jobs.py",
        "periodiq ",
        "dramatiq ",
        "--processes 1",
        "--processes 1 --threads 1",
        [("*/5 * * * *", "* * * * *"), ('once_per="5m"', 'once_per="1m"')],
        dramatiq_sent,
    ),
}


class Processes(ExitStack):
    """Processes of one example with a shared directory, log, and databases."""

    def __init__(self, directory: Path, redis: RedisEndpoint) -> None:
        super().__init__()
        self.directory = copied("task_queues", directory)
        self.redis = redis
        self._variables = {
            "BROKER": redis.url(BROKER),
            "SHEDLOCK_STORE": f"{redis.url(STORE)}?history={MOST_RUNS}",
            "PYTHONWARNINGS": "ignore",
        }
        provider: Any = provider_from_url(self._variables["SHEDLOCK_STORE"])
        self.callback(provider.close)
        self._provider = provider

    def replace(self, program: str, *replacements: tuple[str, str]) -> None:
        text = (self.directory / program).read_text()
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        (self.directory / program).write_text(text)

    def start(self, command: str, copies: int = 1) -> Application:
        command = command.replace("redis://localhost/0", self.redis.url(BROKER))
        return self.enter_context(application(command, self.directory, copies, **self._variables))

    def count(self, text: str) -> int:
        log = self.directory / "log"
        return log.read_text().count(text) if log.exists() else 0

    def runs(self, name: str = "report") -> list[Run]:
        """Return the runs that the store has granted, in order."""
        return list(reversed(self._provider.runs(name, MOST_RUNS)))

    def is_held_by(self, pid: int) -> bool:
        return any(record.is_held and record.holder.endswith(f":{pid}") for record in self._provider.records("report"))

    def fire_times(self) -> list[datetime]:
        return [run.fire_time for run in self.runs() if run.fire_time]


@pytest.fixture
def redis(redis_server: RedisEndpoint) -> Iterator[RedisEndpoint]:
    with emptied(redis_server, BROKER, STORE) as server:
        yield server


def command(beginning: str) -> str:
    (line,) = [line for page in PAGES for line in page.commands(beginning)]
    return line


def has_twins(times: list[datetime]) -> bool:
    return len(times) > len(set(times))


def end(app: Application) -> None:
    for process in app.processes:
        process.send_signal(signal.SIGTERM)
    for process in app.processes:
        process.wait(30)


WITH_THE_CURE = pytest.mark.parametrize("cured", [True, False], ids=["with the cure", "with the lock alone"])
ALONE = {"rq": (', fire_time=made, once_per="1s"', ""), "dramatiq": (', fire_time=sent, once_per="1m"', "")}
"""Code that removes the cure, the fire time."""
REPORT = '            logger.warning("writing the report")\n'
ELSE = (REPORT, f'{REPORT}        else:\n            logger.warning("skipped")\n')


@WITH_THE_CURE
@pytest.mark.parametrize("name", LIBRARIES)
def test_two_schedulers_and_two_workers_run_each_fire_time_once(
    name: str, cured: bool, redis: RedisEndpoint, tmp_path: Path
) -> None:
    """Without the cure, one worker takes both messages of a fire time in sequence, and the lock is free."""
    library = LIBRARIES[name]
    need(library.package)
    with Processes(tmp_path, redis) as host:
        host.replace(library.program, ELSE, *library.faster, *([] if cured else [ALONE[name]]))
        schedulers = host.start(command(library.scheduler), copies=2)
        wait_until(lambda: has_twins(library.sent(redis)), timeout=90, what="two messages of one fire time")
        end(schedulers)
        sent = library.sent(redis)
        workers = f"{command(library.worker)} {library.several if cured else library.one}"
        host.start(workers, copies=2 if cured else 1)
        wait_until(lambda: host.count(RAN) + host.count(SKIPPED) == len(sent), timeout=90, what="all messages done")
        if not cured:
            assert host.count(RAN) == len(sent)
            return
        granted = host.fire_times()
        assert host.count(RAN) == len(granted)
        assert granted == sorted(set(granted)), "one run for each fire time, and no run for an older one"
        assert granted[-1] == max(sent)
        assert set(granted) <= set(sent)


def test_arq_runs_a_fire_time_once_although_a_worker_stood_still(redis: RedisEndpoint, tmp_path: Path) -> None:
    """That worker enqueues a job that has already run elsewhere; arq starts it after a minute."""
    need("arq")
    with Processes(tmp_path, redis) as host, redis.client(BROKER) as client:

        def queued() -> set[int]:
            """Return the fire times of queued jobs; a job that ends leaves the queue."""
            return {int(job.rpartition(b":")[2]) for job in cast("list[bytes]", client.zrange("arq:queue", 0, -1))}

        host.replace(
            "arq_jobs.py",
            ("minute=set(range(0, 60, 5))", "second=set(range(60))"),
            (ELSE[0], ELSE[1].replace('"skipped"', '"skipped %s", milliseconds')),
        )
        workers = [host.start(command("arq ")) for _ in range(2)]
        wait_until(lambda: host.count("Starting worker") == 2 and host.count(RAN) >= 2, timeout=60, what="two workers")
        pid = workers[1].processes[0].pid
        while not stands_still(host, pid):
            wait_until(lambda: not host.is_held_by(pid), timeout=60, what="its run has ended")
        over = {round(time.timestamp() * 1000) for time in host.fire_times()} - queued()
        signal_tree(pid, signal.SIGCONT)
        wait_until(lambda: over & queued(), timeout=60, what="a job that has run in the queue")
        job = max(over & queued())
        client.delete(f"arq:in-progress:cron:report:{job}")  # Redis does this after 60 seconds
        wait_until(lambda: host.count(f"{SKIPPED} {job}\n") == 1, timeout=60, what="it is started again")
        wait_until(lambda: host.count(RAN) == len(host.fire_times()), timeout=60, what="as many runs as fire times")
        granted = host.fire_times()
        assert granted == sorted(set(granted))


def stands_still(host: Processes, pid: int) -> bool:
    """Stop a worker for three runs of the other worker.

    Return False if the stopped worker was in a run: its lease blocks the other worker.
    """
    signal_tree(pid, signal.SIGSTOP)
    before = host.count(RAN)
    wait_until(lambda: host.count(RAN) >= before + 3 or host.is_held_by(pid), timeout=60, what="three runs elsewhere")
    if host.count(RAN) >= before + 3:
        return True
    signal_tree(pid, signal.SIGCONT)
    return False


@WITH_THE_CURE
def test_three_replicas_of_schedule(cured: bool, redis: RedisEndpoint, tmp_path: Path) -> None:
    """Each replica counts the period from its own start, so one replica's tick falls between two of another."""
    need("schedule")
    hold = 0.9
    with Processes(tmp_path, redis) as host:
        host.replace(
            "scheduled.py",
            ("every(10).minutes", "every(1).seconds"),
            ("time.sleep(1)", "time.sleep(0.05)"),
            ('lock_at_least_for="9m"', f'lock_at_least_for="{hold if cured else 0}s"'),
            ("\nconfigure(", '\nlogging.basicConfig(level="DEBUG", format="%(process)d %(message)s")\nconfigure('),
        )
        replicas = host.start(command("python scheduled.py"), copies=3)
        ticks = [f"{process.pid} Running job" for process in replicas.processes]
        wait_until(lambda: min(map(host.count, ticks)) >= 3, timeout=60, what="three ticks of each replica")
        end(replicas)
        runs = [run.started.timestamp() for run in host.runs("clean-up")]
        assert host.count("cleaning up") in (len(runs), len(runs) - 1)  # SIGTERM may come between the two
        gaps = [later - earlier for earlier, later in pairwise(runs)]
        assert (min(gaps) >= hold) is cured


def test_a_store_that_cannot_be_reached_does_not_end_the_loop_of_schedule(redis: RedisEndpoint, tmp_path: Path) -> None:
    need("schedule")
    with Processes(tmp_path, redis) as host:
        every_second = ("every(10).minutes", "every(1).seconds")
        everywhere = 'os.environ.get("SHEDLOCK_STORE", "redis://localhost/0"), create_schema=True'
        nowhere = (f"configure({everywhere})", f'configure("{NOWHERE}")')
        host.replace("scheduled.py", every_second, nowhere)
        replica = host.start(command("python scheduled.py"))
        wait_until(lambda: host.count("ProviderUnreachable: ") >= 2, timeout=60, what="two ticks")
        assert replica.processes[0].poll() is None
        host.replace("scheduled.py", (".do(run, clean_up)", ".do(clean_up)"))
        assert host.start(command("python scheduled.py")).processes[0].wait(60) == 1


def test_what_goes_wrong_with_schedule() -> None:
    schedule = pytest.importorskip("schedule")
    ran: list[str] = []
    with configure(provider=InMemoryLockProvider()):
        lock = scheduler_lock("job", "1h", "1h")
        above, below, other = (schedule.Scheduler() for _ in range(3))
        schedule.repeat(above.every().day)(lock(lambda: ran.append("guarded")))
        lock(schedule.repeat(below.every().day)(lambda: ran.append("not guarded")))
        for scheduler in (above, above, below, below):
            scheduler.run_all()
        assert ran == ["guarded", "not guarded", "not guarded"]
        once = scheduler_lock("once", "1h", "1h")(lambda: schedule.CancelJob)
        for scheduler in (above, other):
            scheduler.clear()
            scheduler.every().day.do(once)
            scheduler.run_all()
        assert (len(above.jobs), len(other.jobs)) == (0, 1)
