"""Run history in the lock's own document: its cost, and jobs that run without it."""

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import LockProvider, LockRequest, ProviderError, hold
from shedlock_py.providers.mongodb.commands import read
from shedlock_py.runtime.program import Program
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.mongodb.stores import DATABASE, QUIET, SLOW_SERVER, Store
from tests.stores.mongodb.test_round_trips import wait_for_the_monitor
from tests.stores.mongodb.test_skip_writes_nothing import document, writes
from tests.support.locks import acquired, outcomes, record_of
from tests.support.logs import warnings_of

WARNING = "the run history is not written, locks are not affected"


@pytest.fixture
def keeper(store: Store) -> Any:
    return store.provider(**SLOW_SERVER, history=3)


def test_a_run_is_a_part_of_the_document_of_its_lock(keeper: Any, store: Store, name: str) -> None:
    fire_time = datetime(2024, 1, 1, tzinfo=UTC)
    request = LockRequest(name, "1m", fire_time=fire_time, next_fire_time=fire_time + timedelta(microseconds=1))
    lease = keeper.acquire(request)
    lease.error = "ValueError: $name"
    assert keeper.release(lease)
    *_, (field, [run]), (last, _) = document(store, name)
    assert (field, last) == ("runs", "releasedToken")
    started, ended = run.pop("started"), run.pop("ended")
    assert started == record_of(keeper, name).locked_at
    assert started <= ended
    assert run == {
        "fencingToken": lease.fencing_token,
        "lockedBy": lease.locked_by,
        "fireTime": 1_704_067_200_000_000,
        "nextFireTime": 1_704_067_200_000_001,
        "outcome": "ok",
        "error": "ValueError: $name",
    }


def test_history_takes_no_further_round_trip(store: Store, proxy: TcpProxy, name: str) -> None:
    keeper: Any = store.provider(proxy.address, **QUIET, **SLOW_SERVER, history=3)
    counted: set[tuple[str, int]] = set()

    def count(operation: str) -> None:
        counted.add((operation, proxy.round_trips))
        proxy.reset()

    keeper.record(name)
    wait_for_the_monitor(proxy)
    for _ in range(4):
        proxy.reset()
        lease = acquired(keeper, name)
        count("acquire")
        assert keeper.acquire(LockRequest(name, "1m")) is None
        count("skip")
        assert keeper.extend(lease, "2m") is lease
        count("extend")
        assert keeper.release(lease)
        count("release")
        assert len(keeper.runs(name)) <= 3
        count("runs")
        undone = acquired(keeper, name)
        proxy.reset()
        assert keeper.undo(undone)
        count("undo")
        lost = acquired(keeper, name)
        keeper.force_release(name)
        proxy.reset()
        assert keeper.release(lost) is False
        count("release of a lost lease")
    assert counted == {
        *((operation, 1) for operation in ("acquire", "skip", "extend", "release", "runs", "undo")),
        ("release of a lost lease", 2),
    }


def test_the_end_of_a_run_is_written_once(keeper: Any, store: Store, name: str) -> None:
    lost = acquired(keeper, name)
    keeper.force_release(name)
    assert keeper.release(lost) is False
    before, written = document(store, name), writes(store)
    lost.error = "another"
    assert keeper.release(lost) is False
    assert (document(store, name), writes(store)) == (before, written)


def only(command: Any) -> Program[Any, Any, Any]:
    return (yield command)


def test_records_come_without_their_runs(keeper: Any, store: Store, name: str) -> None:
    acquired(keeper, name)
    [found] = keeper._drive(only(read({"_id": name})))
    assert "lockedBy" in found
    assert "runs" not in found


# History that cannot be written


def test_i8_a_validator_that_refuses_the_runs(keeper: Any, store: Store, name: str, caplog: Any) -> None:
    store.admin[DATABASE].create_collection(store.collection, validator={"runs": {"$exists": False}})
    caplog.set_level(logging.WARNING, "shedlock_py")
    ran = []
    for number in range(3):
        with hold(name, lock_at_most_for="1m", provider=keeper) as lease:
            assert lease is not None
            assert keeper.acquire(LockRequest(name, "1m")) is None
            ran.append(number)
    assert ran == [0, 1, 2]
    assert not record_of(keeper, name).is_held
    assert keeper.undo(acquired(keeper, name))
    assert keeper.runs(name) == []
    [warning] = warnings_of(caplog)
    assert warning.startswith(f"{WARNING}: acquire of lock '{name}': ")


