"""Bias correction: the mean error that rounded weights make is added to the bias of their product.

The weights w and their rounded form q differ, and so do the results in their mean: by (w - q) times the mean operand. The bias takes that
difference (Nagel et al. 2019, arXiv:1906.04721). Nothing is added to the model but the bias of a product that has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...protocols import Array

__all__ = ["means", "with_corrected_biases"]


def means(session: Any, feeds: Sequence[Mapping[str, Array]], products: Sequence[Any]) -> dict[str, Array]:
    """Return the mean of each product's first operand by channel, over all samples and positions, by the product's name.

    session: shows these operands as outputs.
    """
    operands = {n.name: (n.input[0], 1 if n.op_type == "Conv" else -1) for n in products}
    shown = {o.name for o in session.get_outputs()}
    names = [n for n in dict.fromkeys(name for name, _ in operands.values()) if n in shown]
    sums: dict[tuple[str, int], Array] = {}
    for sample in feeds:
        values = dict(zip(names, session.run(names, dict(sample)), strict=True)) if names else {}
        for name, axis in dict.fromkeys(operands.values()):
            value = values.get(name, sample.get(name))
            if value is not None and value.ndim > 1 and value.size:
                other = tuple(a for a in range(value.ndim) if a != axis % value.ndim)
                sums[name, axis] = value.mean(other, dtype=np.float64) + sums.get((name, axis), 0.0)
    return {
        product: sums[key] / len(feeds)
        for product, key in operands.items()
        if key in sums and np.isfinite(sums[key]).all()
    }


def with_corrected_biases(
    model: Any, quantized: Any, products: Sequence[Any], mean: Mapping[str, Array]
) -> tuple[Any, int]:
    """Return a copy of the float model with a bias for each product that ``quantized`` rounds, and their number."""
    import onnx
    from onnx import numpy_helper

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    rounded = _rounded(quantized)
    contents = {t.name: t for t in copy.graph.initializer}
    readers: dict[str, list[Any]] = {}
    for node in copy.graph.node:
        for value in node.input:
            readers.setdefault(value, []).append(node)
    nodes = {n.name: n for n in copy.graph.node}
    count = 0
    for product in products:
        weight = contents.get(product.input[1])
        if weight is None or product.name not in rounded or product.name not in mean:
            continue
        node = nodes[product.name]
        lost = _lost(node, numpy_helper.to_array(weight), rounded[product.name], mean[product.name])
        target = None if lost is None else _bias(node, readers, contents, {o.name for o in copy.graph.output})
        if lost is None or target is None:
            continue
        holder, at, before = target
        new = numpy_helper.from_array(
            (before + lost.reshape(before.shape if before.size > 1 else -1)).astype(
                numpy_helper.to_array(weight).dtype
            ),
            f"{node.name}.corrected_bias",
        )
        copy.graph.initializer.append(new)
        while len(holder.input) <= at:
            holder.input.append("")
        holder.input[at] = new.name
        count += 1
    return copy, count


def _rounded(quantized: Any) -> dict[str, Array]:
    """Return the values that each product's weights have after rounding, by node name."""
    from onnx import numpy_helper

    contents = {t.name: t for t in quantized.graph.initializer}
    producers = {n.output[0]: n for n in quantized.graph.node if n.op_type == "DequantizeLinear"}
    values: dict[str, Array] = {}
    for node in quantized.graph.node:
        pair = producers.get(node.input[1]) if len(node.input) > 1 else None
        if pair is None or any(i not in contents for i in pair.input):
            continue
        codes, scale, *zero = (numpy_helper.to_array(contents[i]).astype(np.float64) for i in pair.input)
        axis = next((a.i for a in pair.attribute if a.name == "axis"), 1)
        shape = [1] * codes.ndim
        if scale.size > 1:
            shape[axis] = -1
        offset = zero[0].reshape(shape) if zero else 0.0
        values[node.name] = (codes - offset) * scale.reshape(shape)
    return values


def _lost(node: Any, weight: Array, rounded: Array, mean: Array) -> Array | None:
    """Return the mean result that rounding loses for each output; None if shapes do not fit."""
    attributes = {a.name: a for a in node.attribute}
    lost = weight.astype(np.float64) - rounded
    if node.op_type == "Conv":
        groups = attributes["group"].i if "group" in attributes else 1
        if mean.size != groups * weight.shape[1]:
            return None
        per_group = lost.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1).sum(-1)
        return np.asarray(np.einsum("goc,gc->go", per_group, mean.reshape(groups, -1)).reshape(-1))
    if weight.ndim != 2 or (attributes.get("transA") and attributes["transA"].i):
        return None
    if attributes.get("transB") and attributes["transB"].i:
        lost = lost.T
    factor = attributes["alpha"].f if "alpha" in attributes else 1.0
    return np.asarray(factor * (mean @ lost)) if lost.shape[0] == mean.size else None


def _bias(
    node: Any, readers: Mapping[str, list[Any]], contents: Mapping[str, Any], outputs: set[str]
) -> tuple[Any, int, Array] | None:
    """Return the node that adds the product's bias, the operand's number, and the bias; None if it has no place for one."""
    from onnx import numpy_helper

    if node.op_type != "MatMul":
        name = node.input[2] if len(node.input) > 2 else ""
        if not name:
            return node, 2, np.zeros(1)
        bias = numpy_helper.to_array(contents[name]) if name in contents else None
        return None if bias is None or bias.ndim != 1 else (node, 2, bias)
    users = readers.get(node.output[0], [])
    if len(users) != 1 or users[0].op_type != "Add" or node.output[0] in outputs:
        return None
    at = 1 if users[0].input[0] == node.output[0] else 0
    name = users[0].input[at]
    bias = numpy_helper.to_array(contents[name]) if name in contents else None
    width = contents[node.input[1]].dims[-1]
    return None if bias is None or bias.shape != (width,) else (users[0], at, bias)
