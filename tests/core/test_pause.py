"""Pauses: their text in a record, holders that look like a pause, and events between two of their steps."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from shedlock_py import ConfigurationError, InMemoryLockProvider, Lease, LockRequest, configure
from shedlock_py.election.demotion import Demotion
from shedlock_py.election.settings import ElectionSettings
from shedlock_py.errors import ProviderError, ProviderUnreachable
from shedlock_py.model.record import Pause
from shedlock_py.model.run import Run, newest_first
from shedlock_py.providers.kit import Undo
from shedlock_py.providers.kit.pausing import Pausing, default_operator, resume
from shedlock_py.runtime.program import Program
from shedlock_py.testing import FakeClock

# Its text


@pytest.mark.parametrize(
    ("pause", "holder"),
    [
        (Pause("alice@host"), "paused by alice@host"),
        (Pause("alice@host", "migration"), "paused by alice@host: migration"),
        (Pause("host:4711", "step 2: copy: #7"), "paused by host:4711: step 2: copy: #7"),
    ],
)
def test_the_holder_of_a_pause_and_back(pause: Pause, holder: str) -> None:
    assert pause.holder == holder
    assert Pause.from_holder(holder) == pause


@pytest.mark.parametrize("holder", ["web-1:7", "paused", "paused by ", "Paused by alice", "demoted 10ms paused by a"])
def test_the_holder_of_a_job_is_no_pause(holder: str) -> None:
    assert Pause.from_holder(holder) is None


def test_a_long_reason_gives_way_to_who_has_paused() -> None:
    holder = Pause("a" * 100, "x" * 1000).holder
    assert len(holder) == 200
    assert holder.endswith("xxx...")


@pytest.mark.parametrize("reason", ["", "  ", "\n"])
def test_a_blank_reason_is_none(reason: str) -> None:
    assert Pause.validated("alice", reason) == Pause("alice")


@pytest.mark.parametrize(
    "use",
    [
        lambda holder: LockRequest("job", "1m", holder=holder),
        lambda holder: configure(holder=holder),
        lambda holder: ElectionSettings.parse("election", 3.0, 2.0, 0.5, holder, "expired"),
    ],
)
def test_a_holder_that_looks_like_a_pause_or_a_demotion_is_refused(use: Callable[[str], object]) -> None:
    with pytest.raises(ConfigurationError, match=r"holder must not begin with 'paused by ': its locks would be taken"):
        use("paused by alice")
    for holder in ("demoted 5000ms web-1", Demotion("", timedelta(0)).holder):
        with pytest.raises(ConfigurationError, match=r"holder must not read like a demotion, 'demoted 5000ms web-1'"):
            use(holder)


def test_who_pauses_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "alice")
    assert default_operator() == f"alice@{os.uname().nodename}"

    def no_name() -> str:
        # the message of Python 3.13; earlier versions raise KeyError
        raise OSError("no username set in the environment")

    monkeypatch.setattr(getpass, "getuser", no_name)
    assert default_operator().endswith(f":{os.getpid()}")


# Between its steps


class Stepped:
    """Two replicas on one store, and a program that the test steps through command by command."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.provider = InMemoryLockProvider(clock=self.clock)
        self.store = self.provider.programs.store

    def pausing(self, *arguments: Any) -> Program[Any, Any, Any]:
        read = self.provider.record("job")
        return Pausing(self.provider.programs, "job", "1h", "", None, "alice", read).attempt()

    def step(self, program: Program[Any, Any, Any], reply: Any = None) -> Any:
        """Execute the next command of ``program`` and return its reply."""
        return self.store.execute(program.send(reply), None)

    def finish(self, program: Program[Any, Any, Any], reply: Any) -> Any:
        try:
            while True:
                reply = self.step(program, reply)
        except StopIteration as stop:
            return stop.value

    def job(self) -> Lease:
        lease = self.provider.acquire(LockRequest("job", "1m", holder="web-1"))
        assert lease is not None
        return lease


@pytest.fixture
def stepped() -> Stepped:
    return Stepped()


@pytest.mark.parametrize("how", ["resumed", "expired"])
def test_i2_a_pause_that_ends_before_it_is_replaced_gives_the_lock_to_a_job(stepped: Stepped, how: str) -> None:
    """The new pause was about to replace the pause that it had read."""
    stepped.provider.pause("job", "1m")
    program = stepped.pausing()
    read = stepped.step(program)
    assert read.is_paused
    if how == "resumed":
        assert stepped.provider.resume("job")
    else:
        stepped.clock.advance("1m")
    lease = stepped.job()
    record = stepped.finish(program, read)
    assert (record.is_paused, record.holder) == (False, "web-1")
    assert stepped.provider.extend(lease, "1m") is lease


def test_a_lock_that_a_job_acquires_first(stepped: Stepped) -> None:
    program = stepped.pausing()
    read = stepped.step(program)
    assert read is None
    lease = stepped.job()
    assert stepped.finish(program, read).holder == "web-1"
    assert stepped.provider.release(lease)


