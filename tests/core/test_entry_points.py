"""Providers of other packages, and packages that are not installed."""

import shutil
import tomllib
from pathlib import Path

import pytest

import shedlock_py
from tests.support.scripts import PROJECT, run_python

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
    """The directory into which the package of :data:`ACME` is installed."""
    return install(ACME, tmp_path_factory.mktemp("acme"))


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As :func:`acme`: a package with entry points that cannot work."""
    project = tmp_path_factory.mktemp("project")
    (project / "pyproject.toml").write_text(FAULTY)
    (project / "shedlock_faulty.py").write_text(FAULTY_MODULE)
    return install(project, tmp_path_factory.mktemp("faulty"))


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

    @pytest.mark.parametrize("from_url", ["provider_from_url", "async_provider_from_url"])
    def test_the_list_of_known_schemes_has_it(self, from_url: str, acme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        error = refusal(f"{from_url}('acmee://me:secret@x')", acme, monkeypatch)
        assert error.startswith("store URL: unknown scheme 'acmee'; supported: memory://, ")
        assert error.endswith(", acme://")
        assert "secret" not in error

    def test_a_built_in_scheme_cannot_be_replaced(self, faulty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        script = "import shedlock_py; print(type(shedlock_py.provider_from_url('memory://')).__name__)"
        assert run_with(faulty, script, monkeypatch) == ["InMemoryLockProvider"]


class TestAFaultyPackage:
    @pytest.mark.parametrize(
        ("url", "value", "reason"),
        [
            ("nomodule://me:secret@x", "shedlock_faulty.nowhere:Provider", "No module named 'shedlock_faulty.nowhere'"),
            ("noclass://me:secret@x", "shedlock_faulty:Provider", "has no attribute 'Provider'"),
            ("nopackage://me:secret@x", "shedlock_faulty:LazyProvider", "No module named 'acme_client'"),
        ],
    )
    def test_what_cannot_be_loaded(
        self, url: str, value: str, reason: str, faulty: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        error = refusal(f"provider_from_url({url!r})", faulty, monkeypatch)
        assert f"the provider for {url.partition('://')[0]}:// that {value!r} names cannot be loaded: " in error
        assert reason in error
        assert "secret" not in error

    def test_what_is_no_provider_and_has_no_async_one(self, faulty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        error = refusal("configure(provider='noprovider://me:secret@x')", faulty, monkeypatch)
        assert error.startswith("NoProvider is not a lock provider")
        assert "secret" not in error
        error = refusal("async_provider_from_url('noprovider://x')", faulty, monkeypatch)
        assert "unknown scheme 'noprovider'" in error


@pytest.fixture
def core_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package can be imported without site-packages, also if it was installed there."""
    (tmp_path / "shedlock_py").symlink_to(Path(shedlock_py.__file__).parent)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("core_alone")
class TestMissingPackages:
    """Without site-packages: as on a machine where only the core was installed."""

    @pytest.mark.parametrize("from_url", ["provider_from_url", "async_provider_from_url"])
    @pytest.mark.parametrize(
        ("scheme", "package", "extra"),
        [
            ("redis", "redis", "redis"),
            ("rediss+quorum", "redis", "redis"),
            ("mongodb", "pymongo", "mongodb"),
            ("etcd", "httpx", "etcd"),
            ("dynamodb", "boto3", "dynamodb"),
            ("s3", "boto3", "s3"),
            ("kubernetes", "httpx", "kubernetes"),
            ("mysql+pymysql", "sqlalchemy", "sqlalchemy"),
        ],
    )
    def test_the_pip_install_line(self, from_url: str, scheme: str, package: str, extra: str) -> None:
        assert refusal_of_bare_python(f"{from_url}('{scheme}://me:secret@host/db')") == (
            f"a store at {scheme}:// needs the package {package!r}: pip install 'shedlock_py[{extra}]'"
        )

    def test_an_unknown_scheme(self) -> None:
        error = refusal_of_bare_python("provider_from_url('acme://me:secret@x')")
        assert error.startswith("store URL: unknown scheme 'acme'; supported: memory://, sqlite://, ")
        assert "acme://" not in error
        assert "secret" not in error


def install(project: Path, site: Path) -> Path:
    """Lay the project, of modules only, out in ``site`` as pip installs it: importlib finds its entry points there."""
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


def run_with(site: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that the script prints where the package in ``site`` is installed."""
    monkeypatch.setenv("PYTHONPATH", str(site))
    done = run_python("-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def refusal(call: str, site: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The message of the ConfigurationError that the call raises there."""
    (line,) = run_with(site, _catching(call), monkeypatch)
    return line


def refusal_of_bare_python(call: str) -> str:
    done = run_python("-S", "-c", _catching(call))
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    return line


def _catching(call: str) -> str:
    return f"""if True:
        from shedlock_py import *
        try:
            print("no error:", {call})
        except ConfigurationError as error:
            print(error)
    """
