"""fuse_quantized: compute products between DequantizeLinear and QuantizeLinear in integers.

    x ─ dequantize ─┐
    w ─ dequantize ─┼─ convolution ─ relu ─ quantize        becomes        quantized_convolution(x, w, scales and zero points, bias)
    b ─ dequantize ─┘

It works in steps: dequantizing moves behind data movement, which then moves bytes; products of two dequantized values become
``quantized_matmul`` and ``quantized_convolution`` with a float result; a bias, an activation and a QuantizeLinear behind them are fused; ONNX's
integer products become the same ops. The results are those of ONNX Runtime's integer kernels. ``expand_quantize`` writes the remaining pairs as
elementwise ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..ir import OPS, Editor, Graph, Node
from ..types import DType, TensorSpec
from ._lib.epilogue import activation_of
from ._lib.known import known_values
from ._lib.pattern_utils import forward, producer_of, spec_of
from ._lib.quantized import Dequantized, QuantizedValues
from .context import PassContext

__all__ = ["MAX_DEPTH", "run"]

MAX_DEPTH = 32768
"""Maximum products per sum: their sum fits in int32 for any codes, up to 255 * 255 * 32768 < 2^31."""

_MOVERS = frozenset(
    name for name, row in OPS.items() if row.view and len(row.outputs) == 1 and not row.outputs[0].rest
) | {"flip", "max_pool"}
_CODES = (DType.INT8, DType.UINT8)
_PRODUCTS = frozenset(["quantized_matmul", "quantized_convolution"])
_MAX_SWEEPS = 20

_Rule = Callable[[Editor, Node], None]


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with quantized_matmul and quantized_convolution nodes."""
    context = context or PassContext()
    if not any(n.op in ("dequantize_linear", *_EXPLICIT) for n in graph.nodes):
        return graph
    if not all(context.has_kernel(op) for op in _PRODUCTS):
        return graph
    for _ in range(_MAX_SWEEPS):
        before = graph
        graph = graph.rewrite(_moved(context))
        if graph is before:
            break
    graph = graph.rewrite(_explicit(graph, context))
    graph = graph.rewrite(_products(graph, context))
    graph = graph.rewrite(_biased(graph, context))
    graph = graph.rewrite(_activated(graph, context))
    return graph.rewrite(_requantized(graph, context))


# ── data movement ──


def _moved(context: PassContext) -> _Rule:
    def rule(editor: Editor, node: Node) -> None:
        values = QuantizedValues(editor, context)
        if node.op in _MOVERS and len(node.outputs) == 1:
            _behind_movement(editor, node, values)
        elif node.op == "quantize_linear" and not _no_change(editor, node, values):
            _before_concatenation(editor, node)

    return rule


def _behind_movement(editor: Editor, node: Node, values: QuantizedValues) -> None:
    """Rewrite move(dequantize(x)) as dequantize(move(x))."""
    maker = producer_of(editor, node.inputs[0])
    q = values.dequantized(node.inputs[0])
    if q is None or maker is None:
        return
    attrs: dict[str, Any] = dict(maker.attrs)
    if q.axis is not None:
        if node.op != "permute":
            return
        attrs["axis"] = tuple(node.attrs["dims"]).index(q.axis)
    if node.op == "max_pool" and not values.positive(q.scale):
        return
    moved = editor.insert(node, node.op, q.codes, *node.inputs[1:], outputs=1, **node.attrs)
    editor.replace(node, "dequantize_linear", moved, *maker.inputs[1:], **attrs)


def _no_change(editor: Editor, node: Node, values: QuantizedValues) -> bool:
    """Remove quantize(dequantize(x)) with equal scales and zero points."""
    q = values.dequantized(node.inputs[0])
    if q is None or q.axis is not None or node.attrs["block_size"]:
        return False
    scale, zero = str(node.inputs[1]), node.inputs[2] if len(node.inputs) > 2 else None
    if not values.same(q.scale, scale) or not values.same(q.zero, zero if isinstance(zero, str) else None):
        return False
    return values.positive(q.scale) and forward(editor, node, q.codes)


