"""Steps of random graphs. Each draws operands from the existing values and appends a node; IrError means that the step does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from xpuruntime.ir import GraphBuilder
from xpuruntime.types import DType, TensorSpec

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn
from .graph_draws import choose, is_float, is_ranked, pick

__all__ = ["STEPS"]


def _axis(draw: DrawFn, spec: TensorSpec) -> int:
    return int(choose(draw, range(-spec.rank, spec.rank)))


_UNARY = [
    "abs",
    "neg",
    "sign",
    "relu",
    "sigmoid",
    "tanh",
    "exp",
    "erf",
    "sin",
    "cos",
    "floor",
    "ceil",
    "trunc",
    "gelu",
    "silu",
    "softsign",
    "isnan",
    "logical_not",
    "clone",
]
_BINARY = [
    "add",
    "sub",
    "mul",
    "maximum",
    "minimum",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "atan2",
]


def _unary(draw: DrawFn, b: GraphBuilder) -> None:
    b.call(choose(draw, _UNARY), pick(draw, b, lambda s: s.dtype is not DType.BOOL))


def _binary(draw: DrawFn, b: GraphBuilder) -> None:
    b.call(choose(draw, _BINARY), pick(draw, b), pick(draw, b))


def _number(draw: DrawFn, b: GraphBuilder) -> None:
    number = choose(draw, (0, 1, -2, 0.5, -1.5, True, float("inf"), float("nan"), -0.0))
    operands = [pick(draw, b), number]
    if choose(draw, (True, False)):
        operands.reverse()
    b.call(choose(draw, ("add", "mul", "maximum", "sub", "eq")), *operands)


def _constant(draw: DrawFn, b: GraphBuilder) -> None:
    x = pick(draw, b, lambda s: s.dtype is not DType.BOOL)
    dtype = b.spec(x).dtype.numpy
    b.add(
        x,
        b.constant(choose(draw, (np.ones((), dtype), np.arange(1, dtype=dtype), np.full((1, 1), 3, dtype)))),
    )


def _where(draw: DrawFn, b: GraphBuilder) -> None:
    b.where(
        pick(draw, b, lambda s: s.dtype is DType.BOOL),
        pick(draw, b),
        choose(draw, (0, 1.5, pick(draw, b))),
    )


def _cast(draw: DrawFn, b: GraphBuilder) -> None:
    b.cast(
        pick(draw, b, lambda s: not s.dtype.is_float),
        dtype=choose(draw, ("float32", "int64", "bool", "float64")),
    )


def _clamp(draw: DrawFn, b: GraphBuilder) -> None:
    b.clamp(pick(draw, b, is_float), choose(draw, (None, -1.0)), 2.0)


def _reduce(draw: DrawFn, b: GraphBuilder) -> None:
    op = choose(draw, ("sum", "mean", "prod", "any", "all"))
    x = pick(draw, b)
    dims = choose(draw, (None, *range(b.spec(x).rank)))
    b.call(op, x, dim=dims, keepdim=choose(draw, (True, False)))


def _softmax(draw: DrawFn, b: GraphBuilder) -> None:
    x = pick(draw, b, lambda s: is_float(s) and is_ranked(s))
    b.call(choose(draw, ("softmax", "log_softmax", "cumsum")), x, dim=_axis(draw, b.spec(x)))


def _layer_norm(draw: DrawFn, b: GraphBuilder) -> None:
    x = pick(draw, b, lambda s: is_float(s) and is_ranked(s) and s.shape[-1] != 0)
    shape = b.spec(x).shape[-1:]
    b.call(choose(draw, ("layer_norm", "rms_norm")), x, normalized_shape=shape)


def _permute(draw: DrawFn, b: GraphBuilder) -> None:
    from hypothesis import strategies as st

    x = pick(draw, b)
    b.permute(x, dims=draw(st.permutations(range(b.spec(x).rank))))


def _view(draw: DrawFn, b: GraphBuilder) -> None:
    x = pick(draw, b, lambda s: 0 not in s.shape)
    shape = list(b.spec(x).shape)
    if len(shape) > 1 and choose(draw, (True, False)):
        i = int(choose(draw, range(len(shape) - 1)))
        shape[i : i + 2] = [shape[i] * shape[i + 1]]
    else:
        shape.insert(int(choose(draw, range(len(shape) + 1))), 1)
    b.view(x, size=shape)


def _squeeze(draw: DrawFn, b: GraphBuilder) -> None:
    x = pick(draw, b)
    ones = [i for i, d in enumerate(b.spec(x).shape) if d == 1]
    if ones and choose(draw, (True, False)):
        b.squeeze(x, dims=ones[:1])
    else:
        b.unsqueeze(x, dims=int(choose(draw, range(b.spec(x).rank + 1))))


def _expand(draw: DrawFn, b: GraphBuilder) -> None:
    x = pick(draw, b)
    b.expand(x, size=[2, *(3 if d == 1 else d for d in b.spec(x).shape)])


def _cat(draw: DrawFn, b: GraphBuilder) -> None:
    x = pick(draw, b, is_ranked)
    second = pick(draw, b, lambda s: s.dtype is b.spec(x).dtype and s.rank == b.spec(x).rank)
    b.cat(x, second, x, dim=_axis(draw, b.spec(x)))


def _slice(draw: DrawFn, b: GraphBuilder) -> None:
    x = pick(draw, b, lambda s: is_ranked(s) and s.is_static)
    b.slice(
        x, dim=_axis(draw, b.spec(x)), start=choose(draw, (0, 1, -2)), end=choose(draw, (None, 2, -1)), step=choose(draw, (1, 2))
    )  # fmt: skip


def _split(draw: DrawFn, b: GraphBuilder) -> None:
    x = pick(draw, b, lambda s: any(isinstance(d, int) and d > 1 for d in s.shape))
    dims = [(i, d) for i, d in enumerate(b.spec(x).shape) if isinstance(d, int) and d > 1]
    axis, size = choose(draw, dims)
    b.split(x, sizes=[1, size - 1], dim=axis)


def _pad(draw: DrawFn, b: GraphBuilder) -> None:
    x = pick(draw, b, is_float)
    rank = b.spec(x).rank
    b.pad(x, pads=[choose(draw, (0, 1, 2)) for _ in range(2 * rank)], value=choose(draw, (0.0, -1.5)))


def _matmul(draw: DrawFn, b: GraphBuilder) -> None:
    x = pick(draw, b, lambda s: is_float(s) and s.rank >= 2)
    order = [*range(b.spec(x).rank - 2), -1, -2]
    b.matmul(x, b.permute(x, dims=order))


def _topk(draw: DrawFn, b: GraphBuilder) -> None:
    x = pick(
        draw, b, lambda s: is_float(s) and is_ranked(s) and isinstance(s.shape[-1], int) and s.shape[-1] > 0
    )
    b.sort(x, stable=True, descending=choose(draw, (True, False)))


def _full(draw: DrawFn, b: GraphBuilder) -> None:
    x = pick(draw, b)
    b.full(size=b.spec(x).shape, value=choose(draw, (0, 2)), dtype=b.spec(x).dtype)


def _dims(draw: DrawFn, b: GraphBuilder) -> None:
    b.dims(values=b.spec(pick(draw, b, is_ranked)).shape)


def _fused(draw: DrawFn, b: GraphBuilder) -> None:
    """Add a fused node: a body of up to four pointwise steps over two values that broadcast."""
    x, y = pick(draw, b, is_float), pick(draw, b, is_float)
    body = GraphBuilder(choose(draw, ("body", 'a "quoted" body')))
    for name, value in {"a": x, "b": y}.items():
        body.input(name, b.spec(value))
    body.output("y", body.add("a", "b"))
    for _ in range(int(choose(draw, range(4)))):
        op = choose(draw, ("relu", "mul", "maximum", "sigmoid", "mean"))
        values = list(body.values)
        operands = [choose(draw, values), choose(draw, (0.5, *values))]
        body.output(
            body.fresh("z"), body.call(op, *operands[: 1 if op in ("relu", "sigmoid", "mean") else 2])
        )
    b.fused(x, y, body=body.build())


STEPS: dict[str, Callable[[DrawFn, GraphBuilder], None]] = {
    "unary": _unary,
    "binary": _binary,
    "number": _number,
    "constant": _constant,
    "where": _where,
    "cast": _cast,
    "clamp": _clamp,
    "reduce": _reduce,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "permute": _permute,
    "view": _view,
    "squeeze": _squeeze,
    "expand": _expand,
    "cat": _cat,
    "slice": _slice,
    "split": _split,
    "pad": _pad,
    "matmul": _matmul,
    "sort": _topk,
    "full": _full,
    "dims": _dims,
    "fused": _fused,
}
"""Every step by name."""
