"""``make test-all``: the tests in every environment that can show a fault of its own, against the built wheel."""
