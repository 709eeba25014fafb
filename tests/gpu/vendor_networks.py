"""Networks for the checks of vendor engines on a GPU, of the size of well-known models, with seeded weights. Needs onnx, but no torch.

The weights keep activations near 1, so nothing overflows float16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from vendor_models import light_resnet50

__all__ = ["NETWORKS", "wide_convolutions"]

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]


class Net:
    """A graph that is written from its inputs to its outputs."""

    def __init__(self, name: str, **inputs: tuple[str, list[int]]) -> None:
        self._name, self._nodes, self._random = name, list[onnx.NodeProto](), np.random.default_rng(0)
        self._weights: list[onnx.TensorProto] = []
        self._inputs = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(t)), shape)
            for n, (t, shape) in inputs.items()
        ]

    def op(self, kind: str, *inputs: str, outputs: int = 1, name: str = "", **attributes: Any) -> str:
        """Append a node and return its first output."""
        name = name or f"{kind.lower()}_{len(self._nodes)}"
        names = [f"{name}_out{i or ''}" for i in range(outputs)]
        self._nodes.append(helper.make_node(kind, inputs, names, name=name, **attributes))
        return names[0]

    def constant(self, value: Any) -> str:
        """Return the name of a new weight with this value."""
        name = f"const_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *shape: int, inputs: int) -> str:
        """Return the name of a new random weight; products with ``inputs`` terms keep their size."""
        values = self._random.standard_normal(shape, dtype=np.float32) / np.float32(inputs**0.5)
        return self.constant(values)

    def linear(self, x: str, width: int, to: int) -> str:
        """Append a product with a bias."""
        y = self.op("MatMul", x, self.weight(width, to, inputs=width))
        return self.op("Add", y, self.weight(to, inputs=100))

    def conv(self, x: str, channels: int, to: int, kernel: int = 3, stride: int = 1, group: int = 1) -> str:
        """Append a convolution with a bias."""
        inputs = channels // group * kernel * kernel
        weight = self.weight(to, channels // group, kernel, kernel, inputs=inputs)
        pads = [kernel // 2] * 4
        return self.op(
            "Conv", x, weight, self.weight(to, inputs=100), pads=pads, strides=[stride, stride], group=group
        )

    def norm(self, x: str, width: int) -> str:
        """Append a layer norm, as exporters of old opsets write it."""
        mean = self.op("ReduceMean", x, axes=[-1])
        centered = self.op("Sub", x, mean)
        variance = self.op("ReduceMean", self.op("Mul", centered, centered), axes=[-1])
        deviation = self.op("Sqrt", self.op("Add", variance, self.constant(np.float32(1e-5))))
        scaled = self.op(
            "Mul",
            self.op("Div", centered, deviation),
            self.constant(1 + 0.1 * self._random.standard_normal(width).astype(np.float32)),
        )
        return self.op("Add", scaled, self.weight(width, inputs=100))

    def attention(self, x: str, width: int, heads: int, length: int, bias: str = "") -> str:
        """Append self-attention with its residual and norm."""
        split = self.constant(np.array([0, length, heads, width // heads], np.int64))
        q, k, v = (self.op("Reshape", self.linear(x, width, width), split) for _ in range(3))
        q, v = (self.op("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, v))
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 2, 3, 1]))
        scores = self.op("Mul", scores, self.constant(np.float32((width // heads) ** -0.5)))
        if bias:
            scores = self.op("Add", scores, bias)
        mixed = self.op(
            "Transpose", self.op("MatMul", self.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3]
        )
        joined = self.op("Reshape", mixed, self.constant(np.array([0, length, width], np.int64)))
        return self.norm(self.op("Add", x, self.linear(joined, width, width)), width)

    def feed_forward(self, x: str, width: int, hidden: int) -> str:
        """Append two linear layers with GELU between them, their residual and norm."""
        h = self.linear(x, width, hidden)
        erf = self.op("Erf", self.op("Mul", h, self.constant(np.float32(0.5**0.5))))
        gelu = self.op(
            "Mul",
            self.op("Mul", h, self.constant(np.float32(0.5))),
            self.op("Add", erf, self.constant(np.float32(1))),
        )
        return self.norm(self.op("Add", x, self.linear(gelu, hidden, width)), width)

    def model(self, y: str, shape: list[int]) -> bytes:
        """Return the model with the output ``y``."""
        self.op("Identity", y, name="scores")
        output = helper.make_tensor_value_info("scores_out", TensorProto.FLOAT, shape)
        graph = helper.make_graph(self._nodes, self._name, self._inputs, [output], self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return model.SerializeToString()


def minilm(length: int = 128, layers: int = 6, width: int = 384, heads: int = 12) -> tuple[bytes, Feeds]:
    """Return an encoder of MiniLM-L6's sizes with a small vocabulary and pooling, and inputs."""
    words, net = 2000, Net("minilm", tokens=("int32", [1, length]), mask=("float32", [1, length]))
    x = net.op("Gather", net.weight(words, width, inputs=1), "tokens")
    x = net.norm(net.op("Add", x, net.weight(length, width, inputs=1)), width)
    hidden = net.op("Mul", net.op("Sub", net.constant(np.float32(1)), "mask"), net.constant(np.float32(-1e4)))
    bias = net.op("Unsqueeze", hidden, net.constant(np.array([1, 2], np.int64)))
    for _ in range(layers):
        x = net.feed_forward(net.attention(x, width, heads, length, bias), width, 4 * width)
    mask = net.op("Unsqueeze", "mask", net.constant(np.array([2], np.int64)))
    total = net.op("ReduceSum", net.op("Mul", x, mask), net.constant(np.array([1], np.int64)), keepdims=0)
    count = net.op("ReduceSum", "mask", net.constant(np.array([1], np.int64)))
    random = np.random.default_rng(1)
    mask_values = (np.arange(length) < length * 3 // 4).astype(np.float32)[None]
    feeds = {"tokens": random.integers(0, words, (1, length), np.int32), "mask": mask_values}
    return net.model(net.op("Div", total, count), [1, width]), feeds


def _hard_swish(net: Net, x: str) -> str:
    gate = net.op("Add", x, net.constant(np.float32(3)))
    gate = net.op("Clip", gate, net.constant(np.float32(0)), net.constant(np.float32(6)))
    return net.op("Mul", x, net.op("Div", gate, net.constant(np.float32(6))))


def text_recognizer(width: int = 320) -> tuple[bytes, Feeds]:
    """Return a recognizer of text lines with the structure of PP-OCR's: depthwise blocks with gates, attention, and scores per position."""
    net = Net("text_recognizer", image=("float32", [1, 3, 48, width]))
    x = _hard_swish(net, net.conv("image", 3, 32, stride=2))
    channels, height = 32, 24
    for to, kernel, stride in (
        (64, 3, 1), (128, 3, 2), (128, 3, 1), (256, 3, 2), (256, 5, 1), (512, 5, 1),
    ):  # fmt: skip
        x = _hard_swish(net, net.conv(x, channels, channels, kernel, stride, group=channels))
        gate = net.op("GlobalAveragePool", x)
        gate = net.op("Relu", net.conv(gate, channels, channels // 4, 1))
        gate = net.op("HardSigmoid", net.conv(gate, channels // 4, channels, 1), alpha=0.2, beta=0.5)
        x = _hard_swish(net, net.conv(net.op("Mul", x, gate), channels, to, 1))
        channels, height = to, height // stride
    length = width // 8
    x = net.op("AveragePool", x, kernel_shape=[height, 1])
    x = net.op("Transpose", net.op("Squeeze", x, net.constant(np.array([2], np.int64))), perm=[0, 2, 1])
    x = net.linear(x, channels, 120)
    for _ in range(2):
        x = net.feed_forward(net.attention(x, 120, 8, length), 120, 240)
    scores = net.op("Softmax", net.linear(x, 120, 97), axis=-1)
    feeds = {"image": np.random.default_rng(1).standard_normal((1, 3, 48, width), dtype=np.float32)}
    return net.model(scores, [1, length, 97]), feeds


def wide_convolutions(
    batch: int = 8, channels: int = 256, side: int = 56, blocks: int = 4
) -> tuple[bytes, Feeds]:
    """Return residual blocks of wide convolutions, for which a GPU's half-precision units are the fastest, and an input."""
    net = Net("wide_convolutions", x=("float32", [batch, channels, side, side]))
    x = "x"
    for _ in range(blocks):
        h = net.op("Relu", net.conv(x, channels, channels))
        x = net.op(
            "Relu",
            net.op("Mul", net.op("Add", x, net.conv(h, channels, channels)), net.constant(np.float32(0.7))),
        )
    pooled = net.op("Flatten", net.op("GlobalAveragePool", x))
    feeds = {"x": np.random.default_rng(1).standard_normal((batch, channels, side, side), dtype=np.float32)}
    return net.model(net.linear(pooled, channels, 64), [batch, 64]), feeds


def resnet50() -> tuple[bytes, Feeds]:
    """Return the ResNet-50 that the onnx package carries, and an input."""
    return light_resnet50()


NETWORKS = {"resnet50": resnet50, "minilm": minilm, "text_recognizer": text_recognizer}
