"""CUDA kernels on a processor, for machines without a GPU."""
