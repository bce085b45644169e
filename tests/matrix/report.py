"""The tables of a run, for the terminal and for docs/tested-with.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tests.matrix.environments import PAGE, PROJECT
from tests.matrix.results import Result
from tests.matrix.rows import ROWS
from tests.support.stores import STORES

BEGIN = "<!-- begin: written by `make test-all` -->"
END = "<!-- end: written by `make test-all` -->"

# For each file of the contract: its servers, and the client packages by the word in class names.
_FILES = {f"test_{each.scheme}": each for name, each in STORES.items() if each.process and name != "quorum"}
SERVERS = {file: each.products for file, each in _FILES.items()}
MYSQL_CLIENTS = {
    "Mysqlclient": "mysqlclient", "Aiomysql": "aiomysql", "Async": "asyncmy", "": "PyMySQL"
}  # fmt: skip
CLIENTS = {
    **{file: {"Async": each.facts.async_drivers[0], "": each.facts.drivers[0]} for file, each in _FILES.items()},
    "test_postgresql": {"Psycopg2": "psycopg2-binary", "PsycopgAsync": "psycopg", "Async": "asyncpg", "": "psycopg"},
    "test_mariadb": MYSQL_CLIENTS,
    "test_mysql": MYSQL_CLIENTS,
}
ASYNC_ONLY = ("asyncpg", "asyncmy", "aiomysql")
SHOWN = ("Python", "APScheduler", "SQLAlchemy", "redis", "pymongo")
"""The versions that the table of rows shows."""


def counts(results: Mapping[str, Result]) -> tuple[int, int]:
    """Return the numbers of passed and failed tests in all rows."""
    return sum(result.passed for result in results.values()), sum(result.failures for result in results.values())


def line(name: str, result: Result) -> str:
    """Return a row's line for the terminal."""
    if not result.tried:
        return f"{'not tried':>10}  {name}: {result.trouble}"
    verdict = "ok" if result.is_green else "FAILED"
    skips = sum(result.skipped.values())
    numbers = f"{result.passed:6} passed {len(result.failed):4} failed {skips:5} skipped"
    return f"{verdict:>10}  {name:32}{numbers}  {result.seconds / 60:5.1f} min  {result.trouble}".rstrip()


def page(last: Mapping[str, Result | None]) -> str:
    """Return the tables in Markdown.

    :param last: each row's last result; ``None`` for a row that never ran.
    """
    results = {name: result for name, result in last.items() if result is not None}
    never = ", ".join(f"`{name}`" for name, result in last.items() if result is None)
    passed, failed = counts(results)
    minutes = sum(result.seconds for result in results.values()) / 60
    days = sorted({result.day for result in results.values()})
    return "\n".join(
        [
            f"{len(results)} rows, run on {' and '.join(days)}: {minutes:.0f} minutes. "
            f"**{passed} passed, {failed} failed.**" + (f" Not run yet: {never}." if never else ""),
            "",
            "## Rows",
            "",
            *_rows(results),
            "",
            "## Clients and servers",
            "",
            "How many tests of the contract passed with each client on each version of its server, in all rows.",
            "",
            *_clients(results),
            "",
            "## Not tried",
            "",
            *_not_tried(results),
        ]
    )


def write_page(text: str, path: Path = PROJECT / PAGE) -> None:
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no place for the tables: {BEGIN} … {END}")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def _rows(results: Mapping[str, Result]) -> list[str]:
    what = {row.name: row.what for row in ROWS}
    lines = [
        f"| row | what runs | {' | '.join(SHOWN)} | servers | commit | passed | failed | skipped | minutes |",
        f"|---|---|{'---|' * len(SHOWN)}---|---|--:|--:|--:|--:|",
    ]
    for name, result in results.items():
        shown = " | ".join(result.versions.get(package.lower(), "–") for package in SHOWN)
        servers = ", ".join(f"{product} {' and '.join(found)}" for product, found in result.servers.items()) or "–"
        numbers = f"{result.passed} | {result.failures} | {sum(result.skipped.values())} | {result.seconds / 60:.1f}"
        numbers = numbers if result.tried else "– | – | – | –"
        lines.append(f"| `{name}` | {what[name]} | {shown} | {servers} | {result.commit} | {numbers} |")
    return lines


def client_of(module: str, name: str) -> str:
    """Return the package that a class of contract tests uses as the client."""
    return next(package for part, package in CLIENTS[module].items() if part in name)


def _clients(results: Mapping[str, Result]) -> list[str]:
    table: dict[tuple[str, str, str], int] = defaultdict(int)
    for result in results.values():
        for group, passed in result.contract.items():
            module, _, name = group.partition(".")
            met = [product for product in SERVERS.get(module, ()) if product in result.servers]
            if len(met) == 1:
                server = f"{met[0]} {' and '.join(result.servers[met[0]])}"
                client = client_of(module, name)
                kind = "async" if "Async" in name or client in ASYNC_ONLY else "sync"
                table[server, f"{client} {result.versions.get(client.lower(), '')}", kind] += passed
    return [
        "| server | client | sync or async | passed |",
        "|---|---|---|--:|",
        *(f"| {server} | {client} | {kind} | {passed} |" for (server, client, kind), passed in sorted(table.items())),
    ]


def _not_tried(results: Mapping[str, Result]) -> list[str]:
    """Return each reason once, with its rows."""
    rows: dict[str, list[str]] = defaultdict(list)
    for name, result in results.items():
        if not result.tried:
            rows[f"the row: {result.trouble}"].append(name)
        for requirement, reason in result.left_out.items():
            rows[f"{requirement}: {reason}"].append(name)
        for reason, tests in result.skipped.items():
            rows[f"{tests} tests skipped: {reason}"].append(name)
    lines = [f"- {', '.join(f'`{name}`' for name in names)}: {_plain(reason)}" for reason, names in rows.items()]
    return lines or ["Nothing."]


def _plain(text: str) -> str:
    """Return the text on one line, without markup."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")
