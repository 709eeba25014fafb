"""Products of 8-bit codes on CPUs."""
