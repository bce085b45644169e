"""Long jobs: leases that are kept alive, and lost."""
