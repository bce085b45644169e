"""The types as checkers see them: these modules are checked by mypy --strict, and run so that they stay true."""
