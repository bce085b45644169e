"""What is special about Redis: one server, a sentinel's master, a cluster. For the quorum see redis_quorum."""
