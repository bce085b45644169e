"""What is special about Redis: one server, a sentinel's master, a cluster. The quorum has tests of its own."""
