"""QNN's plugin: names and strings only."""

from __future__ import annotations

from ...plugins.loader import EnginePlugin

__all__ = ["PLUGIN"]

PLUGIN = EnginePlugin(
    name="qnn",
    title="Qualcomm QNN",
    aliases=(),
    # Before 2.0 the distribution was an ONNX Runtime build of its own, without the module onnxruntime_qnn.
    package=("onnxruntime-qnn",),
    module="onnxruntime_qnn",
    install="pip install 'xpuruntime[qnn]'",
    versions=("2.7", "3"),
    formats=("onnx",),
    entry="xpuruntime.engines.qnn.engine",
    devices="xpuruntime.engines.qnn.library",
    cuda=False,
    holds_memory=False,
    wide_integers=True,
)
