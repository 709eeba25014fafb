"""fold_batch_norm: replace batch norms with known statistics, which are a scale and a shift per channel.

``run`` folds both into the weight and bias of a convolution or linear layer before the norm, if nothing else reads that layer, or
of such a layer after the norm, if that layer has no padding (padded zeros would get no shift). ``split`` replaces every other batch norm by a
multiplication and an addition with known operands, which pointwise fusion can use. The arithmetic on weights stays in the graph as
nodes on known values, from which the compiler makes recipes. It is in float64, so that a folded weight is rounded once.

    y = (x - mean) * s + shift,  s = scale * rsqrt(var + eps)          (Ioffe and Szegedy 2015)
"""

from __future__ import annotations

import math
from typing import Any

from ..ir import Editor, Graph, Node
from ..types import DType
from ._lib.known import known_values
from .context import PassContext

__all__ = ["run", "split"]

_LAYERS = frozenset(["convolution", "linear"])


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with batch norms folded into adjacent layers, if their statistics are known."""
    context = context or PassContext()
    known = known_values(graph)

    def layer_before(norm: Node) -> Node | None:
        """Return the layer that a norm of its results is folded into."""
        layer = graph.producer(str(norm.inputs[0]))
        if layer is None or layer.op not in _LAYERS or graph.only_user(layer.name) is None:
            return None
        fits = all(v in known for v in layer.values[1:]) and context.may_fuse(graph, (layer, norm))
        return layer if fits else None

    def rule(editor: Editor, node: Node) -> None:
        original = graph.node(node.name)
        if _fits(node, known):
            layer = layer_before(original)
            if layer is not None:
                _into_layer(editor, editor.current(layer), layer, node)
        elif _pads_nothing(node) and all(v in known for v in original.values[1:]):
            norm = graph.producer(str(original.inputs[0]))
            if norm is None or not _fits(norm, known) or graph.only_user(norm.name) is None:
                return
            if layer_before(norm) is None and context.may_fuse(graph, (norm, original)):
                _into_next(editor, norm, node)

    return graph.rewrite(rule)


def split(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with every other batch norm of known statistics as a multiplication and an addition."""
    known = known_values(graph)

    def rule(editor: Editor, node: Node) -> None:
        if _fits(node, known):
            _scale_and_shift(editor, node)

    return graph.rewrite(rule)


def _fits(node: Node, known: frozenset[str]) -> bool:
    return (
        node.op == "batch_norm"
        and all(v in known for v in node.values[1:])
        and node.spec.dtype in (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)
    )


def _pads_nothing(node: Node) -> bool:
    """Return whether the layer has no padding, so that each channel's shift adds the same everywhere."""
    if node.op == "linear":
        return node.spec.rank == 2  # its last dim is the channel dim
    return node.op == "convolution" and not node.attrs["transposed"] and not any(node.attrs["padding"])


def _factors(editor: Editor, node: Node, norm: Node | None = None) -> tuple[str, Any, Any]:
    """Return s, the norm's shift (or None) and the mean: all [C], in float64. ``node``: insertion point."""
    norm = norm or node
    scale, shift, mean, var = [_as(editor, node, v, "float64") for v in norm.inputs[1:]]
    s = editor.insert(
        node, "rsqrt", editor.insert(node, "add", var, norm.attrs["eps"], name="bn_var"), name="bn_rstd"
    )
    if scale is not None:
        s = editor.insert(node, "mul", scale, s, name="bn_scale")
    return s, shift, mean


def _as(editor: Editor, at: Node, value: Any, dtype: str) -> Any:
    """Return the value in a dtype; absent ones stay absent."""
    spec = None if value is None else editor.values[value].spec
    if spec is None or spec.dtype.value == dtype:
        return value
    return editor.insert(at, "cast", value, dtype=dtype)


def _into_layer(editor: Editor, layer: Node, original: Node, node: Node) -> None:
    """Replace norm(conv(x, w, b)) by conv(x, w*s, (b - mean)*s + shift)."""
    s, shift, mean = _factors(editor, node)
    x, weight, bias = (*layer.inputs, *[None] * (3 - len(layer.inputs)))[:3]
    weight_spec = editor.values[str(weight)].spec
    assert weight_spec is not None
    scaled = _scaled(editor, node, layer, _as(editor, node, weight, "float64"), s)
    off = _as(editor, node, bias, "float64")
    off = editor.insert(node, "neg", mean) if off is None else editor.insert(node, "sub", off, mean)
    off = editor.insert(node, "mul", off, s, name="bn_bias")
    if shift is not None:
        off = editor.insert(node, "add", off, shift, name="bn_bias")
    operands = (
        x,
        _as(editor, node, scaled, weight_spec.dtype.value),
        _as(editor, node, off, weight_spec.dtype.value),
    )
    editor.replace(node, layer.op, *operands, absorbs=[original], **layer.attrs)


