"""Row reductions on CUDA devices, with the pointwise work around them."""
