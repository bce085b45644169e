"""Adapters to stores. Each module needs its extra; importing this package imports none of them."""