def test_a_record_that_is_deleted_while_it_is_paused(stepped: Stepped) -> None:
    program = stepped.pausing()
    reply = None
    for _ in range(3):  # read twice, as the record does not exist, and acquire
        reply = stepped.step(program, reply)
    assert reply
    stepped.provider.force_release("job")
    stepped.provider.prune(0)
    assert stepped.finish(program, reply).is_paused
    assert stepped.provider.record("job").is_paused  # type: ignore[union-attr]  # it is there


@pytest.mark.parametrize("error", [ProviderUnreachable("away", operation="pause"), SystemExit(143)], ids=repr)
def test_i12_a_pause_that_fails_after_it_was_granted_is_undone(stepped: Stepped, error: BaseException) -> None:
    """The operator gets an error, so the pause must not stop the job for an hour."""
    program = stepped.pausing()
    reply = None
    for _ in range(3):  # read twice, as the record does not exist, and acquire
        reply = stepped.step(program, reply)
    program.send(reply)
    undo = program.throw(error)
    assert isinstance(undo, Undo)
    assert stepped.provider._drive(undo.program) is True
    with pytest.raises(type(error)):
        program.send(None)
    assert stepped.job()


def test_a_pause_that_has_replaced_another_is_not_undone(stepped: Stepped) -> None:
    """The lock was not free before the pause."""
    stepped.provider.pause("job", "1m")
    program = stepped.pausing()
    reply = stepped.step(program)
    reply = stepped.step(program, reply)
    program.send(reply)
    with pytest.raises(ProviderUnreachable):
        program.throw(ProviderUnreachable("away", operation="pause"))
    assert stepped.provider.acquire(LockRequest("job", "1m")) is None


@pytest.mark.parametrize("how", ["ended", "replaced"])
def test_i2_a_resume_ends_the_pause_that_it_has_read(stepped: Stepped, how: str) -> None:
    stepped.provider.pause("job", "1m")
    program = resume(stepped.provider.programs, "job")
    read = stepped.step(program)
    if how == "ended":
        stepped.clock.advance("1m")
        lease = stepped.job()
    else:
        later = stepped.provider.pause("job", "1h", expected=read)
    assert stepped.finish(program, read) is False
    if how == "ended":
        assert stepped.provider.extend(lease, "1m") is lease
    else:
        assert stepped.provider.record("job") == later


class RestlessProvider(InMemoryLockProvider):
    """A lock that is free each time when a pause reads its record, and held when the pause claims it."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs = InMemoryLockProvider(shared_with=self)
        self._client = self

    def execute(self, command: Any, timeout: float | None) -> Any:
        if not self._jobs.force_release("job"):
            self._jobs.acquire(LockRequest("job", "1m"))
        return self.programs.store.execute(command, timeout)


def test_a_record_that_changes_again_and_again_is_an_error() -> None:
    provider = RestlessProvider()
    provider.record("job")  # so the record exists, and the job has the lock
    with pytest.raises(ProviderError, match="pause of lock 'job': the record changed again and again"):
        provider.pause("job", "1m")


class LosesReply(InMemoryLockProvider):
    """The reply to one command is lost after the store has executed it."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self._client = self
        self._left = lost

    def execute(self, command: Any, timeout: float | None) -> Any:
        reply = self.programs.store.execute(command, timeout)
        self._left -= 1
        if self._left == 0:
            raise ProviderUnreachable("no reply", operation="pause", lock_name="job") from OSError("no reply")
        return reply


def test_i12_a_pause_of_unknown_outcome_is_undone() -> None:
    """The operator gets an error, so the pause must not stop the job for an hour."""
    provider = LosesReply(3)  # after two reads, as the record does not exist
    with pytest.raises(ProviderUnreachable):
        provider.pause("job", "1h")
    record = provider.record("job")
    assert record is not None
    assert not record.is_held


def test_a_lost_reply_while_a_pause_is_replaced_leaves_the_lock_paused() -> None:
    provider = LosesReply(2)
    read = InMemoryLockProvider(shared_with=provider).pause("job", "1h")
    with pytest.raises(ProviderUnreachable):
        provider.pause("job", "1h", expected=read)
    assert provider.record("job").is_paused  # type: ignore[union-attr]  # it is there


# In run history


def test_a_pause_that_ended_by_itself_has_not_vanished(stepped: Stepped) -> None:
    starts = []
    for seconds in (0.0, 1.0, 2.0):
        stepped.clock.advance(seconds)
        starts.append(stepped.provider.pause("now", "1s").read_at)
    runs = [
        Run("job", number, holder, starts[number])
        for number, holder in enumerate(["web-1", "paused by alice", "web-2"])
    ]
    ended = [(run.holder, run.outcome, run.ended) for run in newest_first(runs, 3)]
    assert ended == [("web-2", None, None), ("paused by alice", "ok", starts[2]), ("web-1", "vanished", starts[1])]
