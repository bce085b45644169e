"""Leader election: one of N nodes leads, and knows it.

``program`` decides what a node does and when, without I/O. ``elector`` carries it out in a thread, ``async_elector`` in
a task of the event loop. ``shedlock_py`` exports the public names.
"""
