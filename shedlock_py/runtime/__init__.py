"""Processes, threads and event loops, which carry out programs and callbacks."""
