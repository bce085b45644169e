"""What errors mean. No server is needed."""

import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError

from shedlock_py import LockRequest, ProviderError
from shedlock_py.providers.kit import MOST_RETRIES, Failure
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.providers.sqlalchemy.errors import classify
from shedlock_py.providers.sqlalchemy.programs import SqlPrograms
from tests.support.signals import TooLong, raised_by


def mysql_error(code: int) -> DBAPIError:
    return DBAPIError("UPDATE", {}, Exception(code, "an error of MySQL"))


@pytest.mark.parametrize("seconds", [0.0, 4.0])
def test_a_long_wait_for_a_lock_is_not_repeated(seconds: float) -> None:
    """A command that the database undid after it had waited for a lock: a retry within the time limit only."""
    now = 0.0
    programs = SqlPrograms(mysql.dialect(), "shedlock", None, True, mysql.dialect, clock=lambda: now, timeout=5.0)
    program = programs.carry_out("prune", None, programs.prune(timedelta(0)))
    next(program)

    def fail() -> None:
        nonlocal now
        now += seconds
        program.throw(mysql_error(1205))

    for _ in range(MOST_RETRIES if seconds == 0 else 1):
        fail()
    with pytest.raises(ProviderError):
        fail()


@pytest.mark.parametrize(("code", "failure"), [(1047, Failure.NOT_DONE), (1927, Failure.UNREACHABLE)])
def test_i5_a_server_that_is_not_there_for_us(code: int, failure: Failure) -> None:
    assert classify(mysql_error(code)) is failure


@pytest.fixture
def _alarm() -> Iterator[None]:
    with raised_by(signal.SIGUSR1, TooLong):
        yield


@pytest.mark.usefixtures("_alarm")
def test_an_exception_of_a_signal_handler_while_connecting(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/locks.db")
    event.listen(engine, "connect", lambda *_: signal.raise_signal(signal.SIGUSR1))
    with pytest.raises(TooLong):
        SqlAlchemyLockProvider(engine).acquire(LockRequest("job", "1m"))
    engine.dispose()
