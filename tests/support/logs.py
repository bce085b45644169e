"""The library's log records. Other libraries log too, and a thread of an earlier test may log at any time."""

from __future__ import annotations

import logging

import pytest


def records_of(
    caplog: pytest.LogCaptureFixture, *words: str, level: int = logging.DEBUG, logger: str = "shedlock_py"
) -> list[logging.LogRecord]:
    """Return the library's records of at least ``level`` with all ``words`` in their message.

    :param logger: "apscheduler" for records of the executor, which logs as APScheduler does.
    """
    return [
        record
        for record in caplog.records
        if record.name.partition(".")[0] == logger
        and record.levelno >= level
        and all(word in record.getMessage() for word in words)
    ]


def warnings_of(caplog: pytest.LogCaptureFixture, *words: str, logger: str = "shedlock_py") -> list[str]:
    """Return the library's messages of level WARNING and above with all ``words``."""
    return [record.getMessage() for record in records_of(caplog, *words, level=logging.WARNING, logger=logger)]
