"""Run the rows of the matrix in sequence; ``make test-all``.

A passed row does not run again until a file of the clone changes, unless ``--again`` is given. The tables in
docs/tested-with.md show each row's last run on committed files, with its commit.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.matrix import report
from tests.matrix.environments import (
    BUILD,
    PAGE,
    TREE,
    Environment,
    SetupError,
    build_wheel,
    commit,
    copy_tests,
    digest,
)
from tests.matrix.results import Result, load, save
from tests.matrix.rows import ROWS, Row
from tests.support import versions
from tests.support.fetching import MissingError, is_ci

LONGEST = 90 * 60.0
REPORT_EVERY = 60.0  # seconds, without a terminal
SECANTUS = {"SHEDLOCK_TEST_SECANTUS_PYTHON": sys.executable}
FAILED_TESTS, NO_TESTS = 1, 5  # statuses of pytest


def main() -> int:
    options = _options()
    rows = [row for row in ROWS if any(re.search(pattern, row.name) for pattern in options.only or [""])]
    if options.list or not rows:
        print(*(f"{row.name:32}{row.what}" for row in ROWS), sep="\n")
        return 0 if options.list else 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the row's tests end too
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:  # the kernel frees it when this process ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another run in this clone uses {BUILD}")
            return 2
        try:
            return run_all(rows, options)
        except SetupError as error:
            print(f"the wheel cannot be built, or the clone not be read: {error}")
            return 2
        except KeyboardInterrupt:
            print("\ninterrupted; recorded rows that passed do not run again on these files")
            return 130


def run_all(rows: list[Row], options: argparse.Namespace) -> int:
    copy_tests()
    wheel, state, tested = build_wheel(), digest(), commit()
    unrecorded = _why_unrecorded(tested, options)
    results: dict[str, Result] = {}
    for number, row in enumerate(rows, 1):
        title = f"[{number}/{len(rows)}] {row.name}"
        former = load(row.name)
        if former and former.is_green and former.digest == state and not unrecorded and not options.again:
            print(f"{title}: passed before, and nothing has changed", flush=True)
            results[row.name] = former
            continue
        print(f"{title}: {row.what}", flush=True)
        result = Result(state, tested or "", f"{datetime.now(UTC):%Y-%m-%d}")
        results[row.name] = run(row, wheel, result, [*options.parallel.split(), *options.pytest], title)
        if not unrecorded and (result.tried or former is None):  # a row that cannot run here may have run elsewhere
            save(row.name, result)
            report.write_page(report.page({each.name: load(each.name) for each in ROWS}))
        print(report.line(row.name, result), *(f"{'':12}{test}" for test in result.failed), sep="\n", flush=True)
    print("", *(report.line(name, result) for name, result in results.items()), "", sep="\n")
    print(f"nothing is recorded: {unrecorded}" if unrecorded else f"recorded in {PAGE}")
    passed, failed = report.counts(results)
    print(f"{passed} passed, {failed} failed")
    not_tried = [name for name, result in results.items() if not result.tried]
    return int(failed > 0 or (is_ci() and bool(not_tried)))


def _why_unrecorded(tested: str | None, options: argparse.Namespace) -> str:
    """Return why the run is not recorded, or ""."""
    if is_ci():
        return "CI is set"
    if options.pytest:
        return "pytest has more arguments"
    return "" if tested else "the clone has uncommitted changes"


def run(row: Row, wheel: Path, result: Result, arguments: list[str], title: str) -> Result:
    """Make the environment of a row and run its tests there."""
    environment = Environment(row)
    began = time.monotonic()
    try:
        environment.make(wheel)
        result.versions, result.left_out = environment.versions(), environment.left_out
        made = time.monotonic() - began
        print(f"    the environment is there ({made:.0f} s); the log is {_log(row)}", flush=True)
        began = time.monotonic()
        _test(row, environment, result, arguments, title)
    except MissingError as error:
        result.tried, result.trouble = False, str(error)
    except SetupError as error:
        result.trouble = str(error)
    result.seconds = time.monotonic() - began
    return result


def _test(row: Row, environment: Environment, result: Result, arguments: list[str], title: str) -> None:
    junit, met = BUILD / f"{row.name}.xml", BUILD / f"{row.name}.servers.json"
    junit.unlink(missing_ok=True)
    met.unlink(missing_ok=True)
    words = ["-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={junit}", *chosen(row, arguments), *arguments]
    command = [environment.python, *(row.command or words)]
    path = f"{environment.directory / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    variables = {**os.environ, "PATH": path, **row.servers, **SECANTUS, versions.VARIABLE: str(met)}
    variables.pop("PYTHONPATH", None)
    status = _follow(command, variables, _log(row), title)
    if row.command:
        passed, failed = _last_line(_log(row))
        result.passed, result.failed = passed, [f"{failed} of {row.name}: see the log"] * failed
    elif junit.exists():
        result.read_report(junit)
    if met.exists():
        result.servers = json.loads(met.read_text())
    if status not in (0, FAILED_TESTS) or (status and not result.failed):
        ends = [line for line in _log(row).read_text(errors="replace").splitlines() if line.strip()]
        result.trouble = f"ended with status {status}: {ends[-1] if ends else 'no output'}"


def chosen(row: Row, arguments: list[str]) -> list[str]:
    """Return the row's arguments for pytest. Tests named after ``--`` replace its tests."""
    named = any(argument.startswith("tests/") for argument in arguments)
    return [argument for argument in row.tests if not (named and argument.startswith("tests"))]


def _follow(command: list[str], variables: dict[str, str], log: Path, title: str) -> int:
    """Run the command with its output in a log, show its progress, and return its status."""
    began = shown = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=TREE, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:
        while process.poll() is None:
            time.sleep(0.5)
            now = time.monotonic()
            if now - began > LONGEST:
                raise SetupError(f"did not end within {LONGEST / 60:.0f} minutes")
            if sys.stdout.isatty() or now - shown > REPORT_EVERY:
                shown = now
                end = "\r" if sys.stdout.isatty() else "\n"
                print(f"    {title} {_percent(log)} after {(now - began) / 60:.1f} min", end=end, flush=True)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    return process.returncode


def _percent(log: Path) -> str:
    """Return pytest's last printed percentage."""
    found = re.findall(rb"\[ *(\d+)%\]", log.read_bytes()[-5000:])
    return f"{found[-1].decode()} %" if found else "collecting"


def _last_line(log: Path) -> tuple[int, int]:
    found = re.search(r"(\d+) passed, (\d+) failed\s*\Z", log.read_text(errors="replace"))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _log(row: Row) -> Path:
    return BUILD / f"{row.name}.log"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", metavar="PATTERN", help="rows with a matching name; may be repeated")
    parser.add_argument("--again", action="store_true", help="also rows that passed on these very files")
    parser.add_argument("--list", action="store_true", help="list the rows")
    parser.add_argument("--parallel", default="-n 2 --dist loadfile", help="how pytest-xdist shares the tests out")
    parser.add_argument("pytest", nargs="*", metavar="ARGUMENT", help="more for pytest, after --; nothing is recorded")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
