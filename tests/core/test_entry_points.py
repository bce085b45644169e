"""Providers of other packages, and packages that are not installed."""

import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

import shedlock_py
from tests.support.scripts import PROJECT, run_python

FROM_URL = ("provider_from_url", "async_provider_from_url")
ACME = PROJECT / "tests" / "support" / "thirdparty" / "acme"

FAULTY = """
[project]
name = "shedlock_faulty"
version = "1.0"

[project.entry-points."shedlock_py.providers"]
nomodule = "shedlock_faulty.nowhere:Provider"
noclass = "shedlock_faulty:Provider"
nopackage = "shedlock_faulty:LazyProvider"
noprovider = "shedlock_faulty:NoProvider"
memory = "shedlock_faulty:NoProvider"
"""
FAULTY_MODULE = """
class NoProvider:
    def __init__(self, url):
        pass

def __getattr__(name):
    if name == "LazyProvider":
        import acme_client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
"""


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the installed package of :data:`ACME`."""
    return install(ACME, tmp_path_factory.mktemp("acme"))


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like :func:`acme`: a package with entry points that cannot work."""
    project = tmp_path_factory.mktemp("project")
    (project / "pyproject.toml").write_text(FAULTY)
    (project / "shedlock_faulty.py").write_text(FAULTY_MODULE)
    return install(project, tmp_path_factory.mktemp("faulty"))


@pytest.mark.not_quick("starts a Python")
class TestAnotherPackage:
    def test_its_urls_make_its_providers(self, acme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        script = """if True:
            import asyncio
            from shedlock_py import async_provider_from_url, configure, provider_from_url, scheduler_lock

            for provider in (provider_from_url("acme://x/1"), async_provider_from_url("Acme://x")):
                print(type(provider).__name__, provider.url)

            @scheduler_lock("sync")
            def job():
                return "ran"

            @scheduler_lock("async")
            async def async_job():
                return "ran"

            configure(provider="acme://x")
            print(job(), asyncio.run(async_job()))
            configure(async_provider="acme://x")
            print(asyncio.run(async_job()))
        """
        made = ["AcmeLockProvider acme://x/1", "AsyncAcmeLockProvider Acme://x"]
        assert run_with(acme, script, monkeypatch) == [*made, "ran ran", "ran"]

    def test_the_list_of_known_schemes_has_it(self, acme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = (f"{from_url}('acmee://me:secret@x')" for from_url in FROM_URL)
        for error in refusals(*calls, site=acme, monkeypatch=monkeypatch):
            assert error.startswith("store URL: unknown scheme 'acmee'; supported: memory://, ")
            assert error.endswith(", acme://")
            assert "secret" not in error

    def test_a_built_in_scheme_cannot_be_replaced(self, faulty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        script = "import shedlock_py; print(type(shedlock_py.provider_from_url('memory://')).__name__)"
        assert run_with(faulty, script, monkeypatch) == ["InMemoryLockProvider"]


@pytest.mark.not_quick("starts a Python")
class TestAFaultyPackage:
    def test_what_cannot_be_loaded_is_named_with_the_reason(
        self, faulty: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cases = [
            ("nomodule", "shedlock_faulty.nowhere:Provider", "No module named 'shedlock_faulty.nowhere'"),
            ("noclass", "shedlock_faulty:Provider", "has no attribute 'Provider'"),
            ("nopackage", "shedlock_faulty:LazyProvider", "No module named 'acme_client'"),
        ]
        calls = (f"provider_from_url('{scheme}://me:secret@x')" for scheme, _, _ in cases)
        errors = refusals(*calls, site=faulty, monkeypatch=monkeypatch)
        for (scheme, value, reason), error in zip(cases, errors, strict=True):
            assert f"the provider for {scheme}:// that {value!r} names cannot be loaded: " in error
            assert reason in error
            assert "secret" not in error

    def test_what_is_no_provider_and_has_no_async_one(self, faulty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = ("configure(provider='noprovider://me:secret@x')", "async_provider_from_url('noprovider://x')")
        sync, asynchronous = refusals(*calls, site=faulty, monkeypatch=monkeypatch)
        assert sync.startswith("NoProvider is not a lock provider")
        assert "secret" not in sync
        assert "unknown scheme 'noprovider'" in asynchronous


@pytest.fixture
def core_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the package importable without site-packages, even if it was installed there."""
    (tmp_path / "shedlock_py").symlink_to(Path(shedlock_py.__file__).parent)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("core_alone")
@pytest.mark.not_quick("starts a Python")
class TestMissingPackages:
    """Without site-packages, as if only the core was installed."""

    def test_the_pip_install_line(self) -> None:
        cases = [
            ("redis", "redis", "redis"),
            ("rediss+quorum", "redis", "redis"),
            ("mongodb", "pymongo", "mongodb"),
            ("etcd", "httpx", "etcd"),
            ("dynamodb", "boto3", "dynamodb"),
            ("s3", "boto3", "s3"),
            ("kubernetes", "httpx", "kubernetes"),
            ("mysql+pymysql", "sqlalchemy", "mysql"),
            ("postgres+asyncpg", "sqlalchemy", "asyncpg"),
        ]
        calls = [f"{from_url}('{scheme}://me:secret@host/db')" for scheme, _, _ in cases for from_url in FROM_URL]
        lines = [
            f"a store at {scheme}:// needs the package {package!r}: pip install 'shedlock_py[{extra}]'"
            for scheme, package, extra in cases
            for _ in FROM_URL
        ]
        assert lines_of("-S", "-c", _catching(calls)) == lines

    def test_a_class_of_a_store(self) -> None:
        script = (
            "try:\n    from shedlock_py.providers import AsyncEtcdLockProvider\n"
            "except ModuleNotFoundError as error:\n    print(error)"
        )
        line = "AsyncEtcdLockProvider needs the package 'httpx': pip install 'shedlock_py[etcd]'"
        assert lines_of("-S", "-c", script) == [line]

    def test_an_unknown_scheme_is_refused_with_the_known_ones(self) -> None:
        (error,) = lines_of("-S", "-c", _catching(["provider_from_url('acme://me:secret@x')"]))
        assert error.startswith("store URL: unknown scheme 'acme'; supported: memory://, sqlite://, ")


def install(project: Path, site: Path) -> Path:
    """Install the project, which has only modules, into ``site`` like pip, so that importlib finds its entry points."""
    metadata = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    info = site / f"{metadata['name']}-{metadata['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {metadata['name']}\nVersion: {metadata['version']}\n")
    with (info / "entry_points.txt").open("w") as file:
        for group, entries in metadata["entry-points"].items():
            file.write(f"[{group}]\n" + "".join(f"{scheme} = {value}\n" for scheme, value in entries.items()))
    for module in project.glob("*.py"):
        shutil.copy(module, site)
    return site


def lines_of(*arguments: str) -> list[str]:
    done = run_python(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def run_with(site: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the lines that the script prints if the package in ``site`` is installed."""
    monkeypatch.setenv("PYTHONPATH", str(site))
    return lines_of("-c", script)


def refusals(*calls: str, site: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the message of each call's ConfigurationError there."""
    errors = run_with(site, _catching(calls), monkeypatch)
    assert len(errors) == len(calls)
    return errors


def _catching(calls: Sequence[str]) -> str:
    script = "from shedlock_py import *\n"
    for call in calls:
        script += f"try:\n    print('no error:', {call})\nexcept ConfigurationError as error:\n    print(error)\n"
    return script
