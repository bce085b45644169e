"""Real servers for the tests, a proxy to put in front of them, and ways to wait without sleeping."""
