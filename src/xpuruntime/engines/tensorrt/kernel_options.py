"""Tactic sources that a KernelPolicy's words name. TensorRT 11 has none of them: it uses no cuBLAS and no cuDNN."""

from __future__ import annotations

from collections.abc import Mapping

from ...targets import DeviceId
from .api import api

__all__ = ["kernel_options"]

_WORDS: Mapping[tuple[str, str], str] = {
    ("conv", "cudnn"): "CUDNN",
    ("matmul", "cublas"): "CUBLAS",
    ("matmul", "cublasLt"): "CUBLAS_LT",
}


def kernel_options(device: DeviceId) -> Mapping[tuple[str, str], Mapping[str, str]]:
    """Return options by (op family, kernel), for regions on that device; other pairs have none."""
    if device.kind not in ("cuda", "gpu"):
        return {}
    sources = api().tactic_sources()
    return {pair: {"tactic_sources": name} for pair, name in _WORDS.items() if name in sources}
