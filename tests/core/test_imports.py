"""A module imports only from modules above it in a list, and importing the package loads next to nothing."""

import ast
import pickle
import subprocess
import sys
import tomllib
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

import shedlock_py
from shedlock_py import providers
from shedlock_py.model.stores import STORES

PACKAGE = Path(shedlock_py.__file__).parent
PROJECT = Path(__file__).parents[2]

PUBLIC = {"errors", "events", "provider"}
"""The modules of the root. ``events`` and ``provider`` import from ``model``; all other folders import from these
three."""
FOLDERS: dict[str, set[str]] = {
    "model": set(),
    "runtime": {"model"},
    "settings": {"model", "runtime"},
    "guard": {"model", "runtime", "settings"},
    "election": {"model", "runtime", "settings", "guard"},
    "operators": {"model", "runtime", "settings", "guard", "election"},
    "providers": {"model", "runtime"},
    "page": {"model", "runtime", "settings", "guard", "election", "operators", "providers"},
    "integrations": {"model", "runtime", "settings", "guard", "election", "operators", "providers"},
    "cli": {"model", "runtime", "settings", "guard", "election", "operators", "providers", "page"},
    "testing": {"model", "runtime", "settings", "guard", "election", "operators", "providers"},
}
"""The folders that each folder imports from, besides itself and the root."""
MORE_OF_DJANGO = {"cli", "integrations"}
KITS: dict[str, set[str]] = {"kit": set(), "cas": {"kit"}, "aws": {"kit", "cas"}}
"""Imports between the modules that stores share. A store may import from all of them."""
IMPURE_MODULES = {"asyncio", "threading", "time", "_thread", "concurrent"}
MODULES = sorted(path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))


def python(script: str) -> list[str]:
    """Return the words that ``script`` prints in a new interpreter."""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()


@cache
def tree_of(module: Path) -> ast.Module:
    return ast.parse((PACKAGE / module).with_suffix(".py").read_text())


@cache
def imports_of(module: Path, *, late: bool = True) -> set[str]:
    """Return the dotted names that a module imports; without ``late``, not those in functions and TYPE_CHECKING."""
    names: set[str] = set()
    todo: list[ast.AST] = [tree_of(module)]
    while todo:
        node = todo.pop()
        match node:
            case ast.Import():
                names.update(alias.name for alias in node.names)
            case ast.ImportFrom():
                assert node.level == 0, f"{module}: relative import"
                assert node.module
                names.add(node.module)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not late:
                continue
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) if not late:
                continue
        todo.extend(ast.iter_child_nodes(node))
    return names


def own_imports(module: Path, *, late: bool = True) -> set[str]:
    """Return the package's modules that a module imports: ``{"lease", "providers.memory"}``."""
    return {
        name.removeprefix("shedlock_py.") for name in imports_of(module, late=late) if name.startswith("shedlock_py.")
    }


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version", "readme"]  # hatch makes both
    assert project["tool"]["hatch"]["version"]["path"] == f"{PACKAGE.name}/runtime/versions.py"
    assert version("shedlock_py") == shedlock_py.__version__


def folder_of(name: str) -> str:
    """Return the folder of a dotted module, or the name of a module of the root."""
    return name.partition(".")[0]


def test_each_module_has_a_place() -> None:
    places = {module.parts[0] for module in MODULES} - {"__init__", "__main__"}
    assert places == FOLDERS.keys() | PUBLIC


def test_a_folder_imports_only_from_those_above_it() -> None:
    for module in MODULES:
        folder = module.parts[0]
        if folder not in FOLDERS:
            continue
        seen = set(map(folder_of, own_imports(module))) - {folder}
        is_of_django = module.parts[:2] == ("integrations", "django")
        assert seen <= PUBLIC | FOLDERS[folder] | (MORE_OF_DJANGO if is_of_django else set()), module


def test_the_public_face_stands_on_the_model() -> None:
    seen = {name: set(map(folder_of, own_imports(Path(name)))) for name in sorted(PUBLIC)}
    assert seen == {"errors": set(), "events": {"model"}, "provider": {"errors", "model"}}
    in_model = [module for module in MODULES if module.parts[0] == "model"]
    assert {name for module in in_model for name in map(folder_of, own_imports(module))} <= {"errors", "model"}


def test_no_modules_import_each_other() -> None:
    left: dict[str, set[str]] = {}
    for module in MODULES:
        its_package = ".".join(module.parent.parts)  # an import from here names another module of the same folder
        left[".".join(module.parts).removesuffix(".__init__")] = own_imports(module, late=False) - {its_package}
    while free := {name for name, imported in left.items() if not imported & left.keys()}:
        for name in free:
            del left[name]
    assert left == {}