def _before_concatenation(editor: Editor, node: Node) -> None:
    """Rewrite quantize(cat(a, b)) as cat(quantize(a), quantize(b)) if one of them is dequantized."""
    cat = producer_of(editor, node.inputs[0])
    scale = spec_of(editor, node.inputs[1])
    if cat is None or cat.op != "cat" or scale is None or any(d != 1 for d in scale.shape):
        return
    makers = [producer_of(editor, v) for v in cat.inputs]
    if not any(m is not None and m.op == "dequantize_linear" for m in makers):
        return
    if editor.graph.only_user(cat.name) is None:
        return
    parts = [editor.insert(node, "quantize_linear", v, *node.inputs[1:], **node.attrs) for v in cat.inputs]
    editor.replace(node, "cat", *parts, **cat.attrs)


# ── products ──


def _allowed(graph: Graph, context: PassContext, op: str, node: Node) -> bool:
    return bool(context.may_become(op, graph, (node,))) and bool(context.may_fuse(graph, (node,)))


def _products(graph: Graph, context: PassContext) -> _Rule:
    known = set(known_values(graph))

    def rule(editor: Editor, node: Node) -> None:
        if node.op in ("convolution", "linear", "matmul", "mm", "bmm", "addmm"):
            op = "quantized_convolution" if node.op == "convolution" else "quantized_matmul"
            (_convolution if node.op == "convolution" else _matmul)(
                editor,
                node,
                QuantizedValues(editor, context),
                known,
                lambda: _allowed(graph, context, op, node),
            )

    return rule


_Ask = Callable[[], bool]


def _operand(values: QuantizedValues, value: Any, known: set[str]) -> Dequantized | None:
    """Return an activation as codes with one scale; None if it has no such form, or is constant."""
    q = values.dequantized(value)
    return None if q is None or q.axis is not None or q.codes in known else q


def _bias(
    values: QuantizedValues, bias: Any, channels: Any, x: Dequantized, weight: Dequantized
) -> tuple[bool, Any]:
    """Return whether a layer's bias can be used, and the operand for it: in the sums' units as int32, or float32."""
    if bias is None:
        return True, None
    spec = spec_of(values.editor, bias)
    if spec is None or spec.dtype is not DType.FLOAT32 or spec.shape not in ((channels,), (1,), ()):
        return False, None
    q = values.dequantized(bias, (DType.INT32,))
    if q is not None and values.bias_in_sums(q, x.scale, weight.scale):
        return True, q.codes
    return True, bias


def _convolution(editor: Editor, node: Node, values: QuantizedValues, known: set[str], allowed: _Ask) -> None:
    x, w = _operand(values, node.inputs[0], known), values.dequantized(node.inputs[1])
    if x is None or w is None or w.codes not in known or w.axis not in (None, 0) or node.attrs["transposed"]:
        return
    shape = spec_of(editor, w.codes)
    if shape is None or not 0 < _depth(shape, 0) <= MAX_DEPTH:
        return
    usable, bias = _bias(values, (*node.inputs, None)[2], shape.shape[0], x, w)
    if not usable or not allowed():
        return
    attrs = {n: node.attrs[n] for n in ("stride", "padding", "dilation", "groups")}
    editor.replace(
        node, "quantized_convolution", x.codes, values.weight(node, w, 0), x.scale, x.zero, w.scale, None, bias,
        dtype=DType.FLOAT32, **attrs,
    )  # fmt: skip


