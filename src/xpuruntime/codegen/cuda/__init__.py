"""CUDA C++ for NVIDIA GPUs: the target, compute capabilities, NVRTC, and facts of CUBINs. Public names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .target import CudaTarget, cuda_target

__all__ = ["CudaTarget", "cuda_target"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CudaTarget": "xpuruntime.codegen.cuda.target",
        "cuda_target": "xpuruntime.codegen.cuda.target",
    },
)
