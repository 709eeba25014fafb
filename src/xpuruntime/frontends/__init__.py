"""From a model as its author saved it to what xpuruntime works on. Vendors' packages are imported inside functions only."""
