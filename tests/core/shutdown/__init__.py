"""Processes that end while they hold leases."""
