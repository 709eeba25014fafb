"""Attention on CUDA devices."""
