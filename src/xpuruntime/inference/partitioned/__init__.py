"""One model on several engines and devices."""
