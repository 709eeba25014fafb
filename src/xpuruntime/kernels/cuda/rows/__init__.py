"""Loops over rows on CUDA devices: reductions, with pointwise work around them."""