def _matmul(editor: Editor, node: Node, values: QuantizedValues, known: set[str], allowed: _Ask) -> None:
    bias, left, right = (None, *node.inputs[:2])
    if node.op == "addmm":
        bias, left, right = node.inputs[:3]
        if node.attrs["alpha"] != 1.0 or node.attrs["beta"] != 1.0:
            return
    elif node.op == "linear":
        bias = (*node.inputs, None)[2]
    x, w = _operand(values, left, known), values.dequantized(right)
    if x is None or w is None:
        return
    shape, rows = spec_of(editor, w.codes), spec_of(editor, x.codes)
    by_rows = node.op == "linear"
    if shape is None or rows is None or shape.rank < 2 or rows.rank < 1:
        return
    columns = 0 if by_rows else shape.rank - 1
    depth = shape.shape[1] if by_rows else shape.shape[-2]
    if not isinstance(depth, int) or not 0 < depth <= MAX_DEPTH or w.axis not in (None, columns):
        return
    usable, bias = _bias(values, bias, shape.shape[columns], x, w)
    if not usable or not allowed():
        return
    zero: Any = None
    if w.codes in known:
        weight = values.weight(node, w, columns)
    elif (
        w.axis is not None or by_rows or bias is not None
    ):  # kernels add a bias to products with constants only
        return
    else:
        weight, zero = w.codes, w.zero
    if by_rows:
        weight = editor.insert(node, "permute", weight, dims=(1, 0))
    editor.replace(
        node, "quantized_matmul", x.codes, weight, x.scale, x.zero, w.scale, zero, bias, dtype=DType.FLOAT32
    )


# ── what follows a product ──


def _product_before(editor: Editor, graph: Graph, value: Any) -> Node | None:
    """Return the product with a float result that only this value's reader reads."""
    node = producer_of(editor, value)
    if node is None or node.op not in _PRODUCTS or node.attrs["dtype"] is not DType.FLOAT32:
        return None
    return node if graph.only_user(node.name) is not None else None


def _biased(graph: Graph, context: PassContext) -> _Rule:
    """Fuse the addition of a constant per output channel to a product without bias and activation."""
    known = set(known_values(graph))

    def rule(editor: Editor, node: Node) -> None:
        if node.op != "add" or len(node.inputs) != 2:
            return
        for value, bias in (node.inputs, node.inputs[::-1]):
            product = _product_before(editor, graph, value)
            added = spec_of(editor, bias)
            if product is None or product.op != "quantized_matmul" or bias not in known or added is None:
                continue
            if product.inputs[1] not in known:  # kernels add a bias to products with constants only
                continue
            if product.attrs["act"] != "none" or (len(product.inputs) > 6 and product.inputs[6] is not None):
                continue
            channels = product.spec.shape[-1]
            if added.dtype is not DType.FLOAT32 or node.spec != product.spec:
                continue
            if added.rank < 1 or added.shape[-1] != channels or any(d != 1 for d in added.shape[:-1]):
                continue
            if not context.may_fuse(graph, (product, node)):
                return
            flat = bias if added.rank == 1 else editor.insert(node, "view", bias, size=(channels,))
            operands = (*product.inputs, *[None] * 7)[:6]
            editor.replace(node, product.op, *operands, flat, absorbs=[product], **product.attrs)
            return

    return rule


def _activated(graph: Graph, context: PassContext) -> _Rule:
    """Fuse the activation after a product."""

    def rule(editor: Editor, node: Node) -> None:
        act = activation_of(graph, node) if node.inputs and node.outputs[0].spec is not None else None
        product = None if act is None else _product_before(editor, graph, node.inputs[0])
        if product is None or product.attrs["act"] != "none" or node.spec != product.spec:
            return
        if context.may_fuse(graph, (product, node)):
            editor.replace(
                node, product.op, *product.inputs, absorbs=[product], **{**product.attrs, "act": act}
            )

    return rule


