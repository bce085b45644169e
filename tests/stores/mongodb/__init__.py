"""Tests specific to MongoDB."""
