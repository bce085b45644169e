"""The demo on other stores than SQLite, as ``make demo STORE=…`` runs it: on a private server, which ends with it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from examples.demo import __main__ as demo
from examples.demo.servers import PRIVATE
from tests.guides.examples.scripts import PROJECT, run_python
from tests.support.availability import missing
from tests.support.polling import wait_until
from tests.support.processes import descendants, is_running
from tests.support.redis import RedisServer
from tests.support.servers import ServerError


@pytest.fixture(scope="module")
def demos() -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """All of them at once: each one takes ten seconds, and most of that is waiting."""
    with ThreadPoolExecutor(len(PRIVATE)) as pool:
        options = ("-m", "examples.demo", "--seconds", "3", "--private")
        yield {kind: pool.submit(run_python, *options, kind, timeout=100) for kind in PRIVATE}


@pytest.mark.parametrize("kind", PRIVATE)
def test_i3_i11_the_demo_keeps_every_promise(
    kind: str, demos: dict[str, Future[subprocess.CompletedProcess[str]]]
) -> None:
    done = demos[kind].result()
    if "not installed: " in done.stderr:
        missing(done.stderr.strip(), "make servers")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == (f"starting a private {kind}", "Every promise was kept.")
    assert "was KILLED with SIGKILL in the middle of report" in done.stdout
    assert " took over " in done.stdout


@pytest.fixture
def _interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize(
    ("kind", "with_signal", "status"),
    [
        ("redis", signal.SIGINT, 130),
        ("redis", signal.SIGTERM, 130),
        ("redis", signal.SIGKILL, -signal.SIGKILL),
        ("postgres", signal.SIGINT, 130),  # its sessions are processes, too
    ],
)
def test_no_server_outlives_the_demo(kind: str, with_signal: signal.Signals, status: int, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--private", kind],
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
    in_directories = {os.readlink(f"/proc/{pid}/cwd") for pid in started} - {str(PROJECT)}
    assert len(started) > 3  # the replicas
    assert len(in_directories) == 1
    process.send_signal(with_signal)
    _, error = process.communicate(timeout=30)
    wait_until(lambda: not any(map(is_running, started)), what="replicas and server gone")
    assert process.returncode == status
    if with_signal is signal.SIGKILL:
        shutil.rmtree(server_directory(in_directories.pop()))
    else:
        assert error == "interrupted; all that was started is stopped\n"
        assert list(tmp_path.iterdir()) == []
        assert not server_directory(in_directories.pop()).exists()


def server_directory(inside: str) -> Path:
    """The temporary directory of a server that works ``inside`` it."""
    return Path(*Path(inside).parts[:3])


def test_a_server_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert demo.main(["--private", "redis"]) == 2
    assert capsys.readouterr() == ("", "error: redis: not installed: redis-server; run: make demo STORE=redis\n")


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "tests.support.redis", None)
    assert demo.main(["--private", "redis-quorum"]) == 2
    assert capsys.readouterr() == (
        "",
        "error: redis-quorum: no module named 'tests.support.redis'; run: make demo STORE=redis-quorum\n",
    )


def test_a_server_that_does_not_start(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def start(server: RedisServer) -> None:
        raise ServerError("redis on port 20001 ended at once")

    monkeypatch.setattr(RedisServer, "find_programs", dict)
    monkeypatch.setattr(RedisServer, "start", start)
    assert demo.main(["--private", "redis"]) == 2
    assert capsys.readouterr() == ("starting a private redis\n", "error: redis on port 20001 ended at once\n")


@pytest.mark.parametrize("arguments", [["--private", "nosuch"], ["--private", "redis", "--store", "memory://"]])
def test_options_that_cannot_work(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main(arguments)
    assert "--private" in capsys.readouterr().err


class TestMake:
    def test_store_takes_what_the_demo_takes(self) -> None:
        done = make("demo", "STORE=nosuch")
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert "unknown STORE=nosuch" in line
        choices = line.partition("choose one of: ")[2].partition(".")[0]
        assert choices.split() == ["sqlite", *PRIVATE]

    def test_help_names_them(self) -> None:
        assert " ".join(PRIVATE) in make("help").stdout

    @pytest.mark.parametrize(
        ("kind", "server"),
        [(kind, kind) for kind in ("postgres", "mariadb", "redis")] + [("redis-quorum", "redis"), ("mongodb", "")],
    )
    def test_it_installs_that_server_only(self, kind: str, server: str) -> None:
        plan = make("--dry-run", "demo", f"STORE={kind}").stdout
        assert f"-m examples.demo --private '{kind}'" in plan
        assert [line.split()[2:] for line in plan.splitlines() if "install-servers" in line] == [[server]] * bool(
            server
        )

    def test_sqlite_needs_no_server(self) -> None:
        for plan in (make("--dry-run", "demo").stdout, make("--dry-run", "demo", "STORE=sqlite").stdout):
            assert "-m examples.demo" in plan
            assert "install-servers" not in plan
            assert "private" not in plan


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("make") is None:
        missing("make is not installed", "apt-get install make")
    # Not what the make that runs the tests was told.
    clean = {name: value for name, value in os.environ.items() if name not in ("STORE", "MAKEFLAGS", "MAKELEVEL")}
    return subprocess.run(["make", *arguments], cwd=PROJECT, env=clean, capture_output=True, text=True, check=False)
