"""The error for an old package names its version. The oldest version that works is in pyproject.toml."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module

import pytest

from scripts.floors import floors
from shedlock_py import ConfigurationError, async_provider_from_url, provider_from_url
from shedlock_py.model.stores import STORES
from shedlock_py.runtime.versions import oldest_releases, require, sql_install_line
from tests.support.scripts import PROJECT

OLD = {
    "sqlalchemy": ("2.0.23", "sqlite:///locks.db", "sqlalchemy", "SqlAlchemyLockProvider"),
    "redis": ("4.6.0", "redis://127.0.0.1", "redis", "RedisLockProvider"),
    "pymongo": ("4.12.1", "mongodb://127.0.0.1", "mongodb", "MongoLockProvider"),
}
"""A release just too old, a URL that needs the package, and its provider."""


def test_the_oldest_packages_are_those_of_pyproject() -> None:
    declared, checked = floors(), oldest_releases()
    assert checked.items() <= declared.items()
    assert set(OLD) < set(checked)
    of_stores = {extra for store in STORES.values() for extra in (store.extra, store.async_extra)}
    assert {package for package, (_, extra) in declared.items() if extra not in of_stores} - checked.keys() == {
        *("apscheduler", "rich", "prometheus-client", "opentelemetry-api", "sentry-sdk"),
        *("starlette", "jinja2", "uvicorn", "django"),
    }


@pytest.mark.parametrize("package", OLD)
@pytest.mark.parametrize("way", ["from a URL", "from the class", "async, from a URL"])
def test_a_package_that_is_too_old_is_named(package: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version, url, module, name = OLD[package]
    make: Callable[[], object] = {
        "from a URL": lambda: provider_from_url(url),
        "from the class": lambda: getattr(import_module(f"shedlock_py.providers.{module}"), name)(url),
        "async, from a URL": lambda: async_provider_from_url(url),
    }[way]
    monkeypatch.setattr(import_module(package), "__version__", version)
    for loaded in [name for name in sys.modules if name.startswith(f"shedlock_py.providers.{module}")]:
        monkeypatch.delitem(sys.modules, loaded)
    with pytest.raises(ConfigurationError) as refused:
        make()
    oldest, extra = oldest_releases()[package]
    assert str(refused.value) == (
        f"{package} {version} is too old: shedlock_py needs {package}>={oldest}; "
        f"pip install --upgrade 'shedlock_py[{extra}]'"
    )


@pytest.mark.parametrize("version", ["2.0.24", "2.0.24.post1", "2.0.100", "2.1", "2.1.0b2", "3"])
def test_a_version_from_the_oldest_on_is_taken(version: str) -> None:
    require("sqlalchemy", version)


@pytest.mark.parametrize("version", ["2.0.23", "2.0.9", "2.0", "1.4.54", "2"])
def test_a_version_below_the_oldest_is_refused(version: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"sqlalchemy {version} is too old")):
        require("sqlalchemy", version)


def test_a_floor_that_ends_with_a_zero_is_the_shorter_one() -> None:
    require("click", "8.3.0")
    require("click", "8.3")


@pytest.mark.parametrize(
    ("scheme", "is_async", "packages"),
    [
        ("postgresql", False, "[postgresql]"), ("postgres", False, "[postgresql]"), ("mysql", False, "[mysql]"),
        ("mariadb", False, "[mysql]"), ("sqlite", False, "[sqlite]"), ("postgresql", True, "[asyncpg]"),
        ("mysql", True, "[asyncmy]"), ("sqlite", True, "[aiosqlite]"), ("postgresql+psycopg", True, "[postgresql]"),
        ("postgresql+asyncpg", False, "[asyncpg]"), ("mysql+pymysql", False, "[mysql]"),
        ("mysql+aiomysql", True, "[sqlalchemy]' 'aiomysql[rsa]"), ("mysql+nosuch", False, "[sqlalchemy]"),
    ],
)  # fmt: skip
def test_one_line_installs_a_driver(scheme: str, is_async: bool, packages: str) -> None:
    assert sql_install_line(scheme, is_async=is_async) == f"pip install 'shedlock_py{packages}'"


def test_the_extras_of_install_lines_bring_the_driver() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for scheme, driver in {
        "postgresql": "psycopg[binary]", "mysql": "pymysql[rsa]", "mysql+asyncmy": "asyncmy",
        "sqlite+aiosqlite": "aiosqlite", "postgresql+asyncpg": "asyncpg", "sqlite": "",
    }.items():  # fmt: skip
        found = extras[sql_install_line(scheme).partition("[")[2].partition("]")[0]]
        assert "shedlock_py[sqlalchemy]" in found
        assert any(requirement.startswith(driver) for requirement in found), scheme
    assert any(requirement.startswith("cryptography") for requirement in extras["asyncmy"])
