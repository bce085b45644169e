"""What a type checker must say: these modules are checked by mypy --strict, and run so that they stay true."""
