"""docs/providers/writing-your-own.md: the page's provider is the tested provider, and its failures are correct.

``test_json_file.py`` runs the contract suite on it. The asyncio client runs here.
"""

import asyncio
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from examples.providers.json_file import NEW_FILE, JsonFileLockProvider
from shedlock_py import LockRequest, ProviderError, ProviderUnreachable, provider_from_url
from shedlock_py.providers import cas, kit
from shedlock_py.testing.contract import LockProviderFactory, StallingStoreContract
from tests.support.scripts import PROJECT

PAGE = (PROJECT / "docs" / "providers" / "writing-your-own.md").read_text()
MODULE = (PROJECT / "examples" / "providers" / "json_file.py").read_text()
LONG = "1h"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "locks.json"
    JsonFileLockProvider(path).create_schema()
    return path


class TestStalling(StallingStoreContract):
    @pytest.fixture
    def make_provider(self, path: Path) -> LockProviderFactory:
        self.path = path
        return lambda: JsonFileLockProvider(path)

    @contextmanager
    def stalled(self, name: str) -> Iterator[None]:
        with open(f"{self.path}.lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_shows_the_module() -> None:
    assert blocks("python")[0] == MODULE


def test_the_page_lists_all_failures() -> None:
    assert re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE) == [failure.name for failure in kit.Failure]


def block_with(start: str) -> str:
    [block] = [block for block in blocks("python") if block.startswith(start)]
    return block


class Server:
    """A compare-and-swap store in memory, which also replaces its driver."""

    def __init__(self) -> None:
        self.is_up = True
        self.silences = 0
        """Number of writes that get no reply."""
        self.open: set[Connection] = set()
        self._entries: dict[str, cas.Entry] = {}
        self._versions = count(1)

    async def connect(self, url: str) -> "Connection":
        if not self.is_up:
            raise ConnectionRefusedError(f"nobody listens at {url}")
        connection = Connection(self)
        self.open.add(connection)
        return connection

    def carry_out(self, command: cas.CasCommand) -> Any:
        match command:
            case cas.Read(name):
                return self._entries.get(name)
            case cas.Write(record, if_version, is_free) if self._version(record.name) == if_version:
                self._entries[record.name] = cas.Entry(record, next(self._versions), is_free)
                return self._version(record.name)
            case cas.Write():
                return None
        raise NotImplementedError(command)

    def _version(self, name: str) -> Any:
        entry = self._entries.get(name)
        return entry and entry.version


class Connection:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def carry_out(self, command: cas.CasCommand) -> tuple[Any, datetime]:
        value = self._server.carry_out(command)
        await asyncio.sleep(0)
        if isinstance(command, cas.Write) and self._server.silences:
            self._server.silences -= 1
            await asyncio.sleep(60)
        return value, datetime.now(UTC)

    def abort(self) -> None:
        self._server.open.remove(self)


class ServerPrograms(cas.CasPrograms):
    def classify(self, error: Exception) -> kit.Failure:
        return kit.Failure.CONNECTION_LOST if isinstance(error, OSError) else super().classify(error)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def make_provider(server: Server) -> Callable[..., Any]:
    """Return a function that makes the page's provider with the page's asyncio client."""
    names: dict[str, Any] = {"cas": cas, "kit": kit, "urlsplit": urlsplit, "unquote": unquote}
    names |= {"driver": SimpleNamespace(connect=server.connect), "MyPrograms": ServerPrograms}
    for start in ("class Client", "class MyLockProvider"):
        exec(block_with(start), names)
    make: Callable[..., Any] = partial(names["MyLockProvider"], "my://server")
    return make


def test_the_client_for_asyncio_has_connections_of_each_event_loop_and_closes_them(
    make_provider: Callable[..., Any], server: Server
) -> None:
    provider = make_provider()

    async def use(*, is_closed: bool) -> None:
        leases = await asyncio.gather(*(provider.acquire(LockRequest("job", LONG)) for _ in range(9)))
        [lease] = filter(None, leases)
        assert await provider.extend(lease, "2h") is lease
        assert await provider.release(lease) is True
        assert 1 <= len(server.open) <= 4
        if is_closed:
            await provider.close()
            assert server.open == set()

    for is_closed in (False, True, False):
        asyncio.run(use(is_closed=is_closed))
        assert server.open == set()


