"""The quorum of Redis servers: what its servers suffer, and what its algorithm makes of it."""
