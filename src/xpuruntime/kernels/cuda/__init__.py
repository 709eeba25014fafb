"""Kernels of CUDA devices, a file per op family. Pointwise and row work is generated from the same plans as the CPU's (``codegen/body``);
the heavy kernels are templates (``codegen/templates/cuda``) and libraries; what models spend no time in is ``tasks``: the CPU's text of one
element or line, a thread each.
"""
