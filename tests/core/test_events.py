import copy
import dataclasses
import logging
import pickle
from datetime import timedelta
from typing import Any

import pytest

from shedlock_py import (
    ElectionEvent,
    Event,
    InMemoryLockProvider,
    LeaderChanged,
    LeadershipStarted,
    LeadershipStopped,
    LeaseLost,
    LockAcquired,
    LockEvent,
    LockExtended,
    LockReleased,
    LockRequest,
    LockSkipped,
    OperatorActed,
    ProviderFailed,
    TaskFinished,
    attempt,
    configure,
)
from shedlock_py.events import log_listener
from shedlock_py.settings.emit import emit
from shedlock_py.testing import FakeClock, RecordingListener
from tests.support.logs import records_of

lease = InMemoryLockProvider(clock=FakeClock()).acquire(LockRequest("job", "10m"))
assert lease
SOON = timedelta(seconds=1)

EVENTS: list[tuple[Event, int, str]] = [
    (LockAcquired("job", lease, SOON), logging.DEBUG, "acquired"),
    (LockSkipped("job", "held", SOON), logging.DEBUG, "skipped (held)"),
    (LockReleased("job", lease, SOON), logging.DEBUG, "LockReleased"),
    (OperatorActed("job", "pause", "alice", "for 2h"), logging.WARNING, "pause by operator alice: for 2h"),
    (LockExtended("job", lease), logging.DEBUG, "LockExtended"),
    (TaskFinished("job", lease, SOON, "failed", ValueError()), logging.DEBUG, "task failed after 0:00:01"),
    (LeaseLost("job", lease, "overrun"), logging.WARNING, "raise lock_at_most_for"),
    (LeaseLost("job", lease, "revoked"), logging.WARNING, "taken over by force"),
    (LeaseLost("job", lease, "unreachable"), logging.WARNING, "was unreachable"),
    (LeaseLost("job", lease, "kept_too_long"), logging.WARNING, "longer than keep_alive allows"),
    (ProviderFailed("job", "acquire", OSError("gone")), logging.ERROR, "acquire failed: gone"),
    (ProviderFailed("job", "release", OSError("gone"), lease), logging.ERROR, "release failed: gone"),
    # will be tried again
    (ProviderFailed("job", "extend", OSError("gone"), lease), logging.WARNING, "extend failed: gone"),
    (ProviderFailed("job", "record", OSError("gone")), logging.WARNING, "record failed: gone"),
    (LeadershipStarted("job", "me", 7), logging.INFO, "me leads, term 7"),
    (LeadershipStopped("job", "me", 7, "resigned"), logging.INFO, "does not lead any more (resigned), term 7"),
    (LeadershipStopped("job", "me", 7, "unreachable"), logging.WARNING, "does not lead any more (unreachable)"),
    (LeaderChanged("job", "somebody"), logging.INFO, "the leader is somebody"),
]


@pytest.mark.parametrize(("event", "level", "words"), EVENTS)
def test_how_loud_each_event_is(event: Event, level: int, words: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "shedlock_py")
    log_listener(event)
    (record,) = records_of(caplog)
    assert (record.levelno, record.name) == (level, "shedlock_py")
    assert "'job'" in record.getMessage()
    assert words in record.getMessage()


HOSTILE = "me\n2026-01-01 CRITICAL\x1b]0;x\x07\x1b[2J\u202e\u2028\x85"


