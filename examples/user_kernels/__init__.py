"""Kernels of one's own: an RMS norm in C++, CUDA C++, Triton and Python."""
