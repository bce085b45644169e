"""The README is true: its Python runs, its error messages exist, its links lead somewhere.

The Python blocks of one ``##`` section are one script, run in an empty directory where any warning is an error; a
script that defines tests is given to pytest.
"""

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import create_engine

import shedlock_py as sl
from shedlock_py.integrations.apscheduler import ShedLockExecutor
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.examples.scripts import PROJECT, run_python

README = (PROJECT / "README.md").read_text()
DOCUMENTS = [PROJECT / "README.md", PROJECT / "CHANGELOG.md", *sorted((PROJECT / "docs").glob("*.md"))]


def sections() -> Iterator[tuple[str, str]]:
    """Title and text of each part that begins with a ``##`` heading; the first has no title."""
    title, lines, fenced = "(top)", list[str](), False
    for line in README.splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("## ") and not fenced:
            yield title, "\n".join(lines)
            title, lines = line.removeprefix("## "), []
        lines.append(line)
    yield title, "\n".join(lines)


def python_of(text: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


SCRIPTS = {title: script for title, text in sections() if (script := python_of(text))}


@pytest.mark.parametrize("title", SCRIPTS)
def test_the_python_of_each_section_runs(title: str, tmp_path: Path) -> None:
    script = tmp_path / "test_readme_section.py"
    script.write_text(SCRIPTS[title])
    has_tests = "\ndef test_" in SCRIPTS[title]
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", script.name] if has_tests else [script.name]
    done = run_python(*command, cwd=tmp_path, timeout=100)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_most_sections_have_python() -> None:
    assert len(SCRIPTS) >= 10


def test_it_begins_with_the_two_commands() -> None:
    commands = re.findall(r"^(make \S+)", README, re.MULTILINE)
    assert commands[:2] == ["make demo", "make test"]
    assert README.index("make test") < 400


def test_there_are_nine_rules() -> None:
    rules = dict(sections())["Nine rules of behaviour"]
    assert re.findall(r"^(\d)\. ", rules, re.MULTILINE) == [str(number) for number in range(1, 10)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        linked = document.parent / name if name else document
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings]
            assert anchor in anchors, target


def test_names_in_code_exist() -> None:
    """What the documents write as `name(…)` and the classes they name are public names of the library."""
    public = set(sl.__all__)
    for document in DOCUMENTS:
        for name in re.findall(
            r"`((?:Lock|Lease|Provider|Task|Skipped|Executed|Configuration|NotLocked)\w*)", document.read_text()
        ):
            assert name in public or name.endswith("Contract"), f"{name} in {document.name}"


def test_environment_variables_are_those_of_docker_compose() -> None:
    exports = re.findall(r"^export .*$", README, re.MULTILINE)
    compose = (PROJECT / "docker-compose.yml").read_text()
    assert len(exports) == 3
    for line in exports:
        assert line in compose


# The messages of the troubleshooting table, provoked.


def provoke_missing_table() -> None:
    sl.configure(provider="sqlite:///empty.db")
    sl.attempt("nightly", lambda: None)


def provoke_missing_columns() -> None:
    engine = create_engine("sqlite:///java.db")
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE shedlock (name VARCHAR(64) PRIMARY KEY, lock_until TIMESTAMP NOT NULL,"
            " locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL)"
        )
    try:
        SqlAlchemyLockProvider(engine).acquire(sl.LockRequest("nightly", "1m"))
    finally:
        engine.dispose()


def provoke_dead_server() -> None:
    provider = sl.provider_from_url("postgresql+psycopg://user@127.0.0.1:1/db")
    sl.attempt("nightly", lambda: None, lock_at_most_for="1m", provider=provider)


def provoke_only_async() -> None:
    sl.configure(async_provider=sl.AsyncInMemoryLockProvider())
    sl.attempt("nightly", lambda: None)


def provoke_task_object() -> None:
    class Task:
        apply_async = None

        def __call__(self) -> None: ...

    sl.scheduler_lock("nightly")(Task())


def provoke_overrun() -> None:
    provider = sl.InMemoryLockProvider()
    with sl.configure(provider=provider), sl.hold("nightly", lock_at_most_for="5ms") as lease:
        while lease and lease.is_trusted():
            pass


def provoke_process_pool() -> None:
    provider = sl.InMemoryLockProvider()  # has a mutex, cannot be pickled
    scheduler = BackgroundScheduler(executors={"default": ShedLockExecutor("processpool", provider)}, timezone="UTC")
    scheduler.start()


def provoke_inactive() -> None:
    sl.set_active(False)
    sl.attempt("nightly", lambda: None, lock_at_most_for="1m")


PROVOKED: dict[str, Callable[[], Any]] = {
    "no provider for lock 'nightly'": lambda: sl.attempt("nightly", lambda: None, lock_at_most_for="1m"),
    "lock 'nightly' has no lock_at_most_for": lambda: sl.attempt("nightly", lambda: None),
    "create the table shedlock once, with provider.create_schema()": provoke_missing_table,
    "add the missing columns: ALTER TABLE": provoke_missing_columns,
    "acquire of lock 'nightly': connection failed": provoke_dead_server,
    "an in-memory SQLite database is private to one connection": lambda: sl.provider_from_url("sqlite://"),
    "store URL: unknown scheme": lambda: sl.provider_from_url("nosuch://host"),
    "needs the package": lambda: sl.provider_from_url("postgresql+pg8000://host/db"),
    "guards an ordinary function, but there is only an async provider": provoke_only_async,
    "is longer than lock_at_most_for": lambda: sl.LockRequest("nightly", "1m", "2m"),
    "uses {tenant}, which is no parameter of the function": lambda: sl.scheduler_lock("sync-{tenant}")(lambda x: x),
    "put @scheduler_lock directly above 'def'": provoke_task_object,
    "@scheduler_lock needs a lock name": lambda: sl.scheduler_lock(lambda: None),  # type: ignore[call-overload]  # on purpose
    "the task outlived its lease": provoke_overrun,
    "not inside a live lease": lambda: sl.extend_lock("1m"),
    "the workers of a process pool": provoke_process_pool,
    "LOCKING IS SWITCHED OFF": provoke_inactive,
}


def troubleshooting() -> list[str]:
    """The messages in the first column of the table."""
    text = dict(sections())["Troubleshooting"]
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def test_each_message_of_the_troubleshooting_table_is_provoked() -> None:
    assert sorted(troubleshooting()) == sorted(PROVOKED)


@pytest.mark.parametrize("message", PROVOKED)
def test_troubleshooting_quotes_the_real_message(
    message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shedlock_py.config._settings", sl.config.Settings())
    monkeypatch.setattr("shedlock_py.config._active", None)
    caplog.set_level(logging.WARNING)
    words = ""
    try:
        PROVOKED[message]()
    except (sl.ShedLockError, TypeError) as error:
        words = str(error)
    finally:
        sl.set_active(None)
    assert message in words + caplog.text


def test_the_configured_trust_of_ten_minutes() -> None:
    lease = sl.InMemoryLockProvider(clock=lambda: 1000.0).acquire(sl.LockRequest("nightly", "10m"))
    assert lease is not None
    minutes, seconds = divmod(lease.trusted_for().total_seconds(), 60)
    assert f"{minutes:.0f} min {seconds:.3f} s" in README
