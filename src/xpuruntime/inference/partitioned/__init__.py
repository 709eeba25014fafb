"""Models partitioned across engines and devices."""
