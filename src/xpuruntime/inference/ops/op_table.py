"""The ops as a table: how a call's operands and attributes become one node of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ...ir.build import GraphBuilder

if TYPE_CHECKING:
    from .tensor_layout import Facts, Lying

__all__ = ["ROWS", "Row"]

Values: TypeAlias = Sequence[Any]
"""Names of the operands in the graph; None for one that was left out."""
Shown: TypeAlias = Sequence["tuple[Facts, Lying] | None"]
"""What each operand looks like, and the block of memory that the graph's input of its name is."""


@dataclass(frozen=True, slots=True)
class Row:
    """One op. number: its word in signatures; operands: their names, in order; node: adds it to a graph, gives the result's name."""

    number: int
    operands: tuple[str, ...]
    node: Callable[[GraphBuilder, Values, tuple[Any, ...], Shown], str]


def _attention(b: Any, v: Values, a: tuple[Any, ...], shown: Shown) -> str:
    causal, offset, scale, softcap = a
    scale = None if scale is None else float(scale)
    made: str = b.attention(
        *v, causal=bool(causal), causal_offset=int(offset), scale=scale, softcap=float(softcap)
    )
    return made


def _normalized(dims: tuple[int, ...] | None, shown: Shown) -> tuple[int, ...]:
    """The dims that a norm is over: those that were named, else the weight's, else the last one."""
    if dims is not None:
        return tuple(int(d) for d in dims)
    x, weight = shown[0], shown[1]
    if weight is not None:
        return weight[0].shape
    return x[0].shape[-1:] if x is not None else ()


def _layer_norm(b: Any, v: Values, a: tuple[Any, ...], shown: Shown) -> str:
    return _first(b.layer_norm(*v, normalized_shape=_normalized(a[0], shown), eps=float(a[1])))


def _rms_norm(b: Any, v: Values, a: tuple[Any, ...], shown: Shown) -> str:
    return _first(b.rms_norm(*v, normalized_shape=_normalized(a[0], shown), eps=float(a[1])))


def _conv2d(b: Any, v: Values, a: tuple[Any, ...], shown: Shown) -> str:
    stride, padding, dilation, groups = a
    made: str = b.convolution(*v, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return made


def _matmul(b: Any, v: Values, a: tuple[Any, ...], shown: Shown) -> str:
    """A matrix on the right that lies transposed is what linear layers call their weight: their kernels stream it as it lies."""
    right = shown[1]
    turned = right is not None and right[1].order == (1, 0) and right[1].shape == right[0].shape[::-1]
    made: str = b.linear(v[0], "b") if turned else b.matmul(*v)
    return made


def _softmax(b: Any, v: Values, a: tuple[Any, ...], shown: Shown) -> str:
    made: str = b.softmax(*v, dim=int(a[0]))
    return made


def _silu_mul(b: Any, v: Values, a: tuple[Any, ...], shown: Shown) -> str:
    made: str = b.silu_mul(*v)
    return made


def _first(made: Any) -> str:
    """The result of an op that can give more."""
    return made if isinstance(made, str) else str(made[0])


ROWS: Mapping[str, Row] = {
    "matmul": Row(1, ("a", "b"), _matmul),
    "attention": Row(2, ("q", "k", "v", "mask"), _attention),
    "layer_norm": Row(3, ("x", "weight", "bias"), _layer_norm),
    "rms_norm": Row(4, ("x", "weight"), _rms_norm),
    "conv2d": Row(5, ("x", "weight", "bias"), _conv2d),
    "softmax": Row(6, ("x",), _softmax),
    "silu_mul": Row(7, ("gate", "up"), _silu_mul),
}
