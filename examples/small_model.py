"""Write a small convolutional network as ONNX, for trying things out: `python -m examples.small_model model.onnx`.

One input "input" (float32[1, 3, 32, 32]), one output "probabilities" (float32[1, 10]). The weights come from a seed, so
every machine writes the same file; it has learned nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx

GRAPH = """
<ir_version: 10, opset_import: ["": 20]>
small (float[1, 3, 32, 32] input) => (float[1, 10] probabilities)
{
    [stem] a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (input, w1, b1)
    [stem_act] b = Relu (a)
    [body] c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (b, w2, b2)
    [skip] d = Add (b, c)
    [body_act] e = Relu (d)
    [pool] f = GlobalAveragePool (e)
    [flatten] g = Flatten (f)
    [head] h = Gemm <transB = 1> (g, w3, b3)
    [softmax] probabilities = Softmax (h)
}
"""
SHAPES = {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (16, 16, 3, 3), "b2": (16,), "w3": (10, 16), "b3": (10,)}


def small_model(seed: int = 0) -> onnx.ModelProto:
    """The network with weights drawn from a seed, scaled so that values neither vanish nor grow."""
    random = np.random.default_rng(seed)
    model = onnx.parser.parse_model(GRAPH)
    for name, shape in SHAPES.items():
        weights = random.standard_normal(shape) * (2.0 / max(1, np.prod(shape[1:]))) ** 0.5
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights.astype(np.float32), name))
    onnx.checker.check_model(model, full_check=True)
    return model


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "model.onnx")
    onnx.save(small_model(), path)
    print(f"wrote {path}: {path.stat().st_size:,} bytes")
