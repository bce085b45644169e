from collections.abc import Iterator

import pytest

from tests.contract.sql import SqlContract, SqlStore


@pytest.fixture(scope="class")
def store(request: pytest.FixtureRequest) -> Iterator[SqlStore]:
    """The table of one class of tests, on the database that the class names."""
    contract = request.cls
    assert issubclass(contract, SqlContract)
    store = contract.open_store(request)
    yield store
    store.close()
