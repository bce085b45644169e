"""Sync and async twins of the code differ only in being sync and async."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import shedlock_py
from shedlock_py.model.stores import STORES

PACKAGE = Path(shedlock_py.__file__).parent
FACADE = ("acquire", "extend", "release", "record", "records", "force_release", "take_over", "prune", "create_schema")


# The module and name of the sync twin, and the name of the async twin, which may be in another "module:".
PAIRS = [
    ("runtime/program.py", "drive", "drive_async"),
    ("guard/block.py", "Block", "AsyncBlock"),
    ("guard/extending.py", "extend_lock", "extend_lock_async"),
    *(
        ("election/elector.py", f"LeaderElector.{method}", f"election/async_elector.py:AsyncLeaderElector.{method}")
        for method in ("leader", "verify", "demote")
    ),
    ("provider.py", "LockProvider", "AsyncLockProvider"),
    *(
        ("providers/kit/program_provider.py", f"ProgramProvider.{method}", f"AsyncProgramProvider.{method}")
        for method in (*FACADE, "undo", "runs", "recent_runs", "forget_fire_time", "resume", "checks", "close")
    ),
    ("providers/mongodb/mongo_clients.py", "CollectionClient.close", "AsyncCollectionClient.close"),
    (
        "providers/mongodb/mongo_clients.py",
        "CollectionClient.execute.carry_out",
        "AsyncCollectionClient.execute.carry_out",
    ),
    ("providers/sqlalchemy/sql_provider.py", "SqlAlchemyLockProvider.verify", "AsyncSqlAlchemyLockProvider.verify"),
    *(
        (f"providers/{path.relative_to(PACKAGE / 'providers')}", store.class_name, f"Async{store.class_name}")
        for store in STORES.values()
        for path in (PACKAGE / "providers" / store.module).rglob("*_provider.py")
        if store.module not in ("sqlalchemy", "s3") and f"\nclass {store.class_name}(" in path.read_text()
    ),
]

RENAMES = {
    "AbstractAsyncContextManager": "AbstractContextManager",
    "AsyncIterator": "Iterator",
    "AsyncLockProvider": "LockProvider",
    "AsyncCollection": "Collection",
    "AsyncDatabase": "Database",
    "AsyncCommandCursor": "CommandCursor",
    "open_async_client": "open_client",
    "AsyncConnection": "Connection",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "asynccontextmanager": "contextmanager",
    "resolve_async_provider": "resolve_provider",
    "as_async_provider": "as_provider",
    "TaskKeepAlive": "ThreadKeepAlive",
}


class WithoutAsync(ast.NodeTransformer):
    """Turns an async tree into its sync twin."""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        return self.visit(ast.FunctionDef(**{field: getattr(node, field) for field in node._fields}))

    def visit_AsyncWith(self, node: ast.AsyncWith) -> Any:
        return self.visit(ast.With(**{field: getattr(node, field) for field in node._fields}))

    def visit_With(self, node: ast.With) -> Any:
        match node.body:
            case [ast.With() | ast.AsyncWith() as inner]:  # "with" and "async with" cannot share a statement
                return self.visit(ast.With([*node.items, *inner.items], inner.body))
        return self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> Any:
        return self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "shielded":
            return self.visit(node.args[0])
        node.keywords = [keyword for keyword in node.keywords if keyword.arg not in ("when_abandoned", "is_async")]
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id == "Awaitable":
            return self.visit(node.slice)
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        match node:
            case ast.Attribute(value=ast.Attribute(value=package, attr="asyncio")):  # redis.asyncio.Redis
                return self.visit(ast.Attribute(package, node.attr, node.ctx))
            case ast.Attribute(value=ast.Name("asyncio"), attr="sleep"):
                return ast.Attribute(ast.Name("time"), "sleep", node.ctx)
        node.attr = RENAMES.get(node.attr, node.attr)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.renamed(node.id), node.ctx)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.name = self.renamed(node.name)
        node.body = without_docstring_and_late_imports(node.body)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        node.name = self.renamed(node.name)
        node.body = without_docstring_and_late_imports(node.body)
        return self.generic_visit(node)

    @staticmethod
    def renamed(name: str) -> str:
        return RENAMES.get(name) or re.sub(r"_async$|^Async|(?<=^_)Async", "", name)


def without_docstring_and_late_imports(body: list[ast.stmt]) -> list[ast.stmt]:
    body = [statement for statement in body if not isinstance(statement, ast.ImportFrom | ast.Import)]
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return body or [ast.Pass()]


def find(path: str, qualified_name: str) -> ast.AST:
    node: ast.AST = ast.parse((PACKAGE / path).read_text())
    for name in qualified_name.split("."):
        node = next(
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and child.name == name
        )
    return node


def sync_source(path: str, name: str) -> str:
    other, _, qualified_name = name.rpartition(":")
    path = other or path
    return ast.unparse(ast.fix_missing_locations(WithoutAsync().visit(find(path, qualified_name))))


@pytest.mark.parametrize(("path", "sync", "asynchronous"), PAIRS, ids=lambda value: str(value))
def test_twins_differ_only_in_async_and_await(path: str, sync: str, asynchronous: str) -> None:
    left, right = sync_source(path, sync), sync_source(path, asynchronous)
    assert left == right


def test_the_test_can_find_a_difference() -> None:
    assert sync_source("guard/block.py", "Block") != sync_source("guard/block.py", "BaseBlock")
    assert "async def" not in sync_source("guard/block.py", "AsyncBlock")
    assert "await" not in sync_source("guard/block.py", "AsyncBlock")


@pytest.mark.parametrize("method", FACADE)
def test_the_threaded_provider_hands_every_call_on(method: str) -> None:
    source = sync_source("runtime/asyncio_tools.py", f"ThreadedProvider.{method}")
    assert f"self.sync_provider.{method}, " in source or f"self.sync_provider.{method})" in source
