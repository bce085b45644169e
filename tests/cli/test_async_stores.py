"""The command line accepts an async application's URL or reference. ALSO_ON_ASYNCPG marks further tests."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shedlock_py.testing.proxy import TcpProxy
from tests.cli.harness import file_store, in_a_process, provider_at, run, shedlock_command, take
from tests.cli.terminal import command, environment
from tests.cli.test_page import get, served
from tests.support.database import DatabaseServer
from tests.support.forked import Program

pytestmark = in_a_process


DATABASE = "tests_cli_async"


@pytest.fixture
def urls(postgres_server: DatabaseServer) -> Iterator[Callable[..., str]]:
    """A function that makes URLs of one database, for a driver."""
    with postgres_server.new_database(DATABASE):

        def url(driver: str, **options: Any) -> str:
            return postgres_server.url(f"postgresql+{driver}", DATABASE, **options)

        assert run("schema", "--create", store=f"{url('asyncpg')}?history=5").exit_code == 0
        yield url


def started(*arguments: str, store: str, cwd: Path | None = None) -> Program:
    return Program(
        ["-m", "shedlock_py", *arguments],
        env=environment(SHEDLOCK_STORE=store),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.slow("starts a web server and two programs; other tests have samples")
def test_the_commands_that_the_other_tests_do_not_run(urls: Callable[..., str], tmp_path: Path) -> None:
    store, provider = f"{urls('asyncpg')}?history=5", provider_at(urls("psycopg"))

    def ok(*arguments: str) -> str:
        done = run(*arguments, store=store)
        assert (done.exit_code, done.stderr) == (0, ""), done.output
        return done.stdout

    ended = shedlock_command("run", "job", "--at-most", "1m", "--", "sh", "-c", "exit 3", store=store)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "", "")
    (ran,) = json.loads(ok("history", "job", "--json"))
    assert (ran["outcome"], ran["error"]) == ("failed", "CommandFailed: exit code 3")
    assert json.loads(ok("overdue", "--json"))[0]["state"] == "unknown"
    assert "is paused until" in ok("pause", "job", "--for", "1h")
    record = provider.record("job")
    assert record is not None
    assert record.is_paused
    assert "lock 'job' is resumed" in ok("resume", "job")
    take(provider, "job", holder="web-1:7")
    ok("page", "--out", str(tmp_path / "page.html"))
    assert "web-1:7" in (tmp_path / "page.html").read_text()
    with served("--allow-changes", store=store) as (address, page):
        assert "web-1:7" in get(address)[1]
        page.send_signal(signal.SIGINT)
        assert page.wait(30) == 0
    with started("watch", "--json", store=store) as watch:
        assert watch.stdout is not None
        assert json.loads(watch.stdout.readline())["lock"]["holder"] == "web-1:7"
        watch.send_signal(signal.SIGINT)
        assert (watch.wait(30), watch.communicate()) == (0, ("", ""))


def test_ctrl_c_ends_a_wait_and_nothing_is_paused(urls: Callable[..., str]) -> None:
    provider = provider_at(urls("psycopg"))
    lease = take(provider, "job")
    with started("pause", "job", "--for", "2h", "--wait", "10m", store=urls("asyncpg")) as pause:
        assert pause.stderr is not None
        assert "waiting for lock 'job'" in pause.stderr.readline()
        pause.send_signal(signal.SIGINT)
        assert (pause.wait(30), pause.communicate()) == (130, ("", "\n"))
    provider.release(lease)
    record = provider.record("job")
    assert record is not None
    assert not record.is_held


CONNECTING = """
import asyncio, sys
from sqlalchemy.ext.asyncio import create_async_engine
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider

class Provider(AsyncSqlAlchemyLockProvider):
    async def records(self, prefix):
        reply = asyncio.get_running_loop().create_future()
        print("connecting", file=sys.stderr, flush=True)
        try:
            await asyncio.Event().wait()  # nobody sets it
        except asyncio.CancelledError:
            reply.set_exception(ConnectionError("unexpected connection_lost() call"))
            raise

