from collections.abc import Callable, Iterator

import pytest

from shedlock_py import configure
from shedlock_py.testing import FakeClock, RecordingListener
from tests.support.stepped_loop import SteppedLoop, local_clock
from tests.support.stepped_timer import SteppedTimer, stepped_timer


@pytest.fixture
def recorded() -> Iterator[RecordingListener]:
    recorded = RecordingListener()
    with configure(listeners=[recorded]):
        yield recorded


@pytest.fixture
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClock]:
    """The clock of :func:`virtual_backend`, and of guards on its event loop. The store must use it too."""
    clock = FakeClock()
    with local_clock(clock, monkeypatch):
        yield clock


@pytest.fixture
def virtual_backend(virtual_time: FakeClock) -> tuple[str, dict[str, Callable[[], SteppedLoop]]]:
    """An ``anyio_backend`` that never waits and sends no heartbeat late. Not for stores in threads."""
    return "asyncio", {"loop_factory": lambda: SteppedLoop(virtual_time)}


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Iterator[SteppedTimer]:
    """Run keep-alive in threads in virtual time, if the store is from ``timer.store()``."""
    with stepped_timer(monkeypatch) as timer:
        yield timer
