"""With which client of a store a test runs."""

import pytest

both_clients = pytest.mark.parametrize("kind", ["sync", "async"])
"""For what the client does. What a program decides is the same with both; the fixture ``kind`` says "sync"."""

only_async = pytest.mark.parametrize("kind", ["async"])

both_clients_in_full = pytest.mark.parametrize(
    "kind",
    ["sync", pytest.param("async", marks=pytest.mark.slow("the contract and other tests here run the async client"))],
)
