"""MySQL and MariaDB tables with a collation that folds case and accents of lock names."""

from __future__ import annotations

from typing import Any

import pytest

from shedlock_py import LockRequest
from tests.stores.sql.stores import ONE_ASYNC_EACH, ONE_EACH, Store, on
from tests.support.locks import acquired, record_of
from tests.support.logs import warnings_of

pytestmark = on([driver for driver in (*ONE_EACH, *ONE_ASYNC_EACH) if not driver.startswith("postgresql")])
FOLDED = "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
CURE = "run ALTER TABLE "


def test_i2_an_operator_frees_no_lock_of_another_spelling(
    store: Store, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Both names are one lock in such a table. The provider logs this once, with the fix."""
    with store.table() as table:
        store.provider(table_name=table).create_schema()
        store.execute(f"ALTER TABLE {table} {FOLDED}")
        provider: Any = store.provider(table_name=table)
        other = name.upper()
        held = acquired(provider, name)
        assert provider.record(other) is None
        assert provider.force_release(other) is False
        assert provider.records(other) == []
        assert provider.acquire(LockRequest(other, "1m")) is None, "it is one lock"
        assert record_of(provider, name).locked_by == held.locked_by
        [warning] = warnings_of(caplog)
        assert f"{table} compares lock names by the collation utf8mb4_general_ci: names that differ only in" in warning
        check = next(check for check in provider.checks() if check.check == "lock names")
        assert (check.status, check.hint.startswith(CURE)) == ("warning", True)

        store.execute(warning[warning.index(CURE) + len("run ") :])
        cured: Any = store.provider(table_name=table)
        acquired(cured, other)
        assert "case and accents count" in [check.message for check in cured.checks()]
    assert len(warnings_of(caplog)) == 1


def test_the_runs_of_another_spelling_are_left_out(store: Store, name: str) -> None:
    with store.table() as table:
        store.provider(table_name=table, history=5).create_schema()
        store.execute(f"ALTER TABLE {table} {FOLDED}", f"ALTER TABLE {table}_runs {FOLDED}")
        provider: Any = store.provider(table_name=table, history=5)
        assert provider.release(acquired(provider, name))
        other = name.upper()
        assert (provider.runs(other), provider.recent_runs([other])) == ([], {other: []})
        assert len(provider.runs(name)) == 1
