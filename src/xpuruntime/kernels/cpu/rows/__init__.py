"""Loops over rows on CPUs: reductions, with pointwise work around them."""