@pytest.mark.parametrize(
    "event",
    [
        LeaderChanged("job", HOSTILE),
        LeadershipStarted("job", HOSTILE, 7),
        LeadershipStopped("job", HOSTILE, 7, "resigned"),
        OperatorActed("job", "pause", HOSTILE, HOSTILE),
        ProviderFailed("job", "acquire", OSError(HOSTILE)),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_others_have_written_stays_on_one_line_of_the_log(event: Event, caplog: pytest.LogCaptureFixture) -> None:
    """A holder comes from the store, where another program may have written any text."""
    caplog.set_level(logging.DEBUG, "shedlock_py")
    log_listener(event)
    (record,) = records_of(caplog)
    assert record.getMessage().isprintable()
    assert "me 2026-01-01 CRITICAL\\x1b]0;x\\x07\\x1b[2J\\u202e" in record.getMessage()


def test_an_error_that_cannot_describe_itself_is_left_to_the_handlers_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("cannot describe itself")

    logger = logging.getLogger("shedlock_py")
    monkeypatch.setattr(logger, "propagate", False)  # pytest's own handlers would raise it
    monkeypatch.setattr(logger, "handlers", [logging.NullHandler()])
    log_listener(ProviderFailed("job", "acquire", Mute()))


def test_a_listener_that_raises_is_logged_and_the_next_are_notified_in_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    order: list[int] = []

    def broken(event: Event) -> None:
        raise RuntimeError("broken listener")

    listeners = [lambda event, number=number: order.append(number) for number in range(5)]
    with configure(listeners=[broken, *listeners]):
        emit(LockSkipped("job", "held", SOON))
    assert order == [0, 1, 2, 3, 4]
    (record,) = records_of(caplog)
    assert record.levelno == logging.ERROR
    assert "LockSkipped" in record.getMessage()
    assert "'job'" in record.getMessage()
    assert record.exc_info


def test_a_listener_does_not_swallow_what_ends_the_process() -> None:
    def interrupted(event: Event) -> None:
        raise KeyboardInterrupt

    with configure(listeners=[interrupted]), pytest.raises(KeyboardInterrupt):
        emit(LockSkipped("job", "held", SOON))


def test_how_the_task_ended(provider: InMemoryLockProvider, recorded: RecordingListener) -> None:
    attempt("job", lambda: None)
    finished = recorded.of(TaskFinished)[-1]
    assert (finished.lock_name, finished.outcome, finished.error) == ("job", "succeeded", None)
    with pytest.raises(ZeroDivisionError):
        attempt("job", lambda: 1 / 0)
    finished = recorded.of(TaskFinished)[-1]
    assert finished.outcome == "failed"
    assert isinstance(finished.error, ZeroDivisionError)


# Events are frozen dataclasses

PLAIN: list[Event] = [Event(), LockEvent("job"), ElectionEvent("job"), *(event for event, _, _ in EVENTS)]


def of_type(event: Event) -> str:
    return type(event).__name__


@pytest.mark.parametrize("event", PLAIN, ids=of_type)
def test_an_event_is_a_frozen_dataclass(event: Any) -> None:
    values = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    assert event == type(event)(*values.values()) == copy.copy(event)
    assert hash(event) == hash(copy.copy(event))
    for name in values:
        assert event != dataclasses.replace(event, **{name: "another"}), name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(event, name, "another")


@pytest.mark.parametrize("event", [event for event in PLAIN if not hasattr(event, "lease")], ids=of_type)
def test_an_event_about_no_lease_can_be_pickled(event: Event) -> None:
    assert pickle.loads(pickle.dumps(event)) == event


def test_the_fields_of_an_event() -> None:
    names = [field.name for field in dataclasses.fields(TaskFinished)]
    assert names == ["lock_name", "lease", "duration", "outcome", "error"]
    skipped = LockSkipped("job", "held", SOON)
    assert dataclasses.asdict(skipped) == {"lock_name": "job", "reason": "held", "elapsed": SOON}


def test_an_event_of_the_users_own(caplog: pytest.LogCaptureFixture) -> None:
    @dataclasses.dataclass(frozen=True)
    class Mine(LockEvent):
        number: int = 1

    assert Mine("job") == Mine("job", 1) != Mine("job", 2)
    assert hash(Mine("job")) == hash(("job", 1))
    assert repr(Mine("job")).endswith("Mine(lock_name='job', number=1)")
    caplog.set_level(logging.DEBUG, "shedlock_py")
    log_listener(Mine("job"))
    assert [record.getMessage() for record in records_of(caplog)] == ["lock 'job': Mine"]

    class Plain(LeaderChanged):
        pass

    assert repr(Plain("job", "me")) == f"{Plain.__qualname__}(name='job', holder='me')"
