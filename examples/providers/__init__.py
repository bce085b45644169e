"""Providers of stores that the library does not come with."""
