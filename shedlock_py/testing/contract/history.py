"""Run history: an optional part. The provider keeps the last runs of each name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, cast

import pytest

from shedlock_py import AsyncLockProvider, ConfigurationError, LockProvider, LockRequest, LockSkipped, hold, try_hold
from shedlock_py.model.run import Run
from shedlock_py.testing.blocking import BlockingLockProvider
from shedlock_py.testing.contract.base import (
    LONG,
    SHORT,
    ContractBase,
    acquired,
    eventually,
    expired,
    granted_soon,
    record_of,
)
from shedlock_py.testing.contract.fencing import FIRE_TIME
from shedlock_py.testing.contract.recovering import again, dead_run
from shedlock_py.testing.contract.threads import at_once
from shedlock_py.testing.doubles import RecordingListener

KEPT = 3
"""How many runs of each name the tested provider keeps."""
TEXTS = ['it\'s "quoted"; DROP TABLE x -- {}$name', "ünï\N{PILE OF POO}", "a\nb", "", "x" * 1000, "$now", "\\ % :name"]


class HistoryContract(ContractBase):
    """The tests of a provider with run history. Override ``make_history_provider``."""

    @pytest.fixture
    def make_history_provider(self) -> Any:
        """A function from the number of runs to keep to a provider on the same store as ``provider``."""
        raise NotImplementedError("override the fixture make_history_provider of the contract")

    @pytest.fixture
    def keeper(self, provider: LockProvider, make_history_provider: Callable[[int], Any]) -> Any:
        """A provider with history. ``provider``, on the same store, keeps no history."""
        keeper = make_history_provider(KEPT)
        keeper.create_schema()
        return keeper

    def test_a_run_from_its_start_to_its_end(self, keeper: Any, name: str) -> None:
        assert keeper.runs(name) == []
        lease = acquired(keeper, LockRequest(name, LONG, holder="replica-1"))
        started = record_of(keeper, name).locked_at
        [run] = keeper.runs(name)
        assert run == Run(name, lease.fencing_token or 0, lease.locked_by, started)
        assert (run.holder, run.duration) == ("replica-1", None)
        assert keeper.release(lease)
        [run] = keeper.runs(name)
        assert (run.outcome, run.error, run.started) == ("ok", None, started)
        assert timedelta(0) <= run.duration < timedelta(minutes=1)

    def test_the_outcome_and_the_error_of_a_task(self, keeper: Any, name: str) -> None:
        with pytest.raises(ValueError, match="boom"), hold(name, lock_at_most_for=LONG, provider=keeper):
            raise ValueError("boom\nand more")
        [run] = keeper.runs(name)
        assert (run.outcome, run.error) == ("failed", "ValueError: boom")

    def test_any_text_of_an_error_and_a_name_is_kept(self, keeper: Any, name: str) -> None:
        name = f"{name}' \"$x {{:ä%"
        for text in TEXTS:
            with pytest.raises(RuntimeError), hold(name, lock_at_most_for=LONG, provider=keeper):
                raise RuntimeError(text)
            run = keeper.runs(name)[0]
            assert run.error is not None
            assert len(run.error) <= 200
            first = text.partition("\n")[0]
            expected = f"RuntimeError: {first}" if first else "RuntimeError"
            assert run.error == (expected if len(expected) <= 200 else f"{expected[:199]}…")
        assert keeper.runs(f"{name}x") == []

    def test_i8_an_outcome_that_an_application_made_up_is_ok_or_failed(self, keeper: Any, name: str) -> None:
        for outcome, (error, kept) in product(("succeeded", "vanished", None), ((None, "ok"), ("boom", "failed"))):
            lease = acquired(keeper, LockRequest(name, LONG))
            lease.outcome, lease.error = cast(Any, outcome), error
            assert keeper.release(lease) is True
            run = keeper.runs(name)[0]
            assert (run.locked_by, run.outcome) == (lease.locked_by, kept)

    def test_i8_any_error_that_an_application_sets_ends_the_run(self, keeper: Any, name: str) -> None:
        """The lock is released and the run ends, whatever the error is."""
        given: dict[str, Any] = {
            "two": "two\nlines",
            "nul\ufffd\ufffd": "nul\0\udc80",
            "ValueError: boom": ValueError("boom"),
            "7": 7,
        }
        for kept, error in {**given, f"{'x' * 199}…": "x" * 10_000}.items():
            lease = acquired(keeper, LockRequest(name, LONG))
            lease.outcome, lease.error = "failed", error
            assert keeper.release(lease)
            run = keeper.runs(name)[0]
            assert (run.locked_by, run.outcome, run.error) == (lease.locked_by, "failed", kept)

    def test_the_newest_runs_are_kept_and_come_first(self, keeper: Any, name: str) -> None:
        tokens = []
        for _ in range(KEPT + 2):
            lease = acquired(keeper, LockRequest(name, LONG))
            tokens.append(lease.fencing_token)
            assert keeper.release(lease)
        assert [run.fencing_token for run in keeper.runs(name)] == tokens[: -KEPT - 1 : -1]
        assert [run.fencing_token for run in keeper.runs(name, 2)] == tokens[: -2 - 1 : -1]
        assert {run.outcome for run in keeper.runs(name)} == {"ok"}

    def test_names_do_not_share_their_runs(self, keeper: Any, name: str) -> None:
        for each in (name, f"{name}-2"):
            for _ in range(KEPT):
                assert keeper.release(acquired(keeper, LockRequest(each, LONG)))
        assert {(run.name, len(keeper.runs(run.name))) for run in keeper.runs(name)} == {(name, KEPT)}

    def test_the_recent_runs_of_many_names(self, keeper: Any, name: str) -> None:
        """The method returns the same as :meth:`runs` of each name, in few requests where a provider can."""
        if not hasattr(keeper, "recent_runs"):
            pytest.skip("this provider has no recent_runs")
        names = [f"{name}-{number}" for number in range(60)]
        for number, each in enumerate(names[:5]):
            for _ in range(number):
                assert keeper.release(acquired(keeper, LockRequest(each, LONG)))
        expired(keeper, names[1], holder="dead")
        assert keeper.release(granted_soon(keeper, LockRequest(names[1], LONG)))
        for limit in (1, 2, KEPT, KEPT + 1):
            found = keeper.recent_runs([*names, f"{name}' \"$x {{:ä%"], limit)
            assert list(found) == [*names, f"{name}' \"$x {{:ä%"]
            assert {each: runs for each, runs in found.items() if runs} == {
                each: keeper.runs(each, limit) for each in names[1:5]
            }
        assert [run.outcome for run in found[names[1]]] == ["ok", "vanished", "ok"]
        assert keeper.recent_runs([]) == {}
        with pytest.raises(ConfigurationError, match="limit must be"):
            keeper.recent_runs(names, 0)

    def test_a_run_without_an_end_has_vanished_when_another_follows(self, keeper: Any, name: str) -> None:
        expired(keeper, name, holder="dead")
        assert [run.outcome for run in keeper.runs(name)] == [None]
        lease = granted_soon(keeper, LockRequest(name, LONG))
        new, old = keeper.runs(name)
        assert (old.holder, old.outcome, old.ended, old.duration) == ("dead", "vanished", new.started, None)
        assert keeper.release(lease)
        assert [run.outcome for run in keeper.runs(name)] == ["ok", "vanished"]

    @pytest.mark.usefixtures("recovery")
    def test_a_run_that_was_recovered_stays_vanished(self, keeper: Any, name: str) -> None:
        """The recovery has a run of its own, with the same fire time."""
        lease = keeper.recover(again(name), dead_run(keeper, name))
        new, old = keeper.runs(name)
        assert (old.holder, old.outcome, new.holder, new.outcome) == ("dead", "vanished", "recoverer", None)
        assert (old.recoveries, new.recoveries) == (0, 1)
        assert new.fire_time == old.fire_time == FIRE_TIME
        assert keeper.release(lease)
        assert [run.outcome for run in keeper.runs(name)] == ["ok", "vanished"]

    def test_i2_the_run_of_a_lost_lease_is_lost(self, keeper: Any, name: str) -> None:
        """Its holder reports the end late, under its old token. The successor's run does not change."""
        lost = acquired(keeper, LockRequest(name, LONG))
        successor = keeper.take_over(LockRequest(name, LONG))
        assert [run.outcome for run in keeper.runs(name)] == [None, "vanished"]
        assert keeper.release(lost) is False
        assert [run.outcome for run in keeper.runs(name)] == [None, "lost"]
        assert keeper.release(successor)
        assert [run.outcome for run in keeper.runs(name)] == ["ok", "lost"]

    def test_the_run_of_a_task_that_outlives_its_lease_is_lost(self, keeper: Any, name: str) -> None:
        with hold(name, lock_at_most_for=LONG, provider=keeper) as lease:
            assert keeper.extend(lease, SHORT)
            eventually(lambda: not record_of(keeper, name).is_held, "the end of the lease")
        assert [run.outcome for run in keeper.runs(name)] == ["lost"]

    def test_a_skip_is_no_run(self, keeper: Any, name: str, events: RecordingListener) -> None:
        lease = acquired(keeper, LockRequest(name, LONG))
        with try_hold(name, lock_at_most_for=LONG, provider=keeper) as skipped:
            assert skipped is None
        assert events.of(LockSkipped)
        assert len(keeper.runs(name)) == 1
        assert keeper.release(lease)
        assert [run.outcome for run in keeper.runs(name)] == ["ok"]

    def test_an_acquisition_that_is_given_back_is_no_run(self, keeper: Any, name: str) -> None:
        assert keeper.release(acquired(keeper, LockRequest(name, LONG)))
        assert keeper.undo(acquired(keeper, LockRequest(name, LONG)))
        assert [run.outcome for run in keeper.runs(name)] == ["ok"]

    def test_the_run_of_a_lock_that_was_freed_by_force_is_lost(self, keeper: Any, name: str) -> None:
        lease = acquired(keeper, LockRequest(name, LONG))
        assert keeper.force_release(name)
        assert [run.outcome for run in keeper.runs(name)] == [None]
        assert keeper.release(lease) is False
        assert [run.outcome for run in keeper.runs(name)] == ["lost"]

    def test_extending_and_the_minimum_hold_change_nothing(self, keeper: Any, name: str) -> None:
        lease = acquired(keeper, LockRequest(name, LONG, "30s"))
        before = keeper.runs(name)
        assert keeper.extend(lease, "10m") is lease
        assert keeper.runs(name) == before
        assert keeper.release(lease)
        [run] = keeper.runs(name)
        assert run.outcome == "ok"
        assert run.ended < record_of(keeper, name).lock_until

    def test_a_run_has_its_fire_time_and_the_next_one(self, keeper: Any, name: str) -> None:
        fire_time, next_one = datetime(2020, 2, 29, 2, tzinfo=UTC), datetime(2020, 3, 1, 2, 0, 0, 1, tzinfo=UTC)
        request = LockRequest(name, LONG, fire_time=fire_time, next_fire_time=next_one)
        assert keeper.release(acquired(keeper, request))
        [run] = keeper.runs(name)
        assert (run.fire_time, run.next_fire_time) == (fire_time, next_one)

    def test_a_herd_that_gets_one_lease_makes_one_run(self, keeper: Any, name: str) -> None:
        leases = [lease for lease in at_once(8, lambda _: keeper.acquire(LockRequest(name, LONG))) if lease]
        assert [run.fencing_token for run in keeper.runs(name)] == [lease.fencing_token for lease in leases]

    def test_runs_go_with_their_record(self, keeper: Any, name: str) -> None:
        assert keeper.release(acquired(keeper, LockRequest(name, LONG)))
        assert keeper.prune(0) >= 1
        assert keeper.record(name) is None
        assert keeper.runs(name) == []

    def test_a_pause_stays_in_the_history(self, keeper: Any, name: str) -> None:
        """A pause is not a run of a job. It ends when it is resumed, or when the next entry starts."""
        if not hasattr(keeper, "pause"):
            pytest.skip("this provider has no pause")
        first = keeper.pause(name, LONG, by="alice")
        assert keeper.pause(name, LONG, reason="migration", by="bob", expected=first).is_paused
        new, old = keeper.runs(name)
        assert [(run.holder, run.is_pause) for run in (new, old)] == [
            ("paused by bob: migration", True),
            ("paused by alice", True),
        ]
        assert (new.outcome, old.outcome, old.ended) == (None, "ok", new.started)
        assert keeper.resume(name)
        new, _ = keeper.runs(name)
        assert (new.outcome, new.error) == ("ok", None)
        # Two statements, or servers with different clocks, may have written the two times.
        assert abs(new.ended - record_of(keeper, name).lock_until) < timedelta(seconds=10)
        assert keeper.pause(name, SHORT).is_paused
        eventually(lambda: not record_of(keeper, name).is_held, "the end of a short pause")
        assert keeper.release(acquired(keeper, LockRequest(name, LONG)))
        runs = keeper.runs(name)
        assert [(run.is_pause, run.outcome) for run in runs[:2]] == [(False, "ok"), (True, "ok")]
        assert runs[1].ended == runs[0].started

    def test_without_history_nothing_is_kept(self, provider: Any, keeper: Any, name: str) -> None:
        assert provider.release(acquired(provider, LockRequest(name, LONG)))
        assert keeper.runs(name) == []
        with pytest.raises(ConfigurationError, match=r"keeps no run history: open it with history=50"):
            provider.runs(name)

    def test_a_run_of_a_replica_without_history_is_not_kept(self, provider: Any, keeper: Any, name: str) -> None:
        expired(keeper, name)
        assert provider.release(granted_soon(provider, LockRequest(name, LONG)))
        assert keeper.release(acquired(keeper, LockRequest(name, LONG)))
        assert [run.outcome for run in keeper.runs(name)] == ["ok", "vanished"]

    def test_replicas_may_keep_fewer_or_more_runs(
        self, keeper: Any, make_history_provider: Callable[[int], Any], name: str
    ) -> None:
        """This happens during a deploy."""
        more, one = make_history_provider(KEPT + 2), make_history_provider(1)
        for each in [more] * 4 + [one]:
            assert each.release(acquired(each, LockRequest(name, LONG)))
        assert len(one.runs(name)) == 1
        assert more.runs(name)[0] == one.runs(name)[0]
        for _ in range(KEPT + 2):
            assert more.release(acquired(more, LockRequest(name, LONG)))
        assert len(more.runs(name)) == KEPT + 2

    def test_a_limit_that_is_no_positive_number_is_refused(self, keeper: Any, name: str) -> None:
        for limit in (0, -1, "5", 1.5, None):
            with pytest.raises(ConfigurationError, match="limit must be"):
                keeper.runs(name, limit)

    def test_a_history_that_is_no_number_up_to_1000_is_refused(
        self, make_history_provider: Callable[[Any], Any]
    ) -> None:
        for history in (-1, 1001, True, "many", 1.5):
            with pytest.raises(ConfigurationError, match=r"history.* must be how many runs .* 0 to 1000, not"):
                make_history_provider(history)


class AsyncHistoryContract(HistoryContract):
    """The tests of an async provider with run history. Override ``make_async_history_provider``."""

    @pytest.fixture
    def make_async_history_provider(self) -> Any:
        """``make_history_provider`` for an async provider. The returned function is called on an event loop."""
        raise NotImplementedError("override the fixture make_async_history_provider of the contract")

    @pytest.fixture
    def make_history_provider(self, make_async_history_provider: Callable[[int], AsyncLockProvider]) -> Iterator[Any]:
        with ExitStack() as stack:
            yield lambda history: stack.enter_context(
                BlockingLockProvider(lambda: make_async_history_provider(history))
            )
