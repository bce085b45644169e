"""Parts of the contract, for classes that do not run all of it in each tier.

A sync provider of each store runs the whole contract in `make test`. Its async provider runs the same programs: there,
`make test` tries what depends on the client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shedlock_py.testing.contract import ContractBase, ExclusionContract, GivingBackContract, HoldTimesContract
from shedlock_py.testing.contract.asynchronous import CancellationContract
from shedlock_py.testing.contract.fencing import FencingContract
from shedlock_py.testing.contract.guarding import GuardContract
from shedlock_py.testing.contract.names import NamesContract
from shedlock_py.testing.contract.pausing import AsyncPauseContract, PauseContract
from shedlock_py.testing.contract.tools import ToolsContract

SAME_PROGRAMS = "sync and async run the same programs"
SAME_STATEMENTS = "another client sends the same statements"
MANY_PROCESSES = "starts nine processes"

T = TypeVar("T", bound=type)


def without(*others: type) -> Callable[[T], T]:
    """Leave the tests out that one of the other classes has, so that no test runs twice."""

    def leave_out(tests: T) -> T:
        for name in {name for other in others for name in dir(other) if name.startswith("test_")}:
            if hasattr(tests, name):
                setattr(tests, name, None)
        return tests

    return leave_out


class AsyncClient(CancellationContract):
    """What an async client can do wrong, and a sample of the operations."""

    test_i1_a_second_lock_is_refused = ExclusionContract.test_i1_a_second_lock_is_refused
    test_an_extension_keeps_the_lock_and_its_record = HoldTimesContract.test_an_extension_keeps_the_lock_and_its_record
    test_records_lists_those_with_a_prefix = ToolsContract.test_records_lists_those_with_a_prefix
    test_i2_force_release_ends_a_lease_for_its_holder = ToolsContract.test_i2_force_release_ends_a_lease_for_its_holder
    test_prune_deletes_what_is_free_and_old = ToolsContract.test_prune_deletes_what_is_free_and_old
    test_no_job_runs_during_a_pause = PauseContract.test_no_job_runs_during_a_pause
    test_i12_a_cancelled_pause_is_undone = AsyncPauseContract.test_i12_a_cancelled_pause_is_undone
    test_a_wait_can_be_cancelled = AsyncPauseContract.test_a_wait_can_be_cancelled


class EachPromise(ContractBase):
    """One test of each promise that HoldTimesContract and ThreadsContract do not show, and of names."""

    test_i2_a_stale_release_does_not_free_the_successor = (
        ExclusionContract.test_i2_a_stale_release_does_not_free_the_successor
    )
    test_i5_each_operation_fails_loudly = GuardContract.test_i5_each_operation_fails_loudly
    test_i7_tokens_grow_however_the_last_lease_ended = FencingContract.test_i7_tokens_grow_however_the_last_lease_ended
    test_i8_a_lease_taken_over_keeps_value_and_exception = (
        GuardContract.test_i8_a_lease_taken_over_keeps_value_and_exception
    )
    test_i9_a_lease_holds_nothing_but_its_record = GuardContract.test_i9_a_lease_holds_nothing_but_its_record
    test_i10_the_local_wall_clock_decides_nothing = GuardContract.test_i10_the_local_wall_clock_decides_nothing
    test_i11_one_fire_time_one_run = FencingContract.test_i11_one_fire_time_one_run
    test_i12_undo_frees_at_once_without_minimum_hold = (
        GivingBackContract.test_i12_undo_frees_at_once_without_minimum_hold
    )
    prefix = NamesContract.prefix
    test_lookalikes_are_different_locks = NamesContract.test_lookalikes_are_different_locks
    test_create_schema_again_changes_nothing = ToolsContract.test_create_schema_again_changes_nothing
