"""Running a task under a lock: decorator, functions and blocks, with heartbeats, waiting and recovery."""
