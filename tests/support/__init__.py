"""Real servers for the tests, a proxy to put in front of them, and waits that do not sleep."""
