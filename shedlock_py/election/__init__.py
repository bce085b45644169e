"""Leader election: one of N nodes leads, and knows it.

``program`` decides when a node does what, without I/O. ``elector`` carries out the decisions in a thread,
``async_elector`` in a task of the event loop. ``shedlock_py`` exports the public names.
"""
