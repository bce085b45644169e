"""What is special about MongoDB."""
