"""Kernels of CPUs, one file or folder per op family. Each file lists its kernels as ``KERNELS``."""