def _requantized(graph: Graph, context: PassContext) -> _Rule:
    """Fuse the QuantizeLinear after a product, which then writes codes."""

    def rule(editor: Editor, node: Node) -> None:
        if node.op != "quantize_linear" or node.attrs["block_size"] or node.attrs["precision"] is not None:
            return
        product = _product_before(editor, graph, node.inputs[0])
        scale = spec_of(editor, node.inputs[1])
        if product is None or scale is None or scale.dtype is not DType.FLOAT32:
            return
        if any(d != 1 for d in scale.shape) or node.attrs["dtype"] not in _CODES:
            return
        # Bounds of an activation in codes need a positive scale.
        if product.attrs["act"] != "none" and not QuantizedValues(editor, context).positive(
            str(node.inputs[1])
        ):
            return
        if not context.may_fuse(graph, (product, node)):
            return
        operands = (*product.inputs, *[None] * 9)[:7]
        editor.replace(
            node, product.op, *operands, *node.inputs[1:3], absorbs=[product],
            **{**product.attrs, "dtype": node.attrs["dtype"]},
        )  # fmt: skip

    return rule


# ── integer products of the model ──

_EXPLICIT = ("qlinear_convolution", "qlinear_matmul", "convolution_integer", "matmul_integer")


def _explicit(graph: Graph, context: PassContext) -> _Rule:
    """Rewrite ONNX's integer products, with their weights as int8 without zero points."""
    known = set(known_values(graph))

    def rule(editor: Editor, node: Node) -> None:
        if node.op not in _EXPLICIT:
            return
        op = "quantized_convolution" if "convolution" in node.op else "quantized_matmul"
        operands = (*node.inputs, *[None] * 9)[:9]
        bias: Any = None
        y_scale: Any = None
        y_zero: Any = None
        if node.op.startswith("qlinear"):
            x, x_scale, x_zero, weight, w_scale, w_zero, y_scale, y_zero, bias = operands
        else:
            (x, weight, x_zero, w_zero), (x_scale, w_scale) = operands[:4], (None, None)
        values = QuantizedValues(editor, context)
        x_spec, spec = spec_of(editor, x), spec_of(editor, weight)
        if x_spec is None or spec is None or node.spec.dtype not in (*_CODES, DType.INT32):
            return
        if x_spec.dtype not in _CODES or spec.dtype not in _CODES:
            return
        if x_spec.rank < 1 or spec.rank < 2 or not _single(editor, x_scale, x_zero, y_scale, y_zero):
            return
        axis = 0 if op == "quantized_convolution" else spec.rank - 1
        if not 0 < _depth(spec, axis) <= MAX_DEPTH:
            return
        if not _per_channel(editor, spec.shape[axis], w_scale, w_zero) or x in known:
            return
        if weight not in known and op == "quantized_convolution":
            return
        scales = [spec_of(editor, s) for s in (x_scale, y_scale, w_scale) if s is not None]
        if any(s is None or s.dtype is not DType.FLOAT32 for s in scales):
            return
        if not _allowed(graph, context, op, node):
            return
        if weight in known:
            q = Dequantized(str(weight), "", w_zero if isinstance(w_zero, str) else None, None)
            weight, w_zero = values.weight(node, q, axis), None
        elif not _single(editor, w_zero):
            return
        attrs = {n: node.attrs[n] for n in ("stride", "padding", "dilation", "groups") if n in node.attrs}
        editor.replace(
            node, op, x, weight, x_scale, x_zero, w_scale, w_zero, bias, y_scale, y_zero,
            dtype=node.spec.dtype, **attrs,
        )  # fmt: skip

    return rule


def _depth(weight: TensorSpec, axis: int) -> int:
    """Return the products per sum: of a matrix along its second last dim, of filters (axis 0) along all others; 0 if unknown."""
    dims = weight.shape[1:] if axis == 0 else weight.shape[-2:-1]
    return math.prod(d for d in dims if isinstance(d, int)) if all(isinstance(d, int) for d in dims) else 0


def _single(editor: Editor, *operands: Any) -> bool:
    specs = [spec_of(editor, v) for v in operands if v is not None]
    return all(s is not None and s.shape in ((), (1,)) for s in specs)


def _per_channel(editor: Editor, channels: Any, *operands: Any) -> bool:
    specs = [spec_of(editor, v) for v in operands if v is not None]
    return all(s is not None and s.shape in ((), (1,), (channels,)) for s in specs)
