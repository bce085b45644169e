"""A server that speaks MongoDB's protocol: a private SecantusDB, or the server that the environment names."""

import os
import re
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tests.support.availability import missing, private_server
from tests.support.database import Address, ExternalLife, Server
from tests.support.ports import LOOPBACK
from tests.support.releases import Installed, Release
from tests.support.server_process import ServerProcess
from tests.support.versions import record

VARIABLE = "SHEDLOCK_TEST_MONGODB_URL"


class MongoServer(Server):
    @abstractmethod
    def url(self, database: str = "shedlock", *, via: Address | None = None, **options: Any) -> str:
        """Return a URL. With `via` a proxy, the driver uses this server only, whatever replica set it belongs to."""

    @contextmanager
    def connect(self) -> Iterator[MongoClient[dict[str, Any]]]:
        with MongoClient[dict[str, Any]](self.url(), tz_aware=True, timeoutMS=20_000) as client:
            yield client

    @contextmanager
    def failing(self, commands: list[str], *, times: int = 1, **data: Any) -> Iterator[None]:
        """Let the next `times` of these commands fail as `data` describes (MongoDB's `failCommand`)."""
        with self.connect() as client:
            point = {"failCommands": commands, "appName": "shedlock_py", **data}
            try:
                client.admin.command("configureFailPoint", "failCommand", mode={"times": times}, data=point)
            except PyMongoError as error:
                pytest.skip(f"the server has no failCommand: start it with enableTestCommands=1 ({error})")
            yield
            client.admin.command("configureFailPoint", "failCommand", mode="off")


class PrivateMongoServer(ServerProcess, MongoServer):
    """SecantusDB, in a temporary directory and on a free port."""

    product = "mongodb"
    programs = ("secantusd-py",)
    # SecantusDB does not run on every Python
    interpreter = os.environ.get("SHEDLOCK_TEST_SECANTUS_PYTHON", sys.executable)
    releases: ClassVar[Mapping[str, Release]] = {"installed": Installed(str(Path(interpreter).parent))}

    def __init__(self, *arguments: str, userinfo: str = "") -> None:
        super().__init__()
        self.arguments = arguments
        self.userinfo = userinfo

    def url(self, database: str = "shedlock", *, via: Address | None = None, **options: Any) -> str:
        host, port = via or self.address
        options |= {"directConnection": "true"} if via else {}
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"mongodb://{self.userinfo}{host}:{port}/{database}{'?' if query else ''}{query}"

    def version(self) -> tuple[str, str]:
        command = [self.interpreter, "-c", "import importlib.metadata as m; print(m.version('SecantusDB'))"]
        return "SecantusDB", subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def restart_with(self, *arguments: str) -> None:
        self.stop()
        self.arguments = arguments
        self.start()

    def create_data(self) -> None:
        self.data.mkdir()

    def command(self, port: int) -> list[str]:
        program = str(Path(__file__).with_name("secantus_server.py"))
        options = [f"--host={LOOPBACK}", f"--port={port}", f"--storage-path={self.data}", "--enable-test-commands"]
        # Otherwise SecantusDB confirms a majority write before it writes its journal, and forgets the write after kill
        # -9.
        options.append("--sync-on-commit")
        return [self.interpreter, program, *options, *self.arguments]

    def answers(self) -> bool:
        host, port = self.address
        try:
            with MongoClient[dict[str, Any]](host, port, directConnection=True, timeoutMS=1000) as client:
                return bool(client.admin.command("hello")["ok"]) and self.pid is not None
        except PyMongoError:
            return False


class ExternalMongoServer(ExternalLife, MongoServer):
    """A server that somebody else runs. Tests that would stop it are skipped."""

    def __init__(self, url: str) -> None:
        found = re.fullmatch(r"mongodb://([^@/]*@)?([^/?]+)(?:/[^?]*)?(?:\?(.*))?", url)
        if not found:
            raise ValueError(f"{VARIABLE} is not of the form mongodb://host:port/?options")
        self._userinfo, self._hosts, self._query = (part or "" for part in found.groups())
        host, _, port = self._hosts.partition(",")[0].partition(":")
        self._address = (host, int(port or 27017))
        self._variable = VARIABLE

    @property
    def address(self) -> Address:
        return self._address

    def version(self) -> tuple[str, str]:
        with self.connect() as client:
            return "MongoDB", str(client.server_info()["version"])

    def url(self, database: str = "shedlock", *, via: Address | None = None, **options: Any) -> str:
        hosts = f"{via[0]}:{via[1]}" if via else self._hosts
        query = [f"{name}={value}" for name, value in options.items()]
        if via:
            query += ["directConnection=true"]
        return f"mongodb://{self._userinfo}{hosts}/{database}?{'&'.join([self._query, *query]).strip('&')}"


@contextmanager
def mongodb_endpoint() -> Iterator[MongoServer]:
    if url := os.environ.get(VARIABLE):
        external = ExternalMongoServer(url)
        try:
            record(*external.version())
        except PyMongoError as error:
            missing(
                f"the server that {VARIABLE} names does not answer ({error})", "docker compose up -d --wait mongodb"
            )
        yield external
        return
    with private_server("mongodb", PrivateMongoServer) as private:
        yield private
