"""OpenVINO's plugin: names and strings only."""

from __future__ import annotations

from ...plugins.loader import EnginePlugin

__all__ = ["PLUGIN"]

PLUGIN = EnginePlugin(
    name="openvino",
    title="OpenVINO",
    aliases=("ov",),
    package=("openvino",),
    module="openvino",
    install="pip install 'xpuruntime[openvino]'",
    versions=("2024.6.0", "2027"),
    formats=("onnx", "openvino-ir"),
    entry="xpuruntime.engines.openvino.engine",
    devices="xpuruntime.engines.openvino.devices",
    cuda=False,
    holds_memory=False,
    wide_integers=False,
)
