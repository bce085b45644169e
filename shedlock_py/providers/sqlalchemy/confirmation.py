"""PostgreSQL with a synchronous standby: commits that no standby confirmed.

PostgreSQL reports a statement that is cancelled while it waits for the standby (by ``statement_timeout``, for example)
as done, with a warning. After a failover it was never done: a lock that was granted so had two holders, 4 times of 4.
"""

from __future__ import annotations

from typing import Any

_SOURCE_FUNCTION = "SyncRepWaitForLSN"
"""The function in PostgreSQL that gives the warning. Its text is in the server's language; this name is not."""
_MOST_NOTICES = 50  # as psycopg2 keeps in a plain list
_OTHER_SEVERITIES = ("NOTICE", "INFO", "LOG", "DEBUG")


class Warnings:
    """What the server of a connection warned about. It must not refer to the connection, which refers to it."""

    def __init__(self) -> None:
        self.is_unconfirmed = False


def listen_for_warnings(driver: Any) -> Warnings:
    """Note the server's warnings from now on. Once for each connection of the driver."""
    warnings = Warnings()

    def on_notice(*arguments: Any) -> None:
        message = arguments[-1]  # psycopg passes the diagnostics, asyncpg the connection and then the message
        source = getattr(message, "source_function", None) or getattr(message, "server_source_function", None)
        if source == _SOURCE_FUNCTION:
            warnings.is_unconfirmed = True

    if hasattr(driver, "add_notice_handler"):  # psycopg
        driver.add_notice_handler(on_notice)
    elif hasattr(driver, "add_log_listener"):  # asyncpg
        driver.add_log_listener(on_notice)
    else:  # psycopg2 appends to a list, which SQLAlchemy empties after each of its statements
        driver.notices = _Notices(warnings)
    return warnings


class _Notices(list[str]):
    """psycopg2's list of notices, which are text only."""

    def __init__(self, warnings: Warnings) -> None:
        self._warnings = warnings

    def append(self, notice: str) -> None:
        if _may_be_of_replication(notice):
            self._warnings.is_unconfirmed = True
        super().append(notice)
        del self[:-_MOST_NOTICES]


def _may_be_of_replication(notice: str) -> bool:
    """By its English words. In another language of the server, any notice may be the warning that is meant."""
    severity = notice.partition(":")[0]
    if severity == "WARNING":
        return "synchronous replication" in notice
    return severity not in _OTHER_SEVERITIES
