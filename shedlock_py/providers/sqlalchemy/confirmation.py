"""Detects commits that PostgreSQL's synchronous standby did not confirm.

If a statement is cancelled while it waits for the standby (for example by ``statement_timeout``), PostgreSQL reports
success with a warning. A failover loses the commit: in 4 of 4 tests, such a lock then had two holders.
"""

from __future__ import annotations

from typing import Any

_SOURCE_FUNCTION = "SyncRepWaitForLSN"
"""The PostgreSQL function that emits the warning. The warning's text is translated, this name is not."""
_MOST_NOTICES = 50  # psycopg2 keeps as many in its own list
_OTHER_SEVERITIES = ("NOTICE", "INFO", "LOG", "DEBUG")


class Warnings:
    """Warnings from the server of a connection. It must not refer to the connection, which refers to it."""

    def __init__(self) -> None:
        self.is_unconfirmed = False


def listen_for_warnings(driver: Any) -> Warnings:
    """Note the server's warnings from now on. Call it once for each driver connection."""
    warnings = Warnings()

    def on_notice(*arguments: Any) -> None:
        message = arguments[-1]  # psycopg passes the diagnostics, asyncpg the connection and the message
        source = getattr(message, "source_function", None) or getattr(message, "server_source_function", None)
        if source == _SOURCE_FUNCTION:
            warnings.is_unconfirmed = True

    if hasattr(driver, "add_notice_handler"):  # psycopg
        driver.add_notice_handler(on_notice)
    elif hasattr(driver, "add_log_listener"):  # asyncpg
        driver.add_log_listener(on_notice)
    else:  # psycopg2 appends to a list, and SQLAlchemy empties it after each of its statements
        driver.notices = _Notices(warnings)
    return warnings


class _Notices(list[str]):
    """psycopg2's list of notices. psycopg2 keeps only their text."""

    def __init__(self, warnings: Warnings) -> None:
        self._warnings = warnings

    def append(self, notice: str) -> None:
        if _may_be_of_replication(notice):
            self._warnings.is_unconfirmed = True
        super().append(notice)
        del self[:-_MOST_NOTICES]


def _may_be_of_replication(notice: str) -> bool:
    """Return whether a notice may be the warning, by its English words. In other languages, any notice may be."""
    severity = notice.partition(":")[0]
    if severity == "WARNING":
        return "synchronous replication" in notice
    return severity not in _OTHER_SEVERITIES
