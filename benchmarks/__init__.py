"""How fast locking is, beside the floor of each store and other packages: ``python -m benchmarks --help``."""
