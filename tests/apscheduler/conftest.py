import pytest

from tests.support.doubles import FaultyProvider


@pytest.fixture
def store() -> FaultyProvider:
    """The store of the locks and of the election."""
    return FaultyProvider()
