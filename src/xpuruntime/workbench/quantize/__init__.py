"""Quantization of float ONNX models by calibration. Public names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .quantizer import quantize
    from .report import NodeError, QuantizeReport

__all__ = ["NodeError", "QuantizeReport", "quantize"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "NodeError": "xpuruntime.workbench.quantize.report",
        "QuantizeReport": "xpuruntime.workbench.quantize.report",
        "quantize": "xpuruntime.workbench.quantize.quantizer",
    },
)
