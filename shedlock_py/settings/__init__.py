"""The store and the options: from URLs, from the environment, from ``configure()``."""
