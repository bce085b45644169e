"""``make test-all``: the tests in every environment that can show a new fault, against the built wheel."""
