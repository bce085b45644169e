"""PostgreSQL with a synchronous standby: noticing a commit that no standby confirmed.

A statement that waits for the standby and is cancelled (by ``statement_timeout``, say) is reported as done, with a
warning. After a fail-over it was never done: taken for granted, it gave two holders four times out of four.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import PoolProxiedConnection

from shedlock_py.providers.sqlalchemy.failures import Unconfirmed


class Heard:
    """What a connection's server has said. The connection has it, and so it must not have the connection."""

    __slots__ = ("a_warning",)

    def __init__(self) -> None:
        self.a_warning = False


def listen_for_warnings(connection: PoolProxiedConnection) -> Heard:
    """Once for each connection of the driver: note the server's warnings."""
    heard = Heard()
    driver: Any = connection.driver_connection

    def note(*told: Any) -> None:
        message = told[-1]  # psycopg passes the diagnostics, asyncpg the connection and then the message
        if getattr(message, "sqlstate", None) == "01000":
            heard.a_warning = True

    if hasattr(driver, "add_notice_handler"):  # psycopg
        driver.add_notice_handler(note)
    elif hasattr(driver, "add_log_listener"):  # asyncpg
        driver.add_log_listener(note)
    else:  # psycopg2 appends to a list, which SQLAlchemy empties after each of its statements
        driver.notices = _Notices(heard)
    return heard


_MOST_NOTICES = 50  # as psycopg2 does with a plain list


class _Notices(list[str]):
    """psycopg2's list of notices; they are text only."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard

    def append(self, notice: str) -> None:
        if notice.startswith("WARNING"):
            self._heard.a_warning = True
        super().append(notice)
        del self[:-_MOST_NOTICES]


def unconfirmed() -> Unconfirmed:
    """The server warned about the statement just done."""
    return Unconfirmed("the server did it but warns that it may not last: no synchronous standby has confirmed it")
