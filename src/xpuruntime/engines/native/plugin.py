"""The native engine's plugin: names and strings only. Its functions are in ``inference.native``."""

from __future__ import annotations

from ...plugins.loader import EnginePlugin

__all__ = ["PLUGIN"]

PLUGIN = EnginePlugin(
    name="native",
    title="native (xpuruntime's own compiler and kernels)",
    aliases=(),
    package=("xpuruntime",),
    module="xpuruntime",
    install="pip install 'xpuruntime[onnx]'",
    versions=("0", "1000"),
    formats=("onnx", "graph", "program"),
    entry="xpuruntime.inference.native.engine",
    devices="xpuruntime.inference.native.devices",
    chooses_kernels=True,
    cuda=True,
    holds_memory=True,
    wide_integers=False,
)
