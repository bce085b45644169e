"""Servers that a test run met, with the versions that the servers report.

A pytest plugin, registered by conftest.py, lists them in the summary: one line ``Product version`` each. With
``SHEDLOCK_TEST_VERSIONS=FILE`` it also writes them to that file, as JSON: ``{"MySQL": ["9.7.4"], "Redis": ["8.0.2"]}``.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "SHEDLOCK_TEST_VERSIONS"
_OUTPUT = "shedlock_versions"  # a pytest-xdist worker's key for its output to the main process

_met: set[tuple[str, str]] = set()


def record(product: str, version: str) -> None:
    _met.add((product, version))


def met() -> frozenset[tuple[str, str]]:
    """Return product and version of each server that this process met. The main process adds those of its workers."""
    return frozenset(_met)


def by_product() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for product, version in sorted(_met):
        found.setdefault(product, []).append(version)
    return found


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output[_OUTPUT] = [list(one) for one in _met]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A pytest-xdist worker has ended; its output is empty if it crashed."""
    for product, version in getattr(node, "workeroutput", {}).get(_OUTPUT, []):
        record(product, version)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _met:
        terminalreporter.section("servers of this run")
        for product, versions in by_product().items():
            terminalreporter.line(f"{product} {', '.join(versions)}")
    if path := os.environ.get(VARIABLE):
        Path(path).write_text(json.dumps(by_product(), indent=2) + "\n")
