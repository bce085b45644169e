"""What people do to locks: look at them, check the store, change a record."""
