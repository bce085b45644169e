"""Break locks on real servers with faults, clocks and load, and check the recorded history. See README.md here."""
