"""Tests that need real SQL servers: round trips, faults, other people's tables and settings."""
