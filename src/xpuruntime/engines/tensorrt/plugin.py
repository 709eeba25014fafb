"""TensorRT's plugin: names and strings only."""

from __future__ import annotations

from ...plugins.loader import EnginePlugin

__all__ = ["PLUGIN"]

PLUGIN = EnginePlugin(
    name="tensorrt",
    title="NVIDIA TensorRT",
    aliases=("trt",),
    package=("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
    module="tensorrt",
    install="pip install 'xpuruntime[tensorrt]'",
    versions=("8.6", "12"),
    formats=("onnx", "tensorrt-plan"),
    entry="xpuruntime.engines.tensorrt.engine",
    devices="xpuruntime.engines.tensorrt.devices",
    cuda=True,
    holds_memory=False,
)
