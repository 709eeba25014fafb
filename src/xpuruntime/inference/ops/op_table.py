"""The table of ops: how operands and attributes of a call become one graph node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ...ir.build import GraphBuilder

if TYPE_CHECKING:
    from .tensor_layout import DenseBlock, TensorFacts

__all__ = ["ROWS", "EagerOp"]

Values: TypeAlias = Sequence[Any]
"""Names of the operands in the graph; None for an omitted operand."""
Shown: TypeAlias = Sequence["tuple[TensorFacts, DenseBlock] | None"]
"""The facts of each operand, and the block of memory behind the graph's input of its name."""


@dataclass(frozen=True, slots=True)
class EagerOp:
    """One op. number: its code in signatures. operands: their names in order. node: adds it to a graph and returns the result's name."""

    number: int
    operands: tuple[str, ...]
    node: Callable[[GraphBuilder, Values, tuple[Any, ...], Shown], str]


def _attention(b: Any, v: Values, a: tuple[Any, ...], shown: Shown) -> str:
    causal, offset, scale, softcap = a
    scale = None if scale is None else float(scale)
    value: str = b.attention(
        *v, causal=bool(causal), causal_offset=int(offset), scale=scale, softcap=float(softcap)
    )
    return value


def _normalized_dims(dims: tuple[int, ...] | None, shown: Shown) -> tuple[int, ...]:
    """Return the dims of a norm: the given ones, else the weight's, else the last one."""
    if dims is not None:
        return tuple(int(d) for d in dims)
    x, weight = shown[0], shown[1]
    if weight is not None:
        return weight[0].shape
    return x[0].shape[-1:] if x is not None else ()


def _layer_norm(b: Any, v: Values, a: tuple[Any, ...], shown: Shown) -> str:
    return _first(b.layer_norm(*v, normalized_shape=_normalized_dims(a[0], shown), eps=float(a[1])))


def _rms_norm(b: Any, v: Values, a: tuple[Any, ...], shown: Shown) -> str:
    return _first(b.rms_norm(*v, normalized_shape=_normalized_dims(a[0], shown), eps=float(a[1])))


def _conv2d(b: Any, v: Values, a: tuple[Any, ...], shown: Shown) -> str:
    stride, padding, dilation, groups = a
    value: str = b.convolution(*v, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return value


def _matmul(b: Any, v: Values, a: tuple[Any, ...], shown: Shown) -> str:
    """Add a matmul, or a linear layer if the right matrix is transposed in memory: those kernels read it in place."""
    right = shown[1]
    turned = right is not None and right[1].order == (1, 0) and right[1].shape == right[0].shape[::-1]
    value: str = b.linear(v[0], "b") if turned else b.matmul(*v)
    return value


def _softmax(b: Any, v: Values, a: tuple[Any, ...], shown: Shown) -> str:
    value: str = b.softmax(*v, dim=int(a[0]))
    return value


def _silu_mul(b: Any, v: Values, a: tuple[Any, ...], shown: Shown) -> str:
    value: str = b.silu_mul(*v)
    return value


def _first(values: Any) -> str:
    """Return the first result of an op that may have several."""
    return values if isinstance(values, str) else str(values[0])


ROWS: Mapping[str, EagerOp] = {
    "matmul": EagerOp(1, ("a", "b"), _matmul),
    "attention": EagerOp(2, ("q", "k", "v", "mask"), _attention),
    "layer_norm": EagerOp(3, ("x", "weight", "bias"), _layer_norm),
    "rms_norm": EagerOp(4, ("x", "weight"), _rms_norm),
    "conv2d": EagerOp(5, ("x", "weight", "bias"), _conv2d),
    "softmax": EagerOp(6, ("x",), _softmax),
    "silu_mul": EagerOp(7, ("gate", "up"), _silu_mul),
}