def test_i8_a_validator_that_comes_while_a_job_runs(keeper: Any, store: Store, name: str, caplog: Any) -> None:
    """The release cannot write the end of its run, but still frees the lock."""
    lease = acquired(keeper, name)
    validator = {"runs.ended": {"$exists": False}}
    store.admin[DATABASE].command("collMod", store.collection, validator=validator)
    caplog.set_level(logging.WARNING, "shedlock_py")
    assert keeper.release(lease) is True
    assert not record_of(keeper, name).is_held
    assert outcomes(keeper, name) == [None]
    [warning] = warnings_of(caplog)
    assert warning.startswith(f"{WARNING}: release of lock '{name}': ")


def test_i8_an_error_of_the_lock_itself_is_none_of_history(keeper: Any, store: Store, name: str, caplog: Any) -> None:
    caplog.set_level(logging.WARNING, "shedlock_py")
    store.documents.insert_one({"_id": name, "lockUntil": "soon", "lockedAt": 1, "lockedBy": None})
    with pytest.raises(ProviderError, match="is no lock record"):
        keeper.acquire(LockRequest(name, "1m"))
    assert keeper.release(acquired(keeper, f"{name}-2"))
    assert outcomes(keeper, f"{name}-2") == ["ok"]
    assert warnings_of(caplog) == []


def test_a_field_of_that_name_that_is_not_ours_stays(keeper: Any, store: Store, name: str) -> None:
    for foreign in (17, "many", {"of": "mine"}):
        document_of_others = {"_id": name, "lockUntil": datetime(2024, 1, 1, tzinfo=UTC), "runs": foreign}
        store.documents.insert_one(document_of_others)
        lease = acquired(keeper, name)
        assert keeper.release(lease)
        assert keeper.undo(acquired(keeper, name))
        assert dict(document(store, name))["runs"] == foreign
        with pytest.raises(ProviderError, match=r"its runs are of type") as error:
            keeper.runs(name)
        assert error.value.hint is not None
        assert error.value.hint.startswith("remove the field runs of that document")
        store.documents.delete_one({"_id": name})
    assert keeper.runs(f"{name}-2") == []


def test_a_run_that_was_written_by_hand_hinders_no_job_and_new_runs_take_its_place(
    keeper: Any, store: Store, name: str
) -> None:
    assert keeper.release(acquired(keeper, name))
    [run] = dict(document(store, name))["runs"]
    for odd, problem in (
        (None, "is no document"),
        (run | {"fencingToken": "5"}, "has an odd fencingToken"),
        (run | {"fencingToken": 1, "lockedBy": "me", "started": 5}, "has an odd started"),
        (run | {"outcome": "splendid"}, "has an odd outcome"),
        (run | {"ended": True}, "has an odd ended"),
        (run | {"fireTime": 2**62}, "has a fire time that is out of range"),
    ):
        store.documents.update_one({"_id": name}, {"$set": {"runs": [odd]}})
        with pytest.raises(ProviderError, match=problem):
            keeper.runs(name)
        for _ in range(3):
            assert keeper.release(acquired(keeper, name))
        assert outcomes(keeper, name) == ["ok"] * 3


def test_a_late_copy_of_a_claim_changes_no_run(store: Store, proxy: TcpProxy, name: str) -> None:
    keeper: Any = store.provider(proxy.address, **SLOW_SERVER, history=3)
    keeper.record("warm")
    proxy.drop_replies_to(name)
    lease = acquired(keeper, name)
    [run] = keeper.runs(name)
    assert (run.locked_by, run.fencing_token) == (lease.locked_by, lease.fencing_token)
    proxy.drop_replies_to(name)
    assert keeper.release(lease)
    assert proxy.drops_left == 0
    assert outcomes(keeper, name) == ["ok"]


def test_an_acquire_that_got_no_reply_leaves_no_run(store: Store, proxy: TcpProxy, name: str) -> None:
    direct: Any = store.provider(**SLOW_SERVER, history=3)
    keeper: LockProvider = store.provider(proxy.address, **SLOW_SERVER, history=3)
    keeper.record("warm")
    proxy.drop_replies_to(name, times=2)
    with pytest.raises(ProviderError):
        keeper.acquire(LockRequest(name, "1m"))
    assert not record_of(direct, name).is_held
    assert direct.runs(name) == []
