"""Kernels of CUDA devices, a file per op family.

Pointwise and row kernels are generated from the same plans as the CPU's (``codegen/loops/body``). The heavy kernels are templates
(``codegen/templates/cuda``) and libraries. Ops in which models spend little time run the CPU's text of one element or line, one thread each
(``tasks``).
"""
