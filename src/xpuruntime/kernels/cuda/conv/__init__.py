"""Convolutions on CUDA devices."""
