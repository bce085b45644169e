"""The demo, as ``make demo`` runs it, on a file and on private servers: with locks every promise holds."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo import __main__ as demo
from examples.demo.servers import PRIVATE
from tests.support.availability import missing
from tests.support.polling import wait_until
from tests.support.processes import descendants, is_running
from tests.support.redis import RedisServer
from tests.support.scripts import PROJECT, run_python
from tests.support.server_process import ServerError

IN_MAKE_TEST = ("sqlite", "redis")
"""The demo shows the same on other stores; the contract tests those stores."""
KINDS = [
    kind
    if kind in IN_MAKE_TEST
    else pytest.param(kind, marks=pytest.mark.matrix("the demo shows the same on each store"))
    for kind in ("sqlite", *PRIVATE)
]


@pytest.mark.parametrize("kind", KINDS)
def test_i3_i11_the_demo_keeps_every_promise(kind: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    private = ["--private", kind] if kind != "sqlite" else []
    done = run_python("-m", "examples.demo", "--seconds", "3", "--page", str(page), *private, timeout=100)
    if "; run: make demo" in done.stderr:
        missing(done.stderr.strip(), "make servers")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    if kind != "sqlite":
        assert lines[0] == f"starting a private {kind}"
    assert lines[-3:] == [
        "Every promise was kept.",
        "",
        f"The page of these jobs, as shedlock page shows it: {page}",
    ]
    html = page.read_text()
    if kind in demo.WITHOUT_HISTORY:
        assert "This store keeps no run history. The page shows the present, but no past runs." in html
    else:
        assert "Last 5 minutes: " in html
        assert '<span class="chip vanished">vanished</span>' in html  # the run of the killed replica
    assert "was KILLED with SIGKILL in the middle of report" in done.stdout
    assert " took over " in done.stdout


def test_without_locks_promises_are_broken(tmp_path: Path) -> None:
    done = run_python("-m", "examples.demo", "--seconds", "3", "--no-lock", "--page", str(tmp_path / "page.html"))
    assert (done.returncode, done.stderr) == (1, ""), done.stdout
    assert "BROKEN PROMISES" in done.stdout
    assert "ran 3 times: on replica-1, replica-2, replica-3" in done.stdout


# Invalid options and stores


@pytest.mark.parametrize(
    ("url", "words"),
    [("nosuch://host", "unknown scheme 'nosuch'"), ("postgresql+psycopg://user:s3cret@127.0.0.1:1/db", "127.0.0.1")],
)
def test_a_store_that_cannot_work(url: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--store", url]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "s3cret" not in error


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--seconds", value] for value in ("0", "-1", "3601", "nan", "soon")),
        ["--private", "nosuch"],
        ["--private", "redis", "--store", "memory://"],
    ],
)
def test_options_that_cannot_work(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main(arguments)
    assert arguments[0] in capsys.readouterr().err


def test_a_server_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert demo.main(["--private", "redis"]) == 2
    assert capsys.readouterr() == ("", "error: redis: Redis 8 is not fetched yet; run: make demo STORE=redis\n")


def test_a_server_that_does_not_start(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def start(server: RedisServer) -> None:
        raise ServerError("redis on port 20001 ended at once")

    monkeypatch.setattr(RedisServer, "find_programs", dict)
    monkeypatch.setattr(RedisServer, "start", start)
    assert demo.main(["--private", "redis"]) == 2
    assert capsys.readouterr() == ("starting a private redis\n", "error: redis on port 20001 ended at once\n")


# Leftovers after its end


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Restore SIGINT: a shell makes its background processes and their children ignore it, and CI may run this way."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize(
    ("kind", "with_signal"),
    [
        ("", signal.SIGINT),
        ("", signal.SIGKILL),
        ("redis", signal.SIGINT),
        ("redis", signal.SIGTERM),
        ("redis", signal.SIGKILL),
        ("postgres", signal.SIGINT),  # its sessions are processes, too
    ],
)
def test_no_process_outlives_the_demo(kind: str, with_signal: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.demo", *(["--private", kind] if kind else [])],
        cwd=PROJECT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "is ready" not in (line := process.stdout.readline()):
        if not line:
            _, error = process.communicate()
            missing(error.strip(), "make servers")
    started = descendants(process.pid)
    inside = {os.readlink(f"/proc/{pid}/cwd") for pid in started} - {str(PROJECT)}
    assert (len(started) > 3, len(inside)) == ((True, 1) if kind else (False, 0)), "three replicas, perhaps a server"
    process.send_signal(with_signal)
    _, error = process.communicate(timeout=30)
    wait_until(lambda: not any(map(is_running, started)), what="replicas and server gone")
    of_the_server = [_private_directory(Path(directory)) for directory in inside]
    if with_signal is signal.SIGKILL:
        for directory in of_the_server:
            shutil.rmtree(directory)
    else:
        assert (process.returncode, error) == (130, "interrupted; all that was started is stopped\n")
        assert list(tmp_path.iterdir()) == []
        assert not any(directory.exists() for directory in of_the_server)


def _private_directory(inside: Path) -> Path:
    """Return the directory of the server that works ``inside``: this path, or its nearest named parent."""
    return next(path for path in (inside, *inside.parents) if path.name.startswith("shedlock-"))


def test_make_demo_takes_the_stores_that_the_demo_takes() -> None:
    done = make("demo", "STORE=nosuch")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    choices = line.partition("unknown STORE=nosuch")[2].partition("choose one of: ")[2].partition(".")[0]
    assert choices.split() == ["sqlite", *PRIVATE]
    assert " ".join(PRIVATE) in make("help").stdout


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("mariadb", "scripts/install-servers.sh .venv/bin/python mariadb"),
        *(
            (kind, f".venv/bin/python -m tests.support.fetching {kind}")
            for kind in ("postgres", "mysql", "redis", "etcd", "dynamodb", "s3")
        ),
        ("redis-quorum", ".venv/bin/python -m tests.support.fetching redis"),
        ("mongodb", ""),
        ("sqlite", ""),
    ],
)
def test_make_demo_brings_that_server_only(kind: str, command: str) -> None:
    plan = make("--dry-run", "demo", f"STORE={kind}").stdout
    assert "-m examples.demo" in plan
    assert (f"--private '{kind}'" in plan) is ("private" in plan) is (kind != "sqlite")
    bringing = [line for line in plan.splitlines() if "install-servers" in line or "fetching" in line]
    assert bringing == [command] * bool(command)


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("make") is None:
        missing("make is not installed", "apt-get install make")
    # Leave out the variables of the make that runs the tests.
    clean = {name: value for name, value in os.environ.items() if name not in ("STORE", "MAKEFLAGS", "MAKELEVEL")}
    return subprocess.run(["make", *arguments], cwd=PROJECT, env=clean, capture_output=True, text=True, check=False)
