"""Test helpers: a clock that tests advance, a listener that records events, and the contract suite for providers.

``shedlock_py.testing.contract`` needs pytest; nothing else here does.
"""

from shedlock_py.testing.doubles import FakeClock, RecordingListener

__all__ = ["FakeClock", "RecordingListener"]
