"""The tables of stores in the docs: ``make docs-tables`` writes them.

The facts are in ``shedlock_py/model/stores.py``, the other cells in ``docs_tables.toml``.
"""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from shedlock_py.model.stores import STORES, Store

PROJECT = Path(__file__).resolve().parents[1]
COMMAND = "make docs-tables"
CELLS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""The cells of each page, in the order of the rows."""
PAGES: dict[str, list[Store]] = {page: [store for store in STORES.values() if store.page == page] for page in CELLS}
"""The stores of each page. MySQL and MariaDB share a page."""
ROWS = [(page, PAGES[page][0], cells) for page, cells in CELLS.items()]
"""Each page, its first store, and its cells."""
PIP = "pip install 'shedlock_py["


def titles(page: str) -> str:
    return ", ".join(store.title for store in PAGES[page])


def code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names)) or "–"


def table(header: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a table. Rows that differ only in their first cell become one row."""
    labels: dict[tuple[str, ...], list[str]] = {}
    for label, *cells in rows:
        labels.setdefault(tuple(cells), []).append(label)
    lines = [f"| {header} |", f"|{'---|' * (header.count('|') + 1)}"]
    for cells, found in labels.items():
        lines.append("|" + "".join(f" {cell} |" if cell else " |" for cell in (", ".join(found), *cells)))
    return "\n".join(lines)


def with_cells(key: str) -> Iterator[Sequence[str]]:
    """Yield a row for each page that has cells under ``key``."""
    return ((titles(page), *cells[key]) for page, cells in CELLS.items() if key in cells)


def differences() -> str:
    rows = [
        (
            f"[{titles(page)}]({page}.md)",
            f"`{store.class_name}`",
            code(f"{scheme}://" for each in PAGES[page] for scheme in each.schemes),
            store.clock,
            store.round_trips,
            cells["restart"],
            cells["failover"],
        )
        for page, store, cells in ROWS
    ]
    yours = ("yours", "[writing your own](writing-your-own.md)", "a scheme of yours", *[""] * 4)
    return table("store | class | URL | clock | round trips | a restart | a fail-over", [*rows, yours])


def choice() -> str:
    rows = [
        (
            f"[{titles(page)}]({page}.md)",
            cells["server_lost"],
            store.round_trips,
            cells["dead_holder"],
            "yes" if store.has_history else "no",
            cells["cost"],
        )
        for page, store, cells in ROWS
    ]
    history = "[run history](../how-to/run-history.md)"
    return table(
        "store | a lease survives the loss of a server | round trips | a dead holder's lease ends "
        f"| {history} | what it costs you",
        rows,
    )


def history() -> str:
    rows = []
    for page, store, cells in ROWS:
        anchor = "#run-history" if store.has_history and store.extra else ""
        link = f"[{titles(page)}](../providers/{page}.md{anchor})"
        rows.append((link, *cells.get("history", ("no run history", "–", "–"))))
    return table("store | where | of each run | more permissions", rows)


def extras() -> Iterator[tuple[str, list[Store]]]:
    """Yield an extra, and the stores that it installs."""
    stores = [store for page in PAGES.values() for store in page if store.extra]
    for extra in dict.fromkeys(store.extra for store in stores):
        yield extra, [store for store in stores if store.extra == extra]


def install_lines() -> str:
    lines = []
    for extra, stores in extras():
        what = ", ".join(store.title for store in stores)
        for_asyncio = f"; for asyncio: {stores[0].async_extra}" if stores[0].async_extra else ""
        lines.append(f"{PIP + extra}]'".ljust(56) + f"# {what}{for_asyncio}")
    return "\n".join(lines)


def reference() -> str:
    """Return the classes of the stores that have a separate module."""
    stores = [store for store in STORES.values() if store.extra and not store.is_sql]
    lines = []
    for module in dict.fromkeys(store.module for store in stores):
        of_module = [store for store in stores if store.module == module]
        lines.append(f"## {of_module[0].title}")
        for name in (prefix + store.class_name for store in of_module for prefix in ("", "Async")):
            lines.append(f"::: shedlock_py.providers.{module}.{name}\n    options:\n      heading_level: 3")
    return "\n\n".join(lines)


def navigation() -> str:
    return "\n".join(f"- {titles(page)}: providers/{page}.md" for page in CELLS)


def marks(name: str, indent: str = "") -> tuple[str, str]:
    return f"<!-- begin {name}: written by `{COMMAND}` -->\n\n", f"\n\n{indent}<!-- end {name} -->"


def checklist() -> str:
    return table("store | safe across a fail-over", (row for cells in CELLS.values() for row in cells["checklist"]))


def encryption() -> str:
    return table("store | without options | encrypted; certificate and host name are checked", with_cells("encryption"))


def schema() -> str:
    return table("store | makes | when to call it", with_cells("schema"))


def doctor() -> str:
    return table("store | checks | warns of | fails on", with_cells("doctor"))


PARTS = [
    ("docs/providers/README.md", "## Install\n\n```sh\n", f"\n{PIP}all,", install_lines),
    ("docs/providers/README.md", *marks("differences"), differences),
    ("docs/providers/README.md", *marks("choice"), choice),
    ("docs/providers/README.md", *marks("encryption"), encryption),
    ("docs/providers/README.md", *marks("schema"), schema),
    ("docs/how-to/run-history.md", *marks("history"), history),
    ("docs/production-checklist.md", *marks("checklist", " " * 4), checklist),
    ("docs/reference/command-line.md", *marks("doctor"), doctor),
    ("docs/reference/api/providers.md", *marks("stores"), reference),
    ("mkdocs.yml", f"# begin stores: written by `{COMMAND}`\n", "\n      # end stores", navigation),
]
"""A page, the texts before and after a part, and the function that writes the part."""


def written(page: str) -> str:
    """Return the page with all its parts.

    :raises ValueError: the page lacks the texts around a part.
    """
    text = (PROJECT / page).read_text(encoding="utf-8")
    for part_of, begin, end, write in PARTS:
        if part_of == page:
            before, found, rest = text.partition(begin)
            _, found_too, after = rest.partition(end)
            if not found or not found_too:
                raise ValueError(f"{page} has no place for a part: {begin.strip()} … {end.strip()}")
            indent = " " * (len(end.strip("\n")) - len(end.strip()))
            text = before + begin + textwrap.indent(write(), indent) + end + after
    return text


def main() -> None:
    for page in dict.fromkeys(page for page, *_ in PARTS):
        (PROJECT / page).write_text(written(page), encoding="utf-8")


if __name__ == "__main__":
    main()
