"""Adapters to the tools that run jobs. Each imports its tool; nothing else in the library does."""