def test_the_client_for_asyncio_gives_a_silent_connection_up(make_provider: Callable[..., Any], server: Server) -> None:
    provider = make_provider(timeout="500ms")

    async def use() -> None:
        request = LockRequest("job", LONG)
        assert await provider.release(await provider.acquire(request)) is True
        [silent] = server.open
        server.silences = 1
        with pytest.raises(ProviderUnreachable, match=r"time limit of 0\.5 s.*waited for a reply"):
            await provider.acquire(request)
        assert silent not in server.open
        lease = None
        while lease is None:  # until the undo, on another connection
            await asyncio.sleep(0.01)
            lease = await provider.acquire(request)

    asyncio.run(use())


def test_the_client_for_asyncio_reports_at_once_that_nobody_listens(
    make_provider: Callable[..., Any], server: Server
) -> None:
    server.is_up = False
    with pytest.raises(ProviderUnreachable, match="nobody listens") as caught:
        asyncio.run(make_provider().acquire(LockRequest("job", LONG)))
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    assert "time limit" not in str(caught.value)


def test_its_entry_point_makes_a_url(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = tomllib.loads(blocks("toml")[0])["project"]["entry-points"]
    package, installed = tmp_path / "my_locks", tmp_path / "my_locks-1.0.dist-info"
    package.mkdir()
    installed.mkdir()
    (package / "__init__.py").touch()
    (package / "json_file.py").write_text(MODULE)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: my_locks\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in groups.items()
    ]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    provider = provider_from_url(f"jsonfile://{path}")
    assert type(provider).__module__ == "my_locks.json_file"
    assert provider.acquire(LockRequest("job", LONG)) is not None
    assert JsonFileLockProvider(path).acquire(LockRequest("job", LONG)) is None


def test_a_missing_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    provider = JsonFileLockProvider(tmp_path / "locks.json")
    with pytest.raises(ProviderError, match=r"create_schema\(\)") as caught:
        provider.acquire(LockRequest("job", LONG))
    assert not isinstance(caught.value, ProviderUnreachable)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    provider.create_schema()
    assert provider.acquire(LockRequest("job", LONG)) is not None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "{}", '{"records": {}}', NEW_FILE.replace("{}", "7")])
def test_a_file_with_something_else_in_it_is_an_error_and_stays(path: Path, content: str) -> None:
    path.write_text(content)
    provider = JsonFileLockProvider(path)
    for ask in (lambda: provider.acquire(LockRequest("job", LONG)), provider.records):
        with pytest.raises(ProviderError) as caught:
            ask()
        assert not isinstance(caught.value, ProviderUnreachable)
    assert path.read_text() == content


def test_a_path_that_leads_nowhere_is_unreachable(path: Path) -> None:
    provider = JsonFileLockProvider(path / "locks.json")
    for ask in (lambda: provider.acquire(LockRequest("job", LONG)), provider.records, provider.create_schema):
        with pytest.raises(ProviderUnreachable) as caught:
            ask()
        assert isinstance(caught.value.__cause__, NotADirectoryError)


def test_a_disk_that_takes_no_more_is_unreachable_and_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = JsonFileLockProvider(path)
    lease = provider.acquire(LockRequest("held", LONG))
    assert lease is not None
    before = path.read_text()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        asks: list[Any] = [
            lambda: provider.acquire(LockRequest("job", LONG)),
            lambda: provider.release(lease),
            lambda: provider.force_release("held"),
        ]
        for ask in asks:
            with pytest.raises(ProviderUnreachable, match="No space left"):
                ask()
        assert provider.acquire(LockRequest("held", LONG)) is None  # a skip writes nothing
    assert path.read_text() == before
    assert provider.acquire(LockRequest("job", LONG)) is not None
    assert provider.release(lease) is True


def test_a_process_killed_at_any_moment_leaves_a_file_that_works(path: Path) -> None:
    script = (
        "import sys\n"
        "from examples.providers.json_file import JsonFileLockProvider\n"
        "from shedlock_py import LockRequest\n"
        "provider = JsonFileLockProvider(sys.argv[1])\n"
        "print(flush=True)\n"
        "while True:\n"
        "    provider.take_over(LockRequest('job', '1h'))\n"
    )
    provider, last = JsonFileLockProvider(path), 0
    for moment in range(8):
        with subprocess.Popen([sys.executable, "-c", script, path], cwd=PROJECT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.003 * moment)
            process.send_signal(signal.SIGKILL)
        token = provider.take_over(LockRequest("job", LONG)).fencing_token
        assert token is not None
        assert token > last
        last = token


def test_the_file_is_for_people_too(path: Path) -> None:
    provider = JsonFileLockProvider(path)
    provider.acquire(LockRequest("nachts-größer", LONG, holder="web-1"))
    text = path.read_text("utf-8")
    assert '"nachts-größer"' in text
    assert '"web-1#' in text
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o444 == 0o444 & ~mask  # readable like any new file
