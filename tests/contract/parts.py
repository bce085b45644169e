"""Parts of the contract, for classes that do not run all of it in each tier.

In `make test`, a sync provider of each family of programs runs the whole contract: memory, SQL (SQLite, PostgreSQL),
Redis, quorum, MongoDB, and compare-and-swap (Kubernetes). Other stores run the tests that depend on a store
(``OnStore``), and async providers run the tests that depend on a client (``AsyncClient``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shedlock_py.testing.contract import (
    ContractBase,
    ExclusionContract,
    GivingBackContract,
    HistoryContract,
    HoldTimesContract,
)
from shedlock_py.testing.contract.asynchronous import CancellationContract
from shedlock_py.testing.contract.fencing import FencingContract
from shedlock_py.testing.contract.guarding import GuardContract
from shedlock_py.testing.contract.names import NamesContract
from shedlock_py.testing.contract.pausing import AsyncPauseContract, PauseContract
from shedlock_py.testing.contract.recovering import RecoveryContract
from shedlock_py.testing.contract.threads import ThreadsContract
from shedlock_py.testing.contract.tools import ToolsContract

AS_KUBERNETES = "Kubernetes tries the same programs"
AS_POSTGRESQL = "PostgreSQL tries the same programs"
SAME_PROGRAMS = "sync and async run the same programs"
SAME_STATEMENTS = "another client sends the same statements"
MANY_REQUESTS = "hundreds of requests"
MANY_PROCESSES = "starts nine processes"

T = TypeVar("T", bound=type)


def without(*others: type) -> Callable[[T], T]:
    """Remove the tests that another class has, so that no test runs twice."""

    def leave_out(tests: T) -> T:
        for other in others:
            for name in dir(other):
                if name.startswith("test_") and getattr(other, name) is not None and hasattr(tests, name):
                    setattr(tests, name, None)
        return tests

    return leave_out


class AsyncSample(ContractBase):
    """A sample of the operations."""

    test_i1_a_second_lock_is_refused = ExclusionContract.test_i1_a_second_lock_is_refused
    test_an_extension_keeps_the_lock_and_its_record = HoldTimesContract.test_an_extension_keeps_the_lock_and_its_record
    test_records_lists_those_with_a_prefix = ToolsContract.test_records_lists_those_with_a_prefix
    test_i2_force_release_ends_a_lease_for_its_holder = ToolsContract.test_i2_force_release_ends_a_lease_for_its_holder
    test_i2_an_operator_acts_on_the_record_that_was_read = (
        ToolsContract.test_i2_an_operator_acts_on_the_record_that_was_read
    )
    test_a_released_lock_is_free_at_once = ExclusionContract.test_a_released_lock_is_free_at_once
    test_no_job_runs_during_a_pause = PauseContract.test_no_job_runs_during_a_pause
    test_i11_a_recovered_run_runs_once_more = RecoveryContract.test_i11_a_recovered_run_runs_once_more


class AsyncClient(AsyncSample, CancellationContract):
    """Tests that depend on an async client, and a sample of the operations."""

    test_i12_a_cancelled_pause_is_undone = AsyncPauseContract.test_i12_a_cancelled_pause_is_undone
    test_a_wait_can_be_cancelled = AsyncPauseContract.test_a_wait_can_be_cancelled


class EachPromise(ContractBase):
    """One test of each promise that other parts of OnStore do not show. The last two tests leave many records."""

    test_i2_a_stale_release_does_not_free_the_successor = (
        ExclusionContract.test_i2_a_stale_release_does_not_free_the_successor
    )
    test_i5_each_operation_fails_loudly = GuardContract.test_i5_each_operation_fails_loudly
    test_i7_tokens_grow_however_the_last_lease_ended = FencingContract.test_i7_tokens_grow_however_the_last_lease_ended
    test_i8_a_lease_taken_over_keeps_value_and_exception = (
        GuardContract.test_i8_a_lease_taken_over_keeps_value_and_exception
    )
    test_i10_the_local_wall_clock_decides_nothing = GuardContract.test_i10_the_local_wall_clock_decides_nothing
    test_i11_one_fire_time_one_run = FencingContract.test_i11_one_fire_time_one_run
    test_i12_undo_frees_at_once_without_minimum_hold = (
        GivingBackContract.test_i12_undo_frees_at_once_without_minimum_hold
    )
    test_i14_a_finished_run_never_looks_like_a_dead_one = (
        RecoveryContract.test_i14_a_finished_run_never_looks_like_a_dead_one
    )
    test_i1_of_n_racers_one_recovers_a_run = RecoveryContract.test_i1_of_n_racers_one_recovers_a_run
    test_i1_a_held_record_is_not_recovered_whatever_the_replica_has_read = (
        RecoveryContract.test_i1_a_held_record_is_not_recovered_whatever_the_replica_has_read
    )
    test_i2_an_operator_acts_on_the_record_that_was_read = (
        ToolsContract.test_i2_an_operator_acts_on_the_record_that_was_read
    )
    test_i11_a_key_of_run_once_that_was_done_meanwhile_stays_done = (
        ToolsContract.test_i11_a_key_of_run_once_that_was_done_meanwhile_stays_done
    )
    test_create_schema_again_changes_nothing = ToolsContract.test_create_schema_again_changes_nothing
    prefix = NamesContract.prefix
    test_lookalikes_are_different_locks = NamesContract.test_lookalikes_are_different_locks
    test_i9_a_lease_holds_nothing_but_its_record = GuardContract.test_i9_a_lease_holds_nothing_but_its_record


class OnStore(EachPromise, HoldTimesContract, ThreadsContract):
    """Tests that depend on the store: its clock, its atomic writes, its names."""


class ManyRequests(ContractBase):
    """Long lists and loops, for stores where each step is several requests."""

    prefix = NamesContract.prefix
    test_awkward_names_are_locks_like_others = NamesContract.test_awkward_names_are_locks_like_others
    test_i7_tokens_grow_in_a_tight_loop = FencingContract.test_i7_tokens_grow_in_a_tight_loop


class LongCancellations:
    """The AsyncClient tests with the most requests. PostgreSQL, MySQL and Redis run them in `make test`."""

    test_i12_a_cancelled_guard_is_clean = CancellationContract.test_i12_a_cancelled_guard_is_clean
    test_i12_a_timed_out_guard_is_clean = CancellationContract.test_i12_a_timed_out_guard_is_clean
    test_i12_a_cancelled_pause_is_undone = AsyncPauseContract.test_i12_a_cancelled_pause_is_undone
    test_i1_counters_behind_locks_come_out_exact_on_one_event_loop = (
        CancellationContract.test_i1_counters_behind_locks_come_out_exact_on_one_event_loop
    )


@without(LongCancellations)
class AsyncClientBriefly(AsyncClient):
    """For servers that need milliseconds of CPU for each request."""


class BeforeStore:
    """Decisions of the guard and the kit without a store request. Memory, SQLite and Redis run these tests."""

    test_a_guard_runs_its_task_and_releases = GuardContract.test_a_guard_runs_its_task_and_releases
    test_a_guard_skips_its_task_when_the_lock_is_held = GuardContract.test_a_guard_skips_its_task_when_the_lock_is_held
    test_nested_guards_of_one_name_share_the_lease = GuardContract.test_nested_guards_of_one_name_share_the_lease
    test_i4_minimum_hold_survives_a_failing_task = GuardContract.test_i4_minimum_hold_survives_a_failing_task
    test_i5_a_skip_stays_a_skip_when_its_reason_cannot_be_read = (
        GuardContract.test_i5_a_skip_stays_a_skip_when_its_reason_cannot_be_read
    )
    test_i8_a_failing_release_keeps_value_and_exception = (
        GuardContract.test_i8_a_failing_release_keeps_value_and_exception
    )
    test_i8_a_raising_listener_changes_nothing = GuardContract.test_i8_a_raising_listener_changes_nothing
    test_i12_a_cancelled_async_guard_leaves_nothing_behind = (
        GuardContract.test_i12_a_cancelled_async_guard_leaves_nothing_behind
    )
    test_extend_lock_extends_the_current_lease = GuardContract.test_extend_lock_extends_the_current_lease
    test_a_lease_that_ended_is_not_current = GuardContract.test_a_lease_that_ended_is_not_current
    test_prune_refuses_what_is_no_duration = ToolsContract.test_prune_refuses_what_is_no_duration
    test_no_tool_passes_a_bad_name_on = ToolsContract.test_no_tool_passes_a_bad_name_on
    test_options_that_no_pause_can_have_are_refused = PauseContract.test_options_that_no_pause_can_have_are_refused
    test_names_that_no_lock_can_have_are_refused = PauseContract.test_names_that_no_lock_can_have_are_refused
    test_a_limit_that_is_no_positive_number_is_refused = (
        HistoryContract.test_a_limit_that_is_no_positive_number_is_refused
    )
    test_a_history_that_is_no_number_up_to_1000_is_refused = (
        HistoryContract.test_a_history_that_is_no_number_up_to_1000_is_refused
    )
