"""Name a test as soon as it fails. pytest names it at the end, which may be half an hour later."""

from __future__ import annotations

import pytest


class NamedAtOnce:
    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._plugins.get_plugin("terminalreporter")  # the processes of xdist do not have it
        if report.failed and terminal is not None:
            terminal.write(f"\nfailed: {report.nodeid} ({report.when})\n", flush=True)
