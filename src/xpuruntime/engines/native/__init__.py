"""Our own compiler and kernels, as an engine."""
