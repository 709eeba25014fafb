"""Named dims of a node, for the shape conditions of policies (``M <= 16``, ``heads == 32``)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping

from ...types import DimLike, TensorSpec
from ..graph import Graph, Node

__all__ = ["Dims", "named_dims"]

Dims = dict[str, DimLike]


def named_dims(graph: Graph, node: Node) -> Dims:
    """Return the dims of the policies' vocabulary; symbolic if the shape is. Empty if types are unknown (next to opaque nodes)."""
    # An opaque node's results may have no known type.
    operands = [graph.values[v].spec for v in node.inputs if isinstance(v, str)]
    result = node.outputs[0].spec
    if not operands or operands[0] is None or result is None:
        return {}
    first = operands[0]
    dims: Dims = {"rank": first.rank, "elements": _product(first.shape)}
    if first.rank:
        dims["batch"] = first.shape[0]
    extra = _BY_OP.get(node.op)
    if extra is not None and all(o is not None for o in operands):
        dims |= extra(node, [o for o in operands if o is not None], result)
    return dims


def _product(dims: Iterable[DimLike]) -> DimLike:
    return functools.reduce(operator.mul, dims, 1)


def _matmul(node: Node, operands: list[TensorSpec], result: TensorSpec) -> Dims:
    x = operands[1] if node.op == "addmm" else operands[0]
    rows = result.shape[-2] if result.rank > 1 else 1
    return {
        "M": rows,
        "N": result.shape[-1] if result.rank else 1,
        "K": x.shape[-1],
        "batch": _product(result.shape[:-2]),
    }


def _linear(node: Node, operands: list[TensorSpec], result: TensorSpec) -> Dims:
    """Return the dims of a linear layer, whose leading dims are all rows of one product."""
    return {"M": _product(result.shape[:-1]), "N": result.shape[-1], "K": operands[0].shape[-1], "batch": 1}


def _conv(node: Node, operands: list[TensorSpec], result: TensorSpec) -> Dims:
    x, weight = operands[:2]
    dims: Dims = {"C": x.shape[1], "K": result.shape[1]}
    if x.rank == 4:
        dims |= {"H": x.shape[2], "W": x.shape[3], "R": weight.shape[2], "S": weight.shape[3]}
    return dims


def _attention(node: Node, operands: list[TensorSpec], result: TensorSpec) -> Dims:
    first, second = {"rope_attention": (0, 5), "attention_backward": (1, 2)}.get(node.op, (0, 1))
    q, k = operands[first], operands[second]
    return {"heads": q.shape[1], "kv_heads": k.shape[1], "Q": q.shape[2], "S": k.shape[2], "D": q.shape[3]}


def _softmax(node: Node, operands: list[TensorSpec], result: TensorSpec) -> Dims:
    axis = int(node.attrs["dim"])
    other_dims = [d for i, d in enumerate(operands[0].shape) if i != axis]
    return {"rows": _product(other_dims), "cols": operands[0].shape[axis] if operands[0].rank else 1}


def _norm(node: Node, operands: list[TensorSpec], result: TensorSpec) -> Dims:
    width = len(node.attrs["normalized_shape"])
    shape = operands[0].shape
    return {"rows": _product(shape[: len(shape) - width]), "cols": _product(shape[len(shape) - width :])}


_BY_OP: Mapping[str, Callable[[Node, list[TensorSpec], TensorSpec], Dims]] = {
    **dict.fromkeys(("mm", "mm_wide", "bmm", "matmul", "addmm", "quantized_matmul"), _matmul),
    **dict.fromkeys(("linear", "fused_linear", "norm_linear", "expert_linear"), _linear),
    **dict.fromkeys(("convolution", "fused_convolution", "quantized_convolution"), _conv),
    **dict.fromkeys(("softmax", "log_softmax"), _softmax),
    **dict.fromkeys(("layer_norm", "rms_norm"), _norm),
    **dict.fromkeys(("attention", "attention_train", "attention_backward", "rope_attention"), _attention),
}
