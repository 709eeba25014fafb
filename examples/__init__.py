"""Programs and data that show xpuruntime at work. Run them from the repository's root: ``python -m examples.zoo``."""
