"""Compare the speed of locks with each store's floor and with other packages: ``python -m benchmarks --help``."""
