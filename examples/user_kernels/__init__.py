"""Custom kernels: an RMS norm in C++, CUDA C++, Triton and Python."""