provider = Provider(create_async_engine({!r}))
"""


def test_ctrl_c_while_the_driver_connects(tmp_path: Path) -> None:
    """The signal may leave an exception that nothing awaits, which asyncio logs: asyncpg had such a fault."""
    url = file_store(tmp_path).replace("sqlite:", "sqlite+aiosqlite:")
    (tmp_path / "application.py").write_text(CONNECTING.format(url))
    with started("list", store="application:provider", cwd=tmp_path) as listing:
        assert listing.stderr is not None
        assert listing.stderr.readline() == "connecting\n"
        listing.send_signal(signal.SIGINT)
        assert (listing.wait(30), listing.communicate()) == (130, ("", "\n"))


def test_i13_a_store_that_stands_still_is_one_line(postgres_server: DatabaseServer, urls: Callable[..., str]) -> None:
    with TcpProxy(postgres_server.address) as proxy:
        store = urls("asyncpg", via=proxy.address)
        assert run("list", store=store).exit_code == 0
        proxy.stall()
        done = run("list", store=f"{store}?timeout=1s")
        assert (done.exit_code, done.stderr.count("\n")) == (69, 1)


APPLICATION = """
from sqlalchemy.ext.asyncio import create_async_engine
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider

provider = AsyncSqlAlchemyLockProvider(create_async_engine({!r}))  # whose pool keeps its connections

def make_provider():
    return provider
"""


@pytest.mark.parametrize(
    ("reference", "scheme"),
    [("application:provider", "postgresql+asyncpg"), ("application:make_provider", "sqlite+aiosqlite")],
)
def test_a_reference_to_an_async_provider_names_a_store(
    reference: str, scheme: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if scheme.startswith("sqlite"):
        url = file_store(tmp_path).replace("sqlite:", f"{scheme}:")
    else:
        url = request.getfixturevalue("urls")("asyncpg")
    (tmp_path / "application.py").write_text(APPLICATION.format(url))
    words = ("--keep-alive", "--", "sh", "-c", "echo ran; exit 3")
    done = shedlock_command("run", "job", "--at-most", "1m", *words, store=reference, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, "ran\n", "")
    done = shedlock_command("list", "--json", store=reference, cwd=tmp_path)
    assert (done.returncode, [lock["name"] for lock in json.loads(done.stdout)], done.stderr) == (0, ["job"], "")


def test_python_may_forbid_to_import_from_the_working_directory(tmp_path: Path) -> None:
    """The rule is the one for ``python -m``: other users may write into the directory where a command starts."""
    (tmp_path / "application.py").write_text("print('imported')")
    reference = "application:provider"
    assert "imported" in shedlock_command("list", store=reference, cwd=tmp_path).stdout
    words, environ = command("list"), environment(SHEDLOCK_STORE=reference, PYTHONSAFEPATH="1")
    done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (78, "")
    assert "No module named 'application'" in done.stderr


WITHOUT = """
import sys, importlib.machinery as machinery
find = machinery.PathFinder.find_spec
missing = sys.argv.pop(1).split(",")
machinery.PathFinder.find_spec = lambda name, *more: None if name in missing else find(name, *more)
from shedlock_py.__main__ import main
main()
"""


@pytest.mark.slow("starts an interpreter")
@pytest.mark.parametrize(
    ("driver", "missing", "package"),
    [
        ("", "psycopg,psycopg2", None),  # the installed driver is for asyncio; an application finds it too
        ("", "psycopg,psycopg2,asyncpg", "shedlock_py[postgresql]"),
        ("+asyncpg", "asyncpg", "shedlock_py[asyncpg]"),
    ],
)
def test_drivers_that_are_not_installed(
    driver: str, missing: str, package: str | None, urls: Callable[..., str]
) -> None:
    store = urls("asyncpg").replace("+asyncpg", driver)
    words = [sys.executable, "-c", WITHOUT, missing, "list"]  # the fork server has imported drivers
    done = subprocess.run(words, env=environment(SHEDLOCK_STORE=store), capture_output=True, text=True, timeout=60)
    if package is None:
        assert (done.returncode, done.stderr) == (0, "no locks in the store\n")
    else:
        assert done.returncode == 78
        assert f"pip install '{package}'" in done.stderr
