"""docs/how-to/kubernetes.md: the manifests agree with the page, and their commands run."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import yaml

from shedlock_py import provider_from_url
from shedlock_py.model.durations import parse_duration
from tests.guides.documents import Page
from tests.programs.applications import HUNG_JOB, application, copied, set_drain
from tests.programs.command_lines import try_twice
from tests.support.polling import wait_until

PAGE = Page("kubernetes")


def manifest(name: str) -> dict[str, Any]:
    (document,) = yaml.safe_load_all((PAGE.examples / name).read_text())
    assert isinstance(document, dict)
    return document


def check_common(pod: Any) -> Any:
    (container,) = pod["containers"]
    (variable,) = container["env"]
    assert variable["name"] == "SHEDLOCK_STORE"
    assert set(variable["valueFrom"]["secretKeyRef"]) == {"name", "key"}
    assert container["command"][0] not in ("sh", "bash", "/bin/sh", "/bin/bash"), "a shell would keep SIGTERM"
    return container


def test_the_cron_job(tmp_path: Path) -> None:
    document = manifest("cronjob.yaml")
    job = document["spec"]["jobTemplate"]["spec"]
    container = check_common(job["template"]["spec"])
    assert (document["apiVersion"], document["kind"]) == ("batch/v1", "CronJob")
    assert document["spec"]["concurrencyPolicy"] == "Forbid"
    assert document["spec"]["timeZone"] == "Etc/UTC"
    assert len(document["spec"]["schedule"].split()) == 5
    assert "--once-per" in container["command"]
    assert job["backoffLimit"] == 0
    record, output = try_twice([*container["command"], *container["args"]], tmp_path)
    assert record.name == document["metadata"]["name"]
    assert record.last_fire_time is not None
    assert output in [block.text for block in PAGE.of("text")]


def test_the_deployment_gives_more_time_than_the_worker_waits() -> None:
    document = manifest("deployment.yaml")
    pod = document["spec"]["template"]["spec"]
    container = check_common(pod)
    assert (document["apiVersion"], document["kind"]) == ("apps/v1", "Deployment")
    assert document["spec"]["replicas"] == 3
    labels = document["spec"]["template"]["metadata"]["labels"]
    assert document["spec"]["selector"]["matchLabels"] == labels
    assert container["command"][-1] == "worker.py"
    waits = re.findall(
        r'(?:release_on_sigterm\(|drain\(scheduler, )"(\w+)"\)', (PAGE.examples / "worker.py").read_text()
    )
    assert len(waits) == 2, "they have one time together"
    for wait in waits:
        assert pod["terminationGracePeriodSeconds"] > parse_duration(wait).total_seconds() + 5


def test_a_pod_that_is_stopped_ends_its_job_and_releases(tmp_path: Path) -> None:
    directory = copied("kubernetes", tmp_path)
    provider = provider_from_url(f"sqlite:///{directory}/locks.db")
    command = " ".join(manifest("deployment.yaml")["spec"]["template"]["spec"]["containers"][0]["command"])
    with application(command, directory, 3, SHEDLOCK_STORE="sqlite:///locks.db") as app:
        wait_until(lambda: "import begun" in app.log.read_text(), timeout=30, what="the job")
        (holder,) = {int(pid) for pid in re.findall(r"^(\d+) import begun", app.log.read_text(), re.MULTILINE)}
        (stopped,) = [process for process in app.processes if process.pid == holder]
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait(20) == 143
        assert re.findall(r"^(\d+) import done", app.log.read_text(), re.MULTILINE) == [str(holder)]
        record = provider.record("import")
        assert record is not None
        assert not record.is_held or f":{holder}" not in record.holder


def test_i14_a_pod_whose_job_is_longer_than_the_wait_ends_and_names_the_fire_time(tmp_path: Path) -> None:
    directory = copied("kubernetes", tmp_path, more=HUNG_JOB, program="worker.py")
    set_drain(directory / "worker.py")
    with application("python worker.py", directory, SHEDLOCK_STORE="sqlite:///locks.db") as app:
        wait_until(lambda: "hung has begun" in app.log.read_text(), timeout=30, what="the job")
        assert app.terminate() == [143]
        assert len(app.lost("hung")) == 1
