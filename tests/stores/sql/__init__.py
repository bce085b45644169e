"""What only real SQL servers show: cost on the wire, faults, other people's tables and settings."""
