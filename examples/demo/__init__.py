"""The demo: trained models on real inputs, on every engine that is here. ``python -m examples.demo``."""
