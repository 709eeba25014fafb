"""Data movement on CUDA devices."""
