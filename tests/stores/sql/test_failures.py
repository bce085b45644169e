"""How errors are classified. Without a server."""

import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError

from shedlock_py import LockRequest, ProviderError
from shedlock_py.providers.kit import MOST_RETRIES, Failure, carry_out
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.providers.sqlalchemy.errors import classify
from shedlock_py.providers.sqlalchemy.sql_programs import SqlPrograms
from tests.support.signals import TooLong, raised_by


def mysql_error(code: int) -> DBAPIError:
    return DBAPIError("UPDATE", {}, Exception(code, "an error of MySQL"))


@pytest.mark.parametrize("seconds", [0.0, 4.0])
def test_a_long_wait_for_a_lock_is_not_repeated(seconds: float) -> None:
    """The database undid a command after a wait for a lock: only a retry within the time limit."""
    now = 0.0
    programs = SqlPrograms(mysql.dialect(), "shedlock", None, True, mysql.dialect, clock=lambda: now, timeout=5.0)
    program = carry_out(programs, "prune", None, programs.prune(timedelta(0)))
    next(program)

    def fail() -> None:
        nonlocal now
        now += seconds
        program.throw(mysql_error(1205))

    for _ in range(MOST_RETRIES if seconds == 0 else 1):
        fail()
    with pytest.raises(ProviderError):
        fail()


SERVER_CODES = {
    1021: Failure.NOT_DONE,  # disk full
    1040: Failure.NOT_DONE,  # too many connections
    1041: Failure.NOT_DONE,  # out of memory
    1047: Failure.NOT_DONE,  # a Galera node that has left its cluster
    1053: Failure.UNREACHABLE,  # shutting down
    1114: Failure.NOT_DONE,  # the table is full, as the disk is
    1129: Failure.NOT_DONE,  # this host is blocked after many connection errors
    1135: Failure.NOT_DONE,  # no thread for the connection
    1205: Failure.CONFLICT,  # lock wait timeout
    1213: Failure.CONFLICT,  # deadlock
    1290: Failure.NOT_DONE,  # read-only
    1317: Failure.UNREACHABLE,  # interrupted
    1836: Failure.NOT_DONE,  # read-only
    1927: Failure.UNREACHABLE,  # MariaDB: the connection was killed
    3024: Failure.UNREACHABLE,  # max_execution_time
    3032: Failure.NOT_DONE,  # MySQL in offline mode
    3101: Failure.CONFLICT,  # MySQL: Group Replication refused the commit in favour of another member's
    3169: Failure.SESSION_CLOSED,  # MySQL: the session was killed
    4031: Failure.SESSION_CLOSED,  # MySQL: closed for inactivity
}


def test_i5_codes_of_mysql_and_mariadb() -> None:
    assert {code: classify(mysql_error(code)) for code in SERVER_CODES} == SERVER_CODES


@pytest.mark.parametrize("code", [3169, 4031])
def test_a_session_that_mysql_closed_is_retried_although_its_connection_is_broken(code: int) -> None:
    error = mysql_error(code)
    error.connection_invalidated = True
    assert classify(error) is Failure.SESSION_CLOSED


@pytest.fixture
def _alarm() -> Iterator[None]:
    with raised_by(signal.SIGUSR1, TooLong):
        yield


@pytest.mark.usefixtures("_alarm")
def test_an_exception_of_a_signal_handler_while_connecting_reaches_the_caller(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/locks.db")
    event.listen(engine, "connect", lambda *_: signal.raise_signal(signal.SIGUSR1))
    with pytest.raises(TooLong):
        SqlAlchemyLockProvider(engine).acquire(LockRequest("job", "1m"))
    engine.dispose()
