"""Tests specific to Redis: one server, a Sentinel's master, a cluster. For the quorum see redis_quorum."""