def _into_next(editor: Editor, norm: Node, layer: Node) -> None:
    """Replace conv(norm(x), w, b) by conv(x, w*s, b + sum of w * (shift - mean*s)), with s and shift along the input channels."""
    s, shift, mean = _factors(editor, layer, norm)
    weight, bias = (*layer.inputs, None)[1:3]
    weight_spec = editor.values[str(weight)].spec
    assert weight_spec is not None
    off = editor.insert(layer, "mul", mean, s, name="bn_shift")
    off = (
        editor.insert(layer, "neg", off)
        if shift is None
        else editor.insert(layer, "sub", shift, off, name="bn_shift")
    )
    groups = layer.attrs.get("groups", 1)
    sizes = [d for d in weight_spec.shape if isinstance(d, int)]  # complete, since a weight is static
    filters, channels, *taps = sizes
    split = (groups, filters // groups, channels, *taps)
    along = (groups, 1, channels, *(1 for _ in taps))
    wide_weight = _as(editor, layer, weight, "float64")
    by_group = editor.insert(layer, "view", wide_weight, size=split)
    factor, shifts = (editor.insert(layer, "view", v, size=along) for v in (s, off))
    scaled = editor.insert(layer, "mul", by_group, factor, name="bn_weight")
    scaled = editor.insert(layer, "view", scaled, size=weight_spec.shape)
    shifted = editor.insert(layer, "mul", by_group, shifts)
    flat = editor.insert(layer, "view", shifted, size=(filters, math.prod(sizes[1:])))
    total = editor.insert(layer, "sum", flat, dim=[1], name="bn_bias")
    if bias is not None:
        total = editor.insert(layer, "add", _as(editor, layer, bias, "float64"), total, name="bn_bias")
    operands = [_as(editor, layer, v, weight_spec.dtype.value) for v in (scaled, total)]
    editor.replace(layer, layer.op, norm.inputs[0], *operands, absorbs=[norm], **layer.attrs)


def _scaled(editor: Editor, at: Node, layer: Node, weight: str, s: str) -> str:
    """Return the weight times s along its output channels."""
    spec = editor.values[weight].spec
    assert spec is not None
    # [in, out/groups, kernel...]: output channels are ordered by group.
    if layer.op == "convolution" and layer.attrs["transposed"]:
        groups, rest = layer.attrs["groups"], (1,) * (spec.rank - 2)
        per = spec.shape[1]
        split = (groups, spec.shape[0] // groups, per, *spec.shape[2:])
        by_group = editor.insert(at, "view", weight, size=split)
        along = editor.insert(at, "view", s, size=(groups, 1, per, *rest))
        product = editor.insert(at, "mul", by_group, along, name="bn_weight")
        folded: str = editor.insert(at, "view", product, size=spec.shape)
        return folded
    along = editor.insert(at, "view", s, size=(spec.shape[0], *(1,) * (spec.rank - 1)))
    scaled: str = editor.insert(at, "mul", weight, along, name="bn_weight")
    return scaled


def _scale_and_shift(editor: Editor, node: Node) -> None:
    """Replace the norm by ``x * s + (shift - mean * s)``, per channel."""
    s, shift, mean = _factors(editor, node)
    off = editor.insert(node, "mul", mean, s, name="bn_shift")
    off = (
        editor.insert(node, "neg", off)
        if shift is None
        else editor.insert(node, "sub", shift, off, name="bn_shift")
    )
    spec = node.spec
    along = (1, spec.shape[1], *(1,) * (spec.rank - 2)) if spec.rank > 1 else spec.shape
    wide = "float64" if spec.dtype is DType.FLOAT64 else "float32"
    s, off = (editor.insert(node, "view", _as(editor, node, v, wide), size=along) for v in (s, off))
    x = _as(editor, node, node.inputs[0], wide)
    y = editor.insert(node, "mul", x, s)
    if spec.dtype.value == wide:
        editor.replace(node, "add", y, off)
    else:
        editor.replace(node, "cast", editor.insert(node, "add", y, off), dtype=spec.dtype)
