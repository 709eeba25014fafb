"""Kernels of users: texts, Triton functions and Python functions."""
