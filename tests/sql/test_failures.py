"""What errors mean, and for how long statements are repeated because of them. No server is asked."""

import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import FrameType

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError

from shedlock_py import LockRequest, ProviderUnreachable
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.providers.sqlalchemy.algorithm import MOST_TRIES, SqlAlgorithm
from shedlock_py.providers.sqlalchemy.failures import Failure, classify


def mysql_error(code: int) -> DBAPIError:
    return DBAPIError("UPDATE", {}, Exception(code, "an error of MySQL"))


@pytest.mark.parametrize(("seconds", "tries"), [(0.0, MOST_TRIES), (2.0, 3), (50.0, 1)])
def test_a_long_wait_for_a_lock_is_not_repeated(seconds: float, tries: int) -> None:
    now = 0.0
    algorithm = SqlAlgorithm(mysql.dialect(), "shedlock", None, True, lambda: now, str)
    program = algorithm.prune(timedelta(0))
    next(program)
    for _ in range(tries - 1):
        now += seconds
        program.throw(mysql_error(1205))
    now += seconds
    with pytest.raises(ProviderUnreachable):
        program.throw(mysql_error(1205))


@pytest.mark.parametrize("code", [1047, 1927])
def test_i5_a_server_that_is_not_there_for_us(code: int) -> None:
    assert classify(mysql_error(code)) is Failure.UNREACHABLE


class TooLong(Exception):
    """As Celery has one."""


@pytest.fixture
def _alarm() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGUSR1, ring)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("_alarm")
def test_an_exception_of_a_signal_handler_while_connecting(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/locks.db")
    event.listen(engine, "connect", lambda *_: signal.raise_signal(signal.SIGUSR1))
    with pytest.raises(TooLong):
        SqlAlchemyLockProvider(engine).acquire(LockRequest("job", "1m"))
    engine.dispose()
