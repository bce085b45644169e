"""The types as type checkers see them. mypy --strict checks these modules, and the tests run them so that they stay
true."""
