"""How processes end while they hold leases."""