def test_pure_modules_use_the_standard_library_only_and_neither_loop_nor_thread_nor_clock() -> None:
    pure = [module for module in MODULES if module.parts[0] == "model" or str(module) in PUBLIC]
    for module in (*pure, Path("runtime/program"), Path("runtime/versions")):
        roots = {imported.partition(".")[0] for imported in imports_of(module)}
        assert roots <= set(sys.stdlib_module_names) | {"shedlock_py", "__future__"}, module
        assert not roots & IMPURE_MODULES, module
        source = (PACKAGE / module).with_suffix(".py").read_text()
        for clock in (".now(", ".utcnow(", ".today("):
            assert clock not in source, module


def modules_in(*rooms: str) -> list[Path]:
    found = [module for module in MODULES if module.parts[0] in rooms]
    assert len(found) > 10
    return found


def test_a_store_imports_from_the_kits_and_from_no_other_store() -> None:
    for module in modules_in("providers"):
        store = module.with_suffix("").parts[1]
        if store == "__init__":
            continue  # it exports the classes of all stores
        others = {name.split(".")[1] for name in own_imports(module) if name.startswith("providers.")} - {store}
        assert others <= KITS.get(store, KITS.keys()), module


def test_integrations_and_testing_see_public_names() -> None:
    for module in modules_in("integrations", "testing"):
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("shedlock_py"):
                path = [*node.module.split("."), *(alias.name for alias in node.names)]
                assert not [part for part in path if part.startswith("_")], f"{module}:{node.lineno}"


AT_ONCE = ("integrations", "testing", "providers", "page")
"""Folders that are imported only where they are used."""


def test_only_the_modules_for_asyncio_import_it_at_once() -> None:
    eager = {str(module) for module in MODULES if "asyncio" in imports_of(module, late=False)}
    core = {name for name in eager if name.partition("/")[0] not in AT_ONCE}
    in_guard = {"guard/async_keepalive", "guard/repeating"}
    others = {"runtime/asyncio_tools", "runtime/blocking", "election/async_elector", "operators/racing"}
    assert core == others | in_guard
    assert "providers/memory" not in eager
    for module in MODULES:
        if str(module) not in eager and module.parts[0] not in AT_ONCE:
            assert "runtime.asyncio_tools" not in own_imports(module, late=False), module


# Loaded at first use


