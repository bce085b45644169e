"""Providers of stores outside the library."""
