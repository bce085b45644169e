"""One table together with ShedLock for Java with usingDbTime(): each side excludes the other.

This file re-creates the statements of ShedLock's providers for PostgreSQL and MySQL.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from shedlock_py import LockProvider, LockRequest, ProviderError
from tests.stores.sql.stores import ONE_ASYNC_EACH, ONE_EACH, Store, programs_on
from tests.support.locks import acquired, record_of
from tests.support.polling import wait_until

DRIVERS = [*ONE_EACH, *ONE_ASYNC_EACH]

HOST = "java-host.example.org"


@dataclass
class Java:
    """A replica on the JVM. Its holder is its host name, as in ShedLock."""

    store: Store
    table: str

    def create_table(self) -> None:
        if self.store.is_postgres:
            times = "lock_until TIMESTAMP NOT NULL, locked_at TIMESTAMP NOT NULL"
        else:
            times = "lock_until TIMESTAMP(3) NOT NULL, locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)"
        self.store.execute(
            f"CREATE TABLE {self.table} (name VARCHAR(64) NOT NULL, {times}, locked_by VARCHAR(255) NOT NULL, "
            f"PRIMARY KEY (name))"
        )

    @property
    def _now(self) -> str:
        return "timezone('utc', CURRENT_TIMESTAMP)" if self.store.is_postgres else "UTC_TIMESTAMP(3)"

    def _after(self, moment: str, milliseconds: int) -> str:
        if self.store.is_postgres:
            return f"{moment} + cast('{milliseconds} milliseconds' as interval)"
        return f"TIMESTAMPADD(MICROSECOND, {1000 * milliseconds}, {moment})"

    def _execute(self, sql: str, name: str) -> bool:
        return self.store.execute(sql, name=name, by=HOST) > 0

    def lock(self, name: str, at_most: int = 60_000) -> bool:
        """Insert a record, or update an expired record."""
        until, now = self._after(self._now, at_most), self._now
        changes = f"SET lock_until = {until}, locked_at = {now}, locked_by = :by"
        values = f"{self.table} (name, lock_until, locked_at, locked_by) VALUES (:name, {until}, {now}, :by)"
        update = f"UPDATE {self.table} {changes} WHERE name = :name AND lock_until <= {now}"
        if self.store.is_postgres:
            has_ended = f"{self.table}.name = :name AND {self.table}.lock_until <= {now}"
            return self._execute(
                f"INSERT INTO {values} ON CONFLICT (name) DO UPDATE {changes} WHERE {has_ended}", name
            ) or self._execute(update, name)
        return self._execute(f"INSERT IGNORE INTO {values}", name) or self._execute(update, name)

    def unlock(self, name: str, at_least: int = 0) -> bool:
        hold, now = self._after("locked_at", at_least), self._now
        later = f"CASE WHEN {hold} > {now} THEN {hold} ELSE {now} END"
        return self._execute(
            f"UPDATE {self.table} SET lock_until = {later} WHERE name = :name AND locked_by = :by", name
        )

    def extend(self, name: str, at_most: int) -> bool:
        until = self._after(self._now, at_most)
        return self._execute(
            f"UPDATE {self.table} SET lock_until = {until} "
            f"WHERE name = :name AND locked_by = :by AND lock_until > {self._now}",
            name,
        )


@pytest.fixture
def java(store: Store) -> Iterator[Java]:
    with store.table() as table:
        yield Java(store, table)


@pytest.fixture(params=["their table", "our table"])
def provider(request: pytest.FixtureRequest, java: Java) -> LockProvider:
    if request.param == "their table":
        java.create_table()
        return java.store.provider(table_name=java.table, extra_columns=False)
    provider = java.store.provider(table_name=java.table)
    provider.create_schema()
    return provider


@programs_on(DRIVERS, mariadb=True)
def test_i1_theirs_keeps_us_out(provider: LockProvider, java: Java, name: str) -> None:
    assert java.lock(name)
    assert provider.acquire(LockRequest(name, "1m")) is None
    record = record_of(provider, name)
    assert (record.locked_by, record.holder, record.is_held) == (HOST, HOST, True)
    assert (record.fencing_token, record.last_fire_time) == (None, None)
    assert 50 < record.remaining.total_seconds() <= 60
    assert java.extend(name, 300_000)
    assert 290 < record_of(provider, name).remaining.total_seconds() <= 300
    assert provider.acquire(LockRequest(name, "1m")) is None
    assert java.unlock(name)
    acquired(provider, name)


@programs_on(DRIVERS)
def test_i2_an_operator_does_not_touch_a_later_lock_of_theirs(provider: Any, java: Java, name: str) -> None:
    """The same host locks again; the holder and the token stay the same."""
    assert java.lock(name)
    record = record_of(provider, name)
    assert provider.force_release(name) is True
    assert java.lock(name)
    assert provider.force_release(name, record) is False
    with pytest.raises(ProviderError, match="changed since it was read"):
        provider.take_over(LockRequest(name, "1m"), record)
    assert record_of(provider, name).is_held


@programs_on(DRIVERS, mariadb=True)
def test_i1_ours_keeps_them_out(provider: LockProvider, java: Java, name: str) -> None:
    lease = acquired(provider, name)
    assert not java.lock(name)
    assert not java.extend(name, 60_000)
    assert not java.unlock(name)
    assert provider.extend(lease, "2m") is lease
    assert not java.lock(name)
    assert provider.release(lease) is True
    assert java.lock(name)
    assert provider.release(lease) is False
    assert provider.extend(lease, "1m") is None
    assert record_of(provider, name).is_held


@programs_on(DRIVERS, mariadb=True)
def test_i4_our_minimum_hold_keeps_them_out(provider: LockProvider, java: Java, name: str) -> None:
    lease = acquired(provider, name, lock_at_least_for="1m")
    assert provider.release(lease)
    assert not java.lock(name)


@programs_on(DRIVERS)
def test_i4_their_minimum_hold_keeps_us_out(provider: LockProvider, java: Java, name: str) -> None:
    assert java.lock(name)
    assert java.unlock(name, at_least=60_000)
    assert provider.acquire(LockRequest(name, "1m")) is None


@programs_on(DRIVERS, mariadb=True)
def test_i3_each_gets_what_the_other_left(provider: LockProvider, java: Java, name: str) -> None:
    assert java.lock(name, at_most=150)
    wait_until(lambda: provider.acquire(LockRequest(name, "150ms")), what="the end of Java's lease")
    wait_until(lambda: java.lock(name), what="the end of the Python lease")
    assert provider.force_release(name)
    # A column that Java made may have milliseconds only, and round up.
    wait_until(lambda: not record_of(provider, name).is_held, what="the end of the forced release")


@programs_on(DRIVERS, mariadb=True)
def test_i2_a_stale_lease_does_not_touch_theirs(provider: LockProvider, java: Java, name: str) -> None:
    lease = acquired(provider, name, "100ms")
    wait_until(lambda: java.lock(name), what="the end of the Python lease")
    assert provider.release(lease) is False
    assert record_of(provider, name).locked_by == HOST
    taken = provider.take_over(LockRequest(name, "1m"))
    assert not java.unlock(name)
    assert provider.release(taken) is True


@programs_on(DRIVERS, mariadb=True)
def test_i7_tokens_grow_across_theirs(java: Java, name: str) -> None:
    provider = java.store.provider(table_name=java.table)
    provider.create_schema()
    tokens = []
    for _ in range(5):
        lease = acquired(provider, name)
        tokens.append(lease.fencing_token or 0)
        assert provider.release(lease)
        assert java.lock(name)
        assert java.unlock(name)
    assert tokens == sorted(set(tokens))
    assert tokens[0] > 0
