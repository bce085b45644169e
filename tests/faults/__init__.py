"""What breaks locks: faults, clocks and load on real servers, with a history that is checked. See README.md here."""
