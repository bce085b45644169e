"""Durations, requests, leases, records and runs. Pure: no I/O, no clock, only the standard library."""
