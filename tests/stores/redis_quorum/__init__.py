"""The quorum of Redis servers: server faults, and the algorithm's decisions."""
