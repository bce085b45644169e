from collections.abc import Iterator

import pytest

from shedlock_py import configure
from shedlock_py.testing import RecordingListener


@pytest.fixture
def heard() -> Iterator[RecordingListener]:
    heard = RecordingListener()
    with configure(listeners=[heard]):
        yield heard
