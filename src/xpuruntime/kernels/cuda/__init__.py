"""Kernels of CUDA devices, one file or folder per op family.

Pointwise kernels and row reductions are generated from the same plans as on CPUs (``codegen/loops/body``). Matmul, conv and attention are
templates (``codegen/templates/cuda``) or library calls. Ops in which models spend little time run portable kernels, one thread per element
or line (``tasks``).
"""
