"""Row reductions on CPUs, with the pointwise work around them."""
