"""Kernels of CPUs, a file or a folder per op family; each hands in its kernels as ``KERNELS``."""
