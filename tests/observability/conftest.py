from collections.abc import Iterator

import pytest

from shedlock_py import InMemoryLockProvider, configure, set_active
from shedlock_py.testing import RecordingListener


@pytest.fixture
def recorder() -> Iterator[RecordingListener]:
    recorder = RecordingListener()
    with configure(listeners=[recorder]):
        yield recorder
    set_active(None)


@pytest.fixture
def store() -> InMemoryLockProvider:
    return InMemoryLockProvider()
