"""Help for tests: a clock to travel in time with, a listener that remembers, and the contract suite for providers.

``shedlock_py.testing.contract`` needs pytest; nothing else here does.
"""

from shedlock_py.testing.doubles import FakeClock, RecordingListener

__all__ = ["FakeClock", "RecordingListener"]
