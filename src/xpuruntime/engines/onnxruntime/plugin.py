"""ONNX Runtime's plugin: names and strings only."""

from __future__ import annotations

from ...plugins.loader import EnginePlugin

__all__ = ["PLUGIN"]

PLUGIN = EnginePlugin(
    name="onnxruntime",
    title="ONNX Runtime",
    aliases=("onnxrt", "ort"),
    # The distributions with the module `onnxruntime`; only one of them may be installed at a time.
    package=(
        "onnxruntime",
        "onnxruntime-gpu",
        "onnxruntime-directml",
        "onnxruntime-openvino",
        "onnxruntime-qnn",
        "onnxruntime-webgpu",
        "onnxruntime-migraphx",
        "onnxruntime-cann",
    ),
    module="onnxruntime",
    install="pip install 'xpuruntime[onnxruntime]'",
    # 1.24.1 is the first release whose session reports the provider of each node.
    versions=("1.24.1", "2"),
    formats=("onnx",),
    compiles_in_build=False,
    entry="xpuruntime.engines.onnxruntime.engine",
    devices="xpuruntime.engines.onnxruntime.providers",
    cuda=True,
    holds_memory=False,
    wide_integers=False,
    device_options={"stream": ("cuda", "gpu", "auto")},
)
