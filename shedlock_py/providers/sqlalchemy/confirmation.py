"""PostgreSQL with a synchronous standby: noticing a commit that no standby confirmed.

A statement that waits for the standby and is cancelled (by ``statement_timeout``, say) is reported as done, with a
warning. After a failover it was never done: taken for granted, it gave two holders four times out of four.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import PoolProxiedConnection

from shedlock_py.providers.sqlalchemy.errors import Unconfirmed

_SOURCE_FUNCTION = "SyncRepWaitForLSN"
"""The function in PostgreSQL that gives the warning. The words are in the server's language; this name is not."""


class Warnings:
    """What a connection's server warned about. The connection refers to it; it must not refer to the connection."""

    __slots__ = ("is_unconfirmed",)

    def __init__(self) -> None:
        self.is_unconfirmed = False


def listen_for_warnings(connection: PoolProxiedConnection) -> Warnings:
    """Note the server's warnings from now on. Once for each connection of the driver."""
    warnings = Warnings()
    driver: Any = connection.driver_connection

    def note(*arguments: Any) -> None:
        message = arguments[-1]  # psycopg passes the diagnostics, asyncpg the connection and then the message
        source = getattr(message, "source_function", None) or getattr(message, "server_source_function", None)
        if source == _SOURCE_FUNCTION:
            warnings.is_unconfirmed = True

    if hasattr(driver, "add_notice_handler"):  # psycopg
        driver.add_notice_handler(note)
    elif hasattr(driver, "add_log_listener"):  # asyncpg
        driver.add_log_listener(note)
    else:  # psycopg2 appends to a list, which SQLAlchemy empties after each of its statements
        driver.notices = _Notices(warnings)
    return warnings


_MOST_NOTICES = 50  # as psycopg2 does with a plain list
_OTHER_SEVERITIES = ("NOTICE", "INFO", "LOG", "DEBUG")
_WORDS = "synchronous replication"


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
        return _WORDS in notice
    return severity not in _OTHER_SEVERITIES


def unconfirmed() -> Unconfirmed:
    """The server warned about the statement just carried out."""
    return Unconfirmed("the server did it but warns that it may not last: no synchronous standby has confirmed it")
