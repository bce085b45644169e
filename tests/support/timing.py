"""How much longer than its time limit an operation may take in a test."""

BUSY = 1.0
"""Seconds more that a busy machine may take. On a quiet one operations are over within their limit and 10 % (I13)."""
BUSY_HERD = 3.0
"""The same for two hundred threads or tasks at once, on two cores."""
