from collections.abc import Iterator

import pytest

from shedlock_py import configure
from shedlock_py.testing import RecordingListener


@pytest.fixture
def recorded() -> Iterator[RecordingListener]:
    recorded = RecordingListener()
    with configure(listeners=[recorded]):
        yield recorded
