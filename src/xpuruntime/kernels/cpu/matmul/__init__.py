"""Matrix products on CPUs."""
