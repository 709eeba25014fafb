"""ONNX models to the IR. ``importer`` has the functions; the package offers them by name and imports nothing by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .importer import OnnxImport, import_onnx, load_onnx

__all__ = ["OnnxImport", "import_onnx", "load_onnx"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "OnnxImport": "xpuruntime.frontends.onnx.importer",
        "import_onnx": "xpuruntime.frontends.onnx.importer",
        "load_onnx": "xpuruntime.frontends.onnx.importer",
    },
)
