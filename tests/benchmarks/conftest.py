"""The benchmark's own servers: durable, as it measures them."""

from collections.abc import Iterator

import pytest

from benchmarks.servers import RunningStore, ServerError, running
from tests.support.availability import missing


@pytest.fixture(scope="module")
def running_store(request: pytest.FixtureRequest) -> Iterator[RunningStore]:
    """The store that the test is parametrized with."""
    try:
        with running(request.param) as store:
            yield store
    except ServerError as error:
        missing(f"{request.param}: {error}", "make servers")
