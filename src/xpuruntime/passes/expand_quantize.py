"""expand_quantize: write QuantizeLinear and DequantizeLinear of 8-bit codes as elementwise ops, which fuse with their neighbors.

    quantize(x)    cast(clamp(round(x / scale) + zero_point))        dequantize(x)    (cast(x) - zero_point) * scale

In float32 every step rounds as ONNX defines it, so the results are the same bits.
"""

from __future__ import annotations

from typing import Any

from ..ir import Editor, Graph, Node
from ..types import DType
from ._lib.pattern_utils import spec_of
from .context import PassContext

__all__ = ["run"]

_LIMITS = {DType.INT8: (-128.0, 127.0), DType.UINT8: (0.0, 255.0)}


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph without quantize_linear and dequantize_linear of 8-bit codes in float32."""
    context = context or PassContext()

    def rule(editor: Editor, node: Node) -> None:
        if node.op not in ("quantize_linear", "dequantize_linear") or node.attrs["block_size"]:
            return
        codes, real = (
            (node.outputs[0].spec, spec_of(editor, node.inputs[0]))
            if node.op == "quantize_linear"
            else (spec_of(editor, node.inputs[0]), node.outputs[0].spec)
        )
        scale = spec_of(editor, node.inputs[1])
        if codes is None or real is None or scale is None:
            return
        if codes.dtype not in _LIMITS and (node.op == "quantize_linear" or codes.dtype is not DType.INT32):
            return
        if real.dtype is not DType.FLOAT32 or scale.dtype is not DType.FLOAT32 or node.attrs.get("precision"):
            return
        # A narrower type between kernels would round what must be exact.
        if context.storage(node) not in (None, DType.FLOAT32):
            return
        if scale.rank > 1 and any(d != 1 for d in scale.shape):
            return
        factor = _spread(editor, node, node.inputs[1], codes.rank)
        zero = node.inputs[2] if len(node.inputs) > 2 else None
        offset = None
        if zero is not None:
            wide = editor.insert(node, "cast", zero, dtype=DType.FLOAT32)
            offset = _spread(editor, node, wide, codes.rank)
        if node.op == "quantize_linear":
            y = editor.insert(node, "round", editor.insert(node, "div", node.inputs[0], factor))
            y = y if offset is None else editor.insert(node, "add", y, offset)
            y = editor.insert(node, "clamp", y, *_LIMITS[codes.dtype])
            editor.replace(node, "cast", y, dtype=codes.dtype)
            return
        x = editor.insert(node, "cast", node.inputs[0], dtype=DType.FLOAT32)
        x = x if offset is None else editor.insert(node, "sub", x, offset)
        editor.replace(node, "mul", x, factor)

    return graph.rewrite(rule)


def _spread(editor: Editor, node: Node, value: Any, rank: int) -> Any:
    """Return a scale or zero point in a shape that broadcasts with the codes."""
    spec = spec_of(editor, value)
    assert spec is not None
    shape: tuple[Any, ...] = ()
    if any(d != 1 for d in spec.shape):
        shape = tuple(spec.shape[0] if d == node.attrs["axis"] % rank else 1 for d in range(rank))
    return value if spec.shape == shape else editor.insert(node, "view", value, size=shape)