def names_for_type_checkers(module: str = "__init__") -> dict[str, str]:
    """Return the public names that are imported under TYPE_CHECKING only, and their modules."""
    (block,) = (node for node in tree_of(Path(module)).body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


LATE = names_for_type_checkers()
LATE_PROVIDERS = names_for_type_checkers("providers/__init__")


@pytest.mark.not_quick("starts a Python")
def test_importing_the_package_loads_few_modules_no_driver_no_asyncio_and_nothing_that_is_late() -> None:
    # The modules that these load depend on the Python version.
    needed = "concurrent.futures, contextvars, dataclasses, datetime, fractions, json, logging, pkgutil, random, signal"
    loaded = python(
        f"import sys, socket, typing, {needed}; before = set(sys.modules); import shedlock_py; "
        "print(*sys.modules.keys() - before)"
    )
    assert len(loaded) <= 42
    assert "shedlock_py.guard.functions" in loaded
    drivers = "sqlalchemy psycopg psycopg2 asyncpg sqlite3 aiosqlite pymysql MySQLdb aiomysql asyncmy redis pymongo"
    others = "asyncio apscheduler pytest click rich shedlock_py.election shedlock_py.providers"
    assert {*LATE.values(), *drivers.split(), *others.split()} & set(loaded) == set()
    assert {"LeaderElector", "leader_only", "InMemoryLockProvider"} <= LATE.keys()


@pytest.mark.parametrize(("package", "names"), [(shedlock_py, LATE), (providers, LATE_PROVIDERS)])
def test_a_late_name_is_the_object_of_its_module(package: ModuleType, names: dict[str, str]) -> None:
    assert names
    for name, module in names.items():
        found = getattr(package, name)
        assert found is getattr(import_module(module), name)
        assert vars(package)[name] is found, "a second access loads it again"
        assert pickle.loads(pickle.dumps(found)) is found


@pytest.mark.parametrize("package", [shedlock_py, providers])
def test_dir_shows_what_is_exported(package: ModuleType) -> None:
    assert dir(package) == sorted(package.__all__)


def test_providers_exports_the_two_classes_of_each_store() -> None:
    of_stores = {
        (f"shedlock_py.providers.{store.module}", prefix + store.class_name)
        for store in STORES.values()
        for prefix in ("", "Async")
    }
    assert {(module, name) for name, module in LATE_PROVIDERS.items()} == of_stores
    assert providers.__all__ == sorted(LATE_PROVIDERS)


@pytest.mark.not_quick("starts a Python")
def test_importing_providers_loads_no_store() -> None:
    loaded = python("import sys, shedlock_py.providers as all; dir(all); print(*sys.modules)")
    assert "shedlock_py.providers" in loaded
    assert [name for name in loaded if name.startswith("shedlock_py.providers.")] == []
    loaded = python("import sys; from shedlock_py.providers import InMemoryLockProvider; print(*sys.modules)")
    assert {"sqlalchemy", "redis", "pymongo", "httpx", "boto3", "kubernetes"} & set(loaded) == set()


def test_a_class_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(module: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(providers, "import_module", fail)
    for name, extra, missing in (
        ("RedisLockProvider", "redis", "redis"),
        ("AsyncMongoLockProvider", "mongodb", "pymongo"),
        ("SqlAlchemyLockProvider", "sqlalchemy", "sqlalchemy"),
    ):
        monkeypatch.delitem(vars(providers), name, raising=False)
        with pytest.raises(ModuleNotFoundError) as caught:
            getattr(providers, name)
        assert str(caught.value) == f"{name} needs the package {missing!r}: pip install 'shedlock_py[{extra}]'"
        assert caught.value.name == missing
    missing = "shedlock_py.providers.redis"
    with pytest.raises(ModuleNotFoundError, match="PyInstaller needs the option --collect-all shedlock_py"):
        _ = providers.RedisLockProvider


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(AttributeError, match="module 'shedlock_py' has no attribute 'LeaderElektor'"):
        _ = shedlock_py.LeaderElektor  # type: ignore[attr-defined]  # and type checkers know it, too
    with pytest.raises(ImportError, match="cannot import name 'LeaderElektor'"):
        from shedlock_py import LeaderElektor  # type: ignore[attr-defined]  # noqa: F401 (on purpose)
    with pytest.raises(AttributeError, match=r"module 'shedlock_py\.providers' has no attribute 'RadisLockProvider'"):
        _ = providers.RadisLockProvider  # type: ignore[attr-defined]  # and type checkers know it, too


@pytest.mark.not_quick("starts a Python")
def test_a_sync_sql_provider_does_not_load_the_orm() -> None:
    loaded = python("import sys, shedlock_py; shedlock_py.provider_from_url('sqlite:///x.db'); print(*sys.modules)")
    assert "sqlalchemy.engine" in loaded
    assert "sqlalchemy.orm" not in loaded  # SQLAlchemy's asyncio part loads it


@pytest.mark.not_quick("starts a Python")
def test_importing_the_package_changes_nothing_in_the_process() -> None:
    python(
        "import logging, signal, threading\n"
        "before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]\n"
        "import shedlock_py\n"
        "assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]\n"
        "assert logging.getLogger().handlers == [] and logging.getLogger('shedlock_py').handlers == []\n"
        "assert logging.getLogger('shedlock_py').level == logging.NOTSET\n"
        "assert threading.active_count() == 1\n"
    )


@pytest.mark.not_quick("starts a Python")
def test_testing_needs_pytest_for_the_contract_only() -> None:
    loaded = python("import sys, shedlock_py.testing; print(*sys.modules)")
    assert {"pytest", "asyncio"} & set(loaded) == set()


@pytest.mark.not_quick("starts a Python")
def test_everything_public_is_exported() -> None:
    names = python("from shedlock_py import *; print(*(name for name in globals() if not name.startswith('_')))")
    assert sorted(names) == shedlock_py.__all__
    for module in ("errors", "events"):
        for name, value in vars(sys.modules[f"shedlock_py.{module}"]).items():
            is_its_own = isinstance(value, type) and value.__module__ == f"shedlock_py.{module}"
            assert not is_its_own or name in shedlock_py.__all__, name


def test_the_architecture_page_names_every_module_of_the_core() -> None:
    page = (PROJECT / "docs" / "architecture.md").read_text()
    in_folders = [module for module in MODULES if module.parts[0] in {*FOLDERS} - {"page", "cli", "testing"}]
    core = [module.name for module in in_folders if len(module.parts) == 2 and module.name != "__init__"]
    assert [name for name in (*core, *PUBLIC, *FOLDERS) if f"`{name}`" not in page and f"`{name}/" not in page] == []
