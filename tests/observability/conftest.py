from collections.abc import Iterator

import pytest

from shedlock_py import InMemoryLockProvider, configure, set_active
from shedlock_py.testing import RecordingListener


@pytest.fixture
def heard() -> Iterator[RecordingListener]:
    heard = RecordingListener()
    with configure(listeners=[heard]):
        yield heard
    set_active(None)


@pytest.fixture
def store() -> InMemoryLockProvider:
    return InMemoryLockProvider()
