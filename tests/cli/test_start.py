"""Commands start fast, because they import only what they need.

A limit in seconds would test the machine. These tests count the modules that a command loads beside its store's driver.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.harness import file_store, in_a_process
from tests.support.redis import RedisEndpoint
from tests.support.scripts import PROJECT

pytestmark = in_a_process


MODULES = "import gc, sys, atexit; atexit.register(lambda: print(*sys.modules, f'garbage={gc.isenabled()}')); "
COMMAND = MODULES + "from shedlock_py.__main__ import main; main()"
DRIVERS = {"sqlite": "sqlalchemy.dialects.sqlite, sqlite3", "redis": "redis"}
FOR_OTHER_COMMANDS = {"rich", "starlette", "jinja2", "uvicorn"}
FOR_OTHER_COMMANDS |= {"shedlock_py.page", "shedlock_py.operators.checks", "shedlock_py.providers.memory"}
FOR_ASYNCIO_OR_OTHER_STORES = {"sqlalchemy.orm", "sqlalchemy.ext.asyncio", "sqlalchemy.dialects.mysql", "pymongo"}
FOR_ASYNCIO_OR_OTHER_STORES |= {"shedlock_py.runtime.blocking", "shedlock_py.runtime.asyncio_tools"}


def modules(code: str, *arguments: str) -> set[str]:
    """Return the modules of a new interpreter that has run ``code``."""
    words = [sys.executable, "-c", code, *arguments]
    return set(subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.split())


@pytest.fixture(params=DRIVERS)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "sqlite":
        return file_store(tmp_path_factory.mktemp("start"))
    server: RedisEndpoint = request.getfixturevalue("redis_server")
    return server.url()


@pytest.mark.slow("starts two interpreters")
@pytest.mark.parametrize(("words", "most"), [("run job --at-most 1m", 118), ("lead job", 124)])
def test_a_command_loads_little_beside_the_driver_of_its_store(words: str, most: int, store: str) -> None:
    # Reading a package's version loads Python's email module; from Python 3.13 on, only when the metadata is read.
    read_version = "import importlib.metadata as metadata; metadata.version('click')"
    driver = modules(f"{MODULES} import {DRIVERS[store.partition(':')[0]]}; {read_version}")
    loaded = modules(COMMAND, *words.split(), "--store", store, "--", "true")
    assert f"shedlock_py.cli.{words.split()[0]}" in loaded
    assert "garbage=True" in loaded  # collection is on again: a command may run for weeks
    assert not loaded & (FOR_OTHER_COMMANDS | FOR_ASYNCIO_OR_OTHER_STORES)
    assert words.startswith("lead") or not any(name.startswith("shedlock_py.election") for name in loaded)
    assert len(loaded - driver) <= most, sorted(loaded - driver)


def test_the_command_line_itself_loads_no_command_no_driver_and_no_asyncio() -> None:
    loaded = modules(COMMAND, "--version")
    assert "shedlock_py.cli.app" in loaded
    assert not loaded & (FOR_OTHER_COMMANDS | {"shedlock_py.cli.run", "sqlalchemy", "redis", "asyncio"})
