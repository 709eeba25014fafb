"""Emulation of CUDA kernels on a CPU, for machines without a GPU."""
