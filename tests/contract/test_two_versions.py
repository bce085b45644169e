"""The contract with two versions of the package on one store, as during a rolling deploy: docs/policy.md allows it.

One provider of each test is of the former version, in its own process. The former version has created the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from shedlock_py import LockRequest, run_once
from shedlock_py.testing.contract import (
    ContractBase,
    ExclusionContract,
    GivingBackContract,
    HoldTimesContract,
    PauseContract,
    RecoveryContract,
)
from shedlock_py.testing.contract.base import LONG, acquired, expired, granted_soon
from shedlock_py.testing.contract.fencing import FencingContract
from shedlock_py.testing.contract.tools import ToolsContract
from tests.support.former import FormerVersion, former_version
from tests.support.stores import STORES, SqlStore, Store

T = TypeVar("T", bound=type)

FAMILIES = ("sqlite", "redis", "mongodb")
"""A store of each family of programs."""
DIALECTS = ("postgres", "mariadb")
"""Stores with the statements of SQLite and with other types of columns."""
HISTORY = 5

pytestmark = pytest.mark.slow("starts a process with another version of the package")


def with_two_providers(tests: T) -> T:
    """Leave out the tests with one provider."""
    for name in dir(tests):
        test = getattr(tests, name)
        if name.startswith("test_") and test is not None and "other" not in signature(test).parameters:
            setattr(tests, name, None)
    return tests


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FormerVersion]:
    with former_version(tmp_path_factory.mktemp("former")) as version:
        yield version


@pytest.fixture(scope="module")
def store(request: pytest.FixtureRequest, make_store: Callable[..., Store]) -> Store:
    store = make_store(request.param)
    if isinstance(store, SqlStore):
        store.drop()  # the new version has created this table
    return store


@pytest.fixture(scope="module")
def former_provider(store: Store, former: FormerVersion) -> Iterator[Any]:
    facts, options = STORES[store.name].facts, {**store.options, "history": HISTORY}
    provider = former.open(facts.module, facts.class_name, store.where(), options)
    provider.create_schema()
    yield provider
    provider.close()


@pytest.fixture(scope="module")
def new_provider(store: Store, former_provider: object) -> Iterator[Any]:
    with store.provider(history=HISTORY) as provider:
        provider.create_schema()  # as a new replica does when it starts
        yield provider


class FormerHolds(ContractBase):
    """The former version acquires, the new version contends."""

    clock_resolution = 0.002

    @pytest.fixture
    def provider(self, former_provider: Any) -> Any:
        return former_provider

    @pytest.fixture
    def other(self, new_provider: Any) -> Any:
        return new_provider

    @pytest.fixture
    def name(self) -> str:
        """A name with characters that stores escape."""
        return f"é锁/[x]:'%-{uuid4().hex[:12]}"


class NewHolds(FormerHolds):
    """The new version acquires, the former version contends."""

    @pytest.fixture
    def provider(self, new_provider: Any) -> Any:
        return new_provider

    @pytest.fixture
    def other(self, former_provider: Any) -> Any:
        return former_provider


@with_two_providers
class TwoProviders(
    ExclusionContract, FencingContract, GivingBackContract, RecoveryContract, ToolsContract, PauseContract
):
    """All tests of the contract with two providers. Of the hold times, only the minimum hold is in the record."""

    test_i4_minimum_hold_survives_the_release = HoldTimesContract.test_i4_minimum_hold_survives_the_release
    test_i4_nobody_else_before_it_is_over = HoldTimesContract.test_i4_nobody_else_before_it_is_over
    # One provider extends a lease of the other: a lease stays in its process.
    test_i2_operators_at_once_take_no_lock_from_a_job = None  # type: ignore[assignment]


class EachField(ContractBase):
    """Tests that compare each field of a record that the other version wrote."""

    test_i1_a_lease_times_out_and_not_before = ExclusionContract.test_i1_a_lease_times_out_and_not_before
    test_i4_nobody_else_before_it_is_over = HoldTimesContract.test_i4_nobody_else_before_it_is_over
    test_i7_tokens_grow_in_a_tight_loop = FencingContract.test_i7_tokens_grow_in_a_tight_loop
    test_i11_one_fire_time_one_run = FencingContract.test_i11_one_fire_time_one_run
    test_i11_undo_gives_the_fire_time_back = GivingBackContract.test_i11_undo_gives_the_fire_time_back
    test_i14_a_finished_run_never_looks_like_a_dead_one = (
        RecoveryContract.test_i14_a_finished_run_never_looks_like_a_dead_one
    )
    test_i1_of_n_racers_one_recovers_a_run = RecoveryContract.test_i1_of_n_racers_one_recovers_a_run
    test_the_record_of_a_held_lock_says_who_and_until_when = (
        ToolsContract.test_the_record_of_a_held_lock_says_who_and_until_when
    )
    test_a_pause_replaces_the_pause_that_was_read = PauseContract.test_a_pause_replaces_the_pause_that_was_read


@pytest.mark.parametrize("store", FAMILIES, indirect=True)
class TestFormerHolds(FormerHolds, TwoProviders): ...


@pytest.mark.parametrize("store", FAMILIES, indirect=True)
class TestNewHolds(NewHolds, TwoProviders): ...


@pytest.mark.parametrize("store", DIALECTS, indirect=True)
class TestFormerHoldsInOtherDialects(FormerHolds, EachField): ...


@pytest.mark.parametrize("store", DIALECTS, indirect=True)
class TestNewHoldsInOtherDialects(NewHolds, EachField): ...


@pytest.mark.parametrize("store", FAMILIES, indirect=True)
class TestBeyondTheRecord(FormerHolds):
    def test_i11_a_key_of_run_once_is_done_for_both_versions(self, provider: Any, other: Any, name: str) -> None:
        assert provider.run_once(f"{name}/former") is True
        assert run_once(f"{name}/former", pytest.fail, provider=other) is False
        assert run_once(f"{name}/new", lambda: None, provider=other) is True
        assert provider.run_once(f"{name}/new") is False

    def test_the_runs_of_both_versions_are_one_history(self, provider: Any, other: Any, name: str) -> None:
        for replica in (provider, other):
            assert replica.release(granted_soon(replica, LockRequest(name, LONG)))
            expired(replica, name, holder="dead")
        for replica in (provider, other):
            assert replica.release(granted_soon(replica, LockRequest(name, LONG)))
        acquired(provider, LockRequest(name, LONG))
        runs = other.runs(name)
        assert [run.outcome for run in runs] == [None, "ok", "ok", "vanished", "ok"]
        assert provider.runs(name) == runs
