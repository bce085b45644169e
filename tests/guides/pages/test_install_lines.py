"""A page's install line has the drivers for the databases in its examples."""

from __future__ import annotations

import re

from tests.guides.documents import DOCS, README
from tests.support.scripts import PROJECT

DRIVERS = {
    "postgresql": {"psycopg[binary]", "psycopg", "psycopg2-binary", "psycopg2", "asyncpg"},
    "mysql": {"pymysql", "pymysql[rsa]", "mysqlclient", "asyncmy", "aiomysql"},
}
"""The packages with a driver for each kind of database. Python contains SQLite's."""
SCHEMES = {"postgresql": "postgresql", "postgres": "postgresql", "mysql": "mysql", "mariadb": "mysql"}

FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
URL = re.compile(r"\b(postgres|postgresql|mysql|mariadb)(?:\+\w+)?://\w")
INSTALL = re.compile(r"\bpip\s+install((?:\s+(?!pip\b)(?:'[^']+'|[\w.\[\]>=,-]+))+)")
WITH_DRIVER = {"postgresql": {"postgresql", "asyncpg"}, "mysql": {"mysql", "asyncmy"}}
"""The extras that bring a driver."""
WITH_SQL = re.compile(r"\[[\w,]*\b(?:sqlalchemy|all|(?:aio)?sqlite|postgresql|asyncpg|mysql|asyncmy)\b[\w,]*\]")


def databases(text: str) -> set[str]:
    """Return the databases that the page's code opens by URL."""
    return {SCHEMES[scheme] for block in FENCED.findall(text) for scheme in URL.findall(block)}


def install_lines(text: str) -> list[list[str]]:
    """Return the packages of each ``pip install`` for SQL databases."""
    lines = [re.findall(r"'[^']+'|\S+", found) for found in INSTALL.findall(text)]
    return [[word.strip("'") for word in words] for words in lines if WITH_SQL.search(" ".join(words))]


def lacking(text: str) -> list[str]:
    """Return the lines without a driver for any database that the page opens."""
    drivers = {driver for database in databases(text) for driver in DRIVERS[database] | WITH_DRIVER[database]}
    return [
        " ".join(words)
        for words in install_lines(text)
        if drivers and not drivers & {*words, *re.findall(r"\w+", words[0].partition("[")[2])}
    ]


PAGES = [README, *sorted(DOCS.rglob("*.md"))]


def test_install_lines_name_a_driver_of_the_databases_on_the_page() -> None:
    assert {page.name: lines for page in PAGES if (lines := lacking(page.read_text()))} == {}


def test_such_pages_are_found() -> None:
    texts = {str(page.relative_to(PROJECT)): page.read_text() for page in PAGES}
    checked = {name for name, text in texts.items() if databases(text) and install_lines(text)}
    assert {"README.md", "docs/how-to/cron.md", "docs/providers/mysql.md", "docs/reference/command-line.md"} <= checked


def test_a_line_without_the_driver_is_found() -> None:
    page = "`pip install 'shedlock_py[cli,sqlalchemy]'`\n```sh\nexport SHEDLOCK_STORE=postgresql://app@db/app\n```\n"
    assert lacking(page) == ["shedlock_py[cli,sqlalchemy]"]
    assert lacking(page.replace("sqlalchemy]'", "sqlalchemy]' pymysql")) == ["shedlock_py[cli,sqlalchemy] pymysql"]
    assert lacking(page.replace("sqlalchemy]", "mysql]")) == ["shedlock_py[cli,mysql]"]
    assert lacking(page.replace("sqlalchemy]", "postgresql]")) == []
    assert lacking(page.replace("sqlalchemy]'", "sqlalchemy]' 'psycopg[binary]'")) == []
    assert lacking(page.replace("postgresql://app@db/app", "sqlite:///locks.db")) == []
