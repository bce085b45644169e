"""Locks on a quorum of independent Redis servers (Redlock)."""
