"""``shedlock page``."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from tests.cli.harness import in_a_process, provider_at, run, take
from tests.support.forked import Program
from tests.support.scripts import PROJECT

TOKEN = "correct-horse-battery-staple"


@contextmanager
def served(*arguments: str, store: str, **variables: str) -> Iterator[tuple[str, Program]]:
    """Serve a page in a new process. Yield its address."""
    process = Program(
        ["-m", "shedlock_py", "page", "--port", "0", *arguments],
        env={**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1", "SHEDLOCK_STORE": store, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"(http://\S+/) shows <(?:Async)?SqlAlchemyLockProvider .*>; (.*); Ctrl-C ends$", line)
        assert found, line or process.communicate()[1]
        yield found[1], process
    finally:
        process.kill()
        process.communicate()


def get(address: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def with_history(store: str) -> str:
    url = f"{store}?history=5"
    provider_at(url).create_schema()
    return url


@in_a_process
def test_it_serves_this_machine_only_and_ends_with_ctrl_c(store: str) -> None:
    take(with_history(store), "nightly-report", holder="web-1:1")
    with served(store=with_history(store)) as (address, process):
        assert address.startswith("http://127.0.0.1:")
        status, html = get(address)
        assert (status, "nightly-report" in html, "read-only" in html) == (200, True, True)
        assert get(address, Host="evil.example")[0] == 421
        assert get(f"{address}change/pause?name=nightly-report")[0] == 403
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2].strip("/")))) as hostile:
            hostile.sendall(b"\x00\x01 no request\r\n\r\n")
            assert b"400" in hostile.recv(100)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


@in_a_process
def test_with_a_token(store: str) -> None:
    with served("--host", "0.0.0.0", "--allow-changes", store=store, SHEDLOCK_PAGE_TOKEN=TOKEN) as (address, _):
        address = address.replace("0.0.0.0", "127.0.0.1")
        assert get(address)[0] == 401
        status, html = get(address, Authorization=f"Bearer {TOKEN}")
        assert (status, "changes are allowed" in html) == (200, True)


@in_a_process
def test_a_long_head_is_refused_by_any_installation_of_uvicorn(store: str, tmp_path: Path) -> None:
    """uvicorn prefers httptools if it is installed, and then does not limit the head."""
    (tmp_path / "httptools.py").write_text("raise RuntimeError('must not be used')")
    path = f"{tmp_path}{os.pathsep}{PROJECT}"
    with served(store=with_history(store), PYTHONPATH=path) as (address, _):
        assert get(address)[0] == 200
        with socket.create_connection(("127.0.0.1", int(address.rstrip("/").rpartition(":")[2])), 10) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: " + b"x" * 20_000)
            assert connection.recv(100).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_beyond_this_machine_a_token_is_required(store: str, host: str) -> None:
    done = run("page", "--host", host, store=store)
    assert done.exit_code == 78
    assert "set SHEDLOCK_PAGE_TOKEN" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--token", "short"], 78, "the token of the page has 5 characters; the minimum is 16"),
        (["--election", "x" * 100], 78, "64"),
        (["--port", "70000"], 64, "70000"),
        (["--host", "192.0.2.1", "--token", TOKEN], 69, "cannot listen on 192.0.2.1 port"),
    ],
)
def test_a_mistake_is_one_line(store: str, arguments: list[str], code: int, words: str) -> None:
    done = run("page", "--port", "0", *arguments, store=store)
    assert (done.exit_code, done.stdout) == (code, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_that_is_taken(store: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = run("page", "--port", str(other.getsockname()[1]), store=store)
    assert (done.exit_code, "another --port may be free" in done.stderr) == (69, True)


def test_the_page_is_written_to_a_file_or_the_exit_code_says_why_not(store: str, tmp_path: Path) -> None:
    take(with_history(store), "nightly-report", holder="web-1:1")
    out = tmp_path / "report.html"
    done = run("page", "--out", str(out), store=with_history(store))
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"{out}\n", "")
    assert "nightly-report" in out.read_text()
    assert sorted(path.name for path in tmp_path.iterdir() if "html" in path.name) == ["report.html"]
    done = run("page", "--out", str(tmp_path / "nosuch" / "report.html"), store=store)
    assert (done.exit_code, "cannot be written: No such file" in done.stderr) == (74, True)
    done = run("page", "--out", str(out), store=f"sqlite:///{tmp_path}/nosuch.db")
    assert done.exit_code == 69


def test_a_history_that_cannot_be_read_hides_no_locks(store: str, tmp_path: Path) -> None:
    take(store, "nightly-report")
    out = tmp_path / "report.html"
    done = run("page", "--out", str(out), store=f"{store}?history=5")
    assert done.exit_code == 0
    assert "nightly-report" in out.read_text()
    assert "The run history cannot be read: " in out.read_text()
    assert "shedlock schema --create" in out.read_text()


def test_a_file_of_a_store_that_does_not_reply(tmp_path: Path) -> None:
    done = run("page", "--out", str(tmp_path / "x.html"), store="redis://:s3cret-pw@127.0.0.1:1/0?timeout=1s")
    assert done.exit_code == 69
    assert "s3cret-pw" not in done.stderr
    assert not (tmp_path / "x.html").exists()


def test_a_dash_is_standard_output(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    done = run("page", "--out", "-", store=store)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("<!doctype html>")
    assert done.stdout.endswith("</html>")
    assert set(tmp_path.iterdir()) == before


def test_what_is_no_regular_file_is_written_and_not_replaced(store: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = Thread(target=lambda: found.append(pipe.read_text()), daemon=True)
    reader.start()
    done = run("page", "--out", str(pipe), store=store)
    assert (done.exit_code, done.output) == (0, "")  # any further output would be in the file of /dev/stdout
    assert pipe.is_fifo()
    reader.join(10)
    assert found[0].startswith("<!doctype html>")


@pytest.mark.parametrize("exists", [True, False])
def test_the_target_of_a_link_is_replaced(store: str, tmp_path: Path, exists: bool) -> None:
    (tmp_path / "site").mkdir()
    target, link = tmp_path / "site" / "report.html", tmp_path / "link.html"
    link.symlink_to("site/report.html")
    if exists:
        target.write_text("before")
    assert run("page", "--out", str(link), store=store).exit_code == 0
    assert link.is_symlink()
    assert target.read_text().startswith("<!doctype html>")
    assert [each.name for each in target.parent.iterdir()] == ["report.html"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
def test_a_link_of_a_stranger_is_not_followed(store: str, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    target, link = tmp_path / "precious", tmp_path / "shared" / "report.html"
    target.write_text("before")
    link.symlink_to(target)
    os.chown(link, 4242, 4242, follow_symlinks=False)
    done = run("page", "--out", str(link), store=store)
    assert (done.exit_code, target.read_text()) == (74, "before")
    assert "is a link of another user" in done.stderr


def test_a_failure_deletes_no_file_of_others(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    out, other = tmp_path / "report.html", tmp_path / f".report.html.{os.getpid()}"
    other.write_text("of somebody else")
    monkeypatch.setattr(Path, "replace", fail)
    done = run("page", "--out", str(out), store=store)
    assert (done.exit_code, done.stdout) == (74, "")
    assert [each.name for each in tmp_path.glob(".report*")] == [other.name]
    monkeypatch.undo()
    assert run("page", "--out", str(out), store=store).exit_code == 0
    assert other.read_text() == "of somebody else"
    assert stat.S_IMODE(out.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)


def test_a_file_keeps_its_mode(store: str, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.touch(0o600)
    assert run("page", "--out", str(out), store=store).exit_code == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert out.read_text()


def test_without_its_packages(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("shedlock_py.page")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = run("page", store=store)
    assert done.exit_code == 78
    assert "pip install 'shedlock_py[page]'" in done.stderr
