"""The ops as a table: how a call's operands and attributes become one node of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...ir.build import GraphBuilder

__all__ = ["ROWS", "Row"]

Values: TypeAlias = Sequence[Any]
"""Names of the operands in the graph; None for one that was left out."""
Shapes: TypeAlias = Sequence["tuple[int, ...] | None"]


@dataclass(frozen=True, slots=True)
class Row:
    """One op. number: its word in signatures; operands: their names, in order; node: adds it to a graph, gives the result's name."""

    number: int
    operands: tuple[str, ...]
    node: Callable[[GraphBuilder, Values, tuple[Any, ...], Shapes], str]


def _attention(b: Any, v: Values, a: tuple[Any, ...], shapes: Shapes) -> str:
    causal, offset, scale, softcap = a
    scale = None if scale is None else float(scale)
    made: str = b.attention(
        *v, causal=bool(causal), causal_offset=int(offset), scale=scale, softcap=float(softcap)
    )
    return made


def _normalised(dims: tuple[int, ...] | None, shapes: Shapes) -> tuple[int, ...]:
    """The dims that a norm is over: those that were named, else the weight's, else the last one."""
    x, weight = shapes[0] or (), shapes[1]
    return tuple(int(d) for d in dims) if dims is not None else x[-1:] if weight is None else weight


def _layer_norm(b: Any, v: Values, a: tuple[Any, ...], shapes: Shapes) -> str:
    return _first(b.layer_norm(*v, normalized_shape=_normalised(a[0], shapes), eps=float(a[1])))


def _rms_norm(b: Any, v: Values, a: tuple[Any, ...], shapes: Shapes) -> str:
    return _first(b.rms_norm(*v, normalized_shape=_normalised(a[0], shapes), eps=float(a[1])))


def _conv2d(b: Any, v: Values, a: tuple[Any, ...], shapes: Shapes) -> str:
    stride, padding, dilation, groups = a
    made: str = b.convolution(*v, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return made


def _matmul(b: Any, v: Values, a: tuple[Any, ...], shapes: Shapes) -> str:
    made: str = b.matmul(*v)
    return made


def _softmax(b: Any, v: Values, a: tuple[Any, ...], shapes: Shapes) -> str:
    made: str = b.softmax(*v, dim=int(a[0]))
    return made


def _silu_mul(b: Any, v: Values, a: tuple[Any, ...], shapes: Shapes) -> str:
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
