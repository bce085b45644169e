from collections.abc import Iterator

import pytest

from shedlock_py import configure
from shedlock_py.page import page_app, reading
from shedlock_py.testing import RecordingListener
from tests.page.client import Client
from tests.page.sample import ELECTION, Sample


@pytest.fixture(autouse=True)
def each_request_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each request read the store, even within two seconds. Tests of the cache set the time themselves."""
    monkeypatch.setattr(reading, "FRESH", -1.0)


@pytest.fixture
def sample() -> Sample:
    return Sample().fill()


@pytest.fixture
def client(sample: Sample) -> Client:
    """A browser of the page that allows changes."""
    return Client(page_app(sample.provider, allow_changes=True, elections=[ELECTION]))


@pytest.fixture
def events() -> Iterator[RecordingListener]:
    listener = RecordingListener()
    with configure(listeners=[listener]):
        yield listener
