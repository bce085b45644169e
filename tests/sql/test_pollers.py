"""Whoever was refused twice within a second looks first, for another second. What he is told is the database's word."""

from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from sqlalchemy import text

from shedlock_py import LockProvider, LockRequest
from shedlock_py.providers.sqlalchemy.pollers import MOST_NAMES, Pollers
from shedlock_py.testing import FakeClock
from tests.services.proxy import TcpProxy
from tests.sql.stores import Store, acquired

WINDOW = timedelta(seconds=1)
MOMENT = timedelta(milliseconds=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class TestWhoPolls:
    @pytest.fixture
    def pollers(self, clock: FakeClock) -> Pollers:
        return Pollers(clock)

    def test_nobody_who_was_refused_once(self, pollers: Pollers) -> None:
        assert not pollers.has("a")
        pollers.note("a", is_refused=True)
        assert not pollers.has("a")

    def test_twice_within_a_second(self, pollers: Pollers, clock: FakeClock) -> None:
        pollers.note("a", is_refused=True)
        clock.advance(WINDOW - MOMENT)
        pollers.note("a", is_refused=True)
        assert pollers.has("a")
        assert not pollers.has("b")

    def test_not_twice_with_a_second_between(self, pollers: Pollers, clock: FakeClock) -> None:
        pollers.note("a", is_refused=True)
        clock.advance(WINDOW)
        pollers.note("a", is_refused=True)
        assert not pollers.has("a")

    def test_for_a_second_however_often_he_looks(self, pollers: Pollers, clock: FakeClock) -> None:
        pollers.note("a", is_refused=True)
        pollers.note("a", is_refused=True)
        for _ in range(999):
            clock.advance(MOMENT)
            assert pollers.has("a")
        clock.advance(MOMENT)
        assert not pollers.has("a")

    def test_not_after_a_grant(self, pollers: Pollers) -> None:
        for is_refused in (True, True, False):
            pollers.note("a", is_refused=is_refused)
        assert not pollers.has("a")
        pollers.note("a", is_refused=True)
        assert not pollers.has("a"), "this was the first refusal since"

    def test_so_many_names_at_most(self, pollers: Pollers) -> None:
        for number in range(3 * MOST_NAMES):
            pollers.note(str(number), is_refused=True)
            assert len(pollers._refusals) <= MOST_NAMES


def poller(provider: LockProvider, request: LockRequest, clock: FakeClock) -> Any:
    """``provider``, which was refused three times and looks by now. Its second lasts as long as ``clock`` stands."""
    shell: Any = getattr(provider, "async_provider", provider)
    shell._algorithm._pollers = Pollers(clock)
    for _ in range(3):
        assert provider.acquire(request) is None
    assert shell._algorithm._pollers.has(request.name)
    return provider


def test_he_gets_it_as_soon_as_it_is_free(store: Store, proxy: TcpProxy, name: str, clock: FakeClock) -> None:
    holder, request = store.provider(), LockRequest(name, "1m")
    lease = acquired(holder, name)
    waiting = poller(store.provider(proxy.address), request, clock)
    proxy.reset()
    assert waiting.acquire(request) is None
    assert proxy.round_trips == 1
    assert holder.release(lease)
    proxy.reset()
    assert waiting.acquire(request)
    assert proxy.round_trips == 2, "a look, and the lock"


def test_after_a_second_he_asks_for_the_lock_itself(store: Store, proxy: TcpProxy, name: str, clock: FakeClock) -> None:
    holder, request = store.provider(), LockRequest(name, "1m")
    lease = acquired(holder, name)
    waiting = poller(store.provider(proxy.address), request, clock)
    clock.advance(WINDOW - MOMENT)
    assert waiting.acquire(request) is None  # a look: it must not prolong the second
    clock.advance(MOMENT)
    assert holder.release(lease)
    proxy.reset()
    assert waiting.acquire(request)
    assert proxy.round_trips == 1


def test_a_deleted_record_stops_nobody(store: Store, name: str, clock: FakeClock) -> None:
    request = LockRequest(name, "1m")
    acquired(store.provider(), name)
    waiting = poller(store.provider(), request, clock)
    store.execute("DELETE FROM shedlock WHERE name = :name", name=name)
    assert waiting.acquire(request)


def test_a_new_fire_time_is_granted(store: Store, proxy: TcpProxy, name: str, clock: FakeClock) -> None:
    ran, newer = datetime(2026, 7, 1, tzinfo=UTC), datetime(2026, 7, 2, tzinfo=UTC)
    holder = store.provider()
    assert holder.release(acquired(holder, name, fire_time=ran))
    waiting = poller(store.provider(proxy.address), LockRequest(name, "1m", fire_time=ran), clock)
    proxy.reset()
    assert waiting.acquire(LockRequest(name, "1m", fire_time=ran)) is None
    assert proxy.round_trips == 1, "looking was enough"
    assert waiting.acquire(LockRequest(name, "1m", fire_time=ran - timedelta(days=1))) is None
    assert waiting.acquire(LockRequest(name, "1m", fire_time=newer))


def test_without_extra_columns(store: Store, name: str, clock: FakeClock) -> None:
    holder, request = store.provider(extra_columns=False), LockRequest(name, "1m")
    lease = acquired(holder, name)
    waiting = poller(store.provider(extra_columns=False), request, clock)
    assert waiting.acquire(request) is None
    assert holder.release(lease)
    assert waiting.acquire(request)


@pytest.mark.parametrize("driver", ["mysql+pymysql", "mysql+mysqldb"])
def test_an_application_wants_its_cursors_unbuffered(driver: str, store: Store, name: str, clock: FakeClock) -> None:
    """They do not know how many rows they have found."""
    cursors = import_module({"mysql+pymysql": "pymysql.cursors", "mysql+mysqldb": "MySQLdb.cursors"}[driver])
    holder, request = store.provider(), LockRequest(name, "1m")
    lease = acquired(holder, name)
    waiting = poller(store.provider_of_engine(connect_args={"cursorclass": cursors.SSCursor}), request, clock)
    assert waiting.acquire(request) is None
    assert holder.release(lease)
    assert waiting.acquire(request)


def test_he_does_not_see_what_nobody_committed(store: Store, name: str, clock: FakeClock) -> None:
    """Somebody is about to give the lock back: it is held, and nobody waits to find out."""
    request = LockRequest(name, "1m")
    acquired(store.provider(), name)
    waiting = poller(store.provider(), request, clock)
    with store.connect() as connection, connection.execution_options(isolation_level="READ COMMITTED").begin():
        connection.execute(text("UPDATE shedlock SET lock_until = locked_at WHERE name = :name"), {"name": name})
        assert waiting.acquire(request) is None
    assert waiting.acquire(request)
