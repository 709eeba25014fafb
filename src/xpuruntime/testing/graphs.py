"""Hypothesis strategies for random well-typed graphs: what every pass, executor and file format is tested on.

    @given(graphs())
    def test_it(graph): ...

Every graph verifies, runs when symbols have the values of ``SYMBOLS``, and holds only ops that are defined for every input
value (no index can fall outside): an interpreter and a backend must agree on it. Needs the ``hypothesis`` package, which is
imported when a strategy is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import IrError
from ..ir import Graph, GraphBuilder, Source, infer
from ..ir.symbols import substitute
from ..types import Dim, DimLike, DType, TensorSpec, dim

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

__all__ = ["DTYPES", "LAYERS", "STEPS", "SYMBOLS", "arrays_for", "graphs"]

DTYPES = (DType.FLOAT32, DType.FLOAT32, DType.FLOAT64, DType.INT64, DType.INT32, DType.BOOL)
_SIZES: tuple[DimLike, ...] = (0, 1, 1, 2, 3, 4, 5, dim("n"), dim("n"), dim("m"))
SYMBOLS: dict[str, DimLike] = {"n": 3, "m": 2}
_TEXTS = ("layer.0", "Conv_0", 'a "quoted" name', "ünï", "line\nbreak", "# | ?", "back\\slash")


def graphs(
    *,
    max_nodes: int = 12,
    symbolic: bool = True,
    dtypes: Sequence[DType] = DTYPES,
    steps: Sequence[str] = (),
    opaque: bool = False,
    states: bool = False,
    sources: bool = False,
) -> SearchStrategy[Graph]:
    """Random graphs of up to ``max_nodes`` steps (a step may add a constant besides its node).

    symbolic: dims may be the symbols n and m, and expressions of them. steps: names of ``STEPS`` or ``LAYERS`` to use (all
    of ``STEPS`` by default).
    opaque: with nodes of unknown vocabulary. states: with a state that the run changes. sources: with sources and odd names.
    """
    from hypothesis import strategies as st

    chosen = [{**STEPS, **LAYERS}[s] for s in steps] or list(STEPS.values())

    @st.composite
    def make(draw: DrawFn) -> Graph:
        sizes = [s for s in _SIZES if symbolic or isinstance(s, int)]
        odd = iter([*_TEXTS, *map(str, range(10_000))]) if sources else None
        b = GraphBuilder(draw(st.sampled_from(_TEXTS)) if sources else "random")
        shape = st.lists(st.sampled_from(sizes), max_size=4).map(tuple)
        for i in range(draw(st.integers(1, 3))):
            spec = TensorSpec(draw(shape), draw(st.sampled_from(dtypes)))
            if draw(st.booleans()) and spec.is_static and b.inputs:
                b.weight(
                    f"w{i}", spec, **({"file": "w.safetensors", "format": "safetensors"} if sources else {})
                )
            else:
                b.input(f"x{i}" if odd is None else next(odd), spec)
        for _ in range(draw(st.integers(1, max_nodes))):
            facts = draw(st.lists(st.sampled_from(_TEXTS), min_size=4, max_size=4)) if sources else []
            made = [Source(facts[0], facts[1], facts[2], facts[3], draw(st.integers(0, 9)))] if facts else []
            with b.source(*made):
                before = len(b.nodes)
                try:
                    draw(st.sampled_from(chosen))(draw, b)
                    _check_values(b, before)
                except IrError:  # the step does not fit what was drawn
                    for node in b.nodes[before:]:
                        for made_value in node.outputs:
                            del b.values[made_value.name]
                    del b.nodes[before:]
        values = [n for n, v in b.values.items() if v.spec is not None]
        if opaque:
            b.opaque(
                "Loop",
                [values[-1], None],
                [("strange", None)],
                reason="control flow",
                attributes={"depth": 2},
            )
            b.output("strange")
        if states:
            last = b.spec(values[-1])
            if last.is_static:
                b.state("state", last)
                b.set_state("state", values[-1])
        used = {i for node in b.nodes for i in node.values}
        for i, name in enumerate(n for n in values if n not in used):
            b.output(f"y{i}", name)
        if sources:
            b.metadata = {"opset": 17, "not a word": [1, 2.5, None, {"x": float("nan")}]}
        return b.build()

    return make()


def _check_values(b: GraphBuilder, start: int) -> None:
    """Nodes from ``start`` on must also fit when symbols have their values: n against 4 infers, but cannot run with n = 3."""
    for node in b.nodes[start:]:
        operands = [substitute(b.spec(i), SYMBOLS) if isinstance(i, str) else i for i in node.inputs]
        got = infer(node.op, operands, substitute(node.attrs, SYMBOLS))
        if any(substitute(v.spec, SYMBOLS) != spec for v, spec in zip(node.outputs, got, strict=False)):
            raise IrError("random graph", "symbols hide a difference")


def arrays_for(
    graph: Graph, seed: int = 0, symbols: dict[str, int] | None = None
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, np.ndarray[Any, Any]]]:
    """Random inputs and weights of a graph by name, small numbers of both signs; symbols default to ``SYMBOLS``."""
    known = {**SYMBOLS, **(symbols or {})}
    rng = np.random.default_rng(seed)

    def array(spec: TensorSpec) -> np.ndarray[Any, Any]:
        shape = tuple(int(d.substitute(known)) if isinstance(d, Dim) else d for d in spec.shape)  # type: ignore[arg-type]
        if spec.dtype is DType.BOOL:
            return rng.integers(0, 2, shape).astype(bool)
        if spec.dtype.is_integer:
            return rng.integers(-4 if spec.dtype.is_signed else 0, 8, shape).astype(spec.dtype.numpy)
        return rng.normal(size=shape).astype(spec.dtype.numpy)

    inputs = {s.name: array(s) for s in graph.input_specs}
    return inputs, {w.name: array(w.spec) for w in graph.weights}


# ── steps: each draws operands among the values made so far and appends a node; an IrError means it does not fit ──


def _pick(draw: DrawFn, b: GraphBuilder, where: Callable[[TensorSpec], bool] = lambda _: True) -> str:
    from hypothesis import strategies as st

    fitting = [n for n, v in b.values.items() if v.spec is not None and where(v.spec)]
    if not fitting:
        raise IrError("random graph", "nothing fits")
    return draw(st.sampled_from(fitting))


def _choose(draw: DrawFn, options: Sequence[Any]) -> Any:
    from hypothesis import strategies as st

    return draw(st.sampled_from(list(options)))


def _float(spec: TensorSpec) -> bool:
    return spec.dtype.is_float


def _ranked(spec: TensorSpec) -> bool:
    return spec.rank > 0


def _axis(draw: DrawFn, spec: TensorSpec) -> int:
    return int(_choose(draw, range(-spec.rank, spec.rank)))


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
    b.call(_choose(draw, _UNARY), _pick(draw, b, lambda s: s.dtype is not DType.BOOL))


def _binary(draw: DrawFn, b: GraphBuilder) -> None:
    b.call(_choose(draw, _BINARY), _pick(draw, b), _pick(draw, b))


def _number(draw: DrawFn, b: GraphBuilder) -> None:
    number = _choose(draw, (0, 1, -2, 0.5, -1.5, True, float("inf"), float("nan"), -0.0))
    operands = [_pick(draw, b), number]
    if _choose(draw, (True, False)):
        operands.reverse()
    b.call(_choose(draw, ("add", "mul", "maximum", "sub", "eq")), *operands)


def _constant(draw: DrawFn, b: GraphBuilder) -> None:
    x = _pick(draw, b, lambda s: s.dtype is not DType.BOOL)
    dtype = b.spec(x).dtype.numpy
    b.add(
        x,
        b.constant(_choose(draw, (np.ones((), dtype), np.arange(1, dtype=dtype), np.full((1, 1), 3, dtype)))),
    )


def _where(draw: DrawFn, b: GraphBuilder) -> None:
    b.where(
        _pick(draw, b, lambda s: s.dtype is DType.BOOL),
        _pick(draw, b),
        _choose(draw, (0, 1.5, _pick(draw, b))),
    )


def _cast(draw: DrawFn, b: GraphBuilder) -> None:
    b.cast(
        _pick(draw, b, lambda s: not s.dtype.is_float),
        dtype=_choose(draw, ("float32", "int64", "bool", "float64")),
    )


def _clamp(draw: DrawFn, b: GraphBuilder) -> None:
    b.clamp(_pick(draw, b, _float), _choose(draw, (None, -1.0)), 2.0)


def _reduce(draw: DrawFn, b: GraphBuilder) -> None:
    op = _choose(draw, ("sum", "mean", "prod", "any", "all"))
    x = _pick(draw, b)
    dims = _choose(draw, (None, *range(b.spec(x).rank)))
    b.call(op, x, dim=dims, keepdim=_choose(draw, (True, False)))


def _softmax(draw: DrawFn, b: GraphBuilder) -> None:
    x = _pick(draw, b, lambda s: _float(s) and _ranked(s))
    b.call(_choose(draw, ("softmax", "log_softmax", "cumsum")), x, dim=_axis(draw, b.spec(x)))


def _layer_norm(draw: DrawFn, b: GraphBuilder) -> None:
    x = _pick(draw, b, lambda s: _float(s) and _ranked(s) and s.shape[-1] != 0)
    shape = b.spec(x).shape[-1:]
    b.call(_choose(draw, ("layer_norm", "rms_norm")), x, normalized_shape=shape)


def _permute(draw: DrawFn, b: GraphBuilder) -> None:
    from hypothesis import strategies as st

    x = _pick(draw, b)
    b.permute(x, dims=draw(st.permutations(range(b.spec(x).rank))))


def _view(draw: DrawFn, b: GraphBuilder) -> None:
    x = _pick(draw, b, lambda s: 0 not in s.shape)
    shape = list(b.spec(x).shape)
    if len(shape) > 1 and _choose(draw, (True, False)):
        i = int(_choose(draw, range(len(shape) - 1)))
        shape[i : i + 2] = [shape[i] * shape[i + 1]]
    else:
        shape.insert(int(_choose(draw, range(len(shape) + 1))), 1)
    b.view(x, size=shape)


def _squeeze(draw: DrawFn, b: GraphBuilder) -> None:
    x = _pick(draw, b)
    ones = [i for i, d in enumerate(b.spec(x).shape) if d == 1]
    if ones and _choose(draw, (True, False)):
        b.squeeze(x, dims=ones[:1])
    else:
        b.unsqueeze(x, dims=int(_choose(draw, range(b.spec(x).rank + 1))))


def _expand(draw: DrawFn, b: GraphBuilder) -> None:
    x = _pick(draw, b)
    b.expand(x, size=[2, *(3 if d == 1 else d for d in b.spec(x).shape)])


def _cat(draw: DrawFn, b: GraphBuilder) -> None:
    x = _pick(draw, b, _ranked)
    other = _pick(draw, b, lambda s: s.dtype is b.spec(x).dtype and s.rank == b.spec(x).rank)
    b.cat(x, other, x, dim=_axis(draw, b.spec(x)))


def _slice(draw: DrawFn, b: GraphBuilder) -> None:
    x = _pick(draw, b, lambda s: _ranked(s) and s.is_static)
    b.slice(
        x, dim=_axis(draw, b.spec(x)), start=_choose(draw, (0, 1, -2)), end=_choose(draw, (None, 2, -1)), step=_choose(draw, (1, 2))
    )  # fmt: skip


def _split(draw: DrawFn, b: GraphBuilder) -> None:
    x = _pick(draw, b, lambda s: any(isinstance(d, int) and d > 1 for d in s.shape))
    dims = [(i, d) for i, d in enumerate(b.spec(x).shape) if isinstance(d, int) and d > 1]
    axis, size = _choose(draw, dims)
    b.split(x, sizes=[1, size - 1], dim=axis)


def _pad(draw: DrawFn, b: GraphBuilder) -> None:
    x = _pick(draw, b, _float)
    rank = b.spec(x).rank
    b.pad(x, pads=[_choose(draw, (0, 1, 2)) for _ in range(2 * rank)], value=_choose(draw, (0.0, -1.5)))


def _matmul(draw: DrawFn, b: GraphBuilder) -> None:
    x = _pick(draw, b, lambda s: _float(s) and s.rank >= 2)
    order = [*range(b.spec(x).rank - 2), -1, -2]
    b.matmul(x, b.permute(x, dims=order))


def _topk(draw: DrawFn, b: GraphBuilder) -> None:
    x = _pick(
        draw, b, lambda s: _float(s) and _ranked(s) and isinstance(s.shape[-1], int) and s.shape[-1] > 0
    )
    b.sort(x, stable=True, descending=_choose(draw, (True, False)))


def _full(draw: DrawFn, b: GraphBuilder) -> None:
    x = _pick(draw, b)
    b.full(size=b.spec(x).shape, value=_choose(draw, (0, 2)), dtype=b.spec(x).dtype)


def _dims(draw: DrawFn, b: GraphBuilder) -> None:
    b.dims(values=b.spec(_pick(draw, b, _ranked)).shape)


def _fused(draw: DrawFn, b: GraphBuilder) -> None:
    """A body of up to four pointwise steps over one or two values that broadcast."""
    x, y = _pick(draw, b, _float), _pick(draw, b, _float)
    body = GraphBuilder(_choose(draw, ("body", 'a "quoted" body')))
    for name, value in {"a": x, "b": y}.items():
        body.input(name, b.spec(value))
    body.output("y", body.add("a", "b"))
    for _ in range(int(_choose(draw, range(4)))):
        op = _choose(draw, ("relu", "mul", "maximum", "sigmoid", "mean"))
        values = list(body.values)
        operands = [_choose(draw, values), _choose(draw, (0.5, *values))]
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

# ── layers: what models are made of, written out as exporters do; weights are made on the way. For tests of passes ──


def _new_weight(b: GraphBuilder, *shape: int) -> str:
    return b.weight(b.fresh("weight"), TensorSpec(shape, DType.FLOAT32))


def _activate(draw: DrawFn, b: GraphBuilder, x: str) -> str:
    """An activation, whole or in parts, or none."""
    match _choose(
        draw, ("none", "relu", "silu", "gelu", "clamp", "written silu", "written gelu", "hardswish")
    ):
        case "none":
            return x
        case "clamp":
            return str(b.clamp(x, 0.0, 6.0))
        case "written silu":
            return str(b.mul(x, b.sigmoid(x)))
        case "written gelu":
            return str(b.mul(b.mul(x, 0.5), b.add(b.erf(b.div(x, 2.0**0.5)), 1.0)))
        case name:
            return str(b.call(name, x))


def _static_float(spec: TensorSpec, rank: int) -> bool:
    return spec.dtype is DType.FLOAT32 and spec.rank == rank and spec.is_static and 0 not in spec.shape


def _residual(draw: DrawFn, b: GraphBuilder, x: str) -> str:
    """Perhaps with another value of its type added."""
    others = [n for n, v in b.values.items() if v.spec == b.spec(x) and n != x]
    return (
        str(b.add(*draw_order(draw, x, _choose(draw, others))))
        if others and _choose(draw, (True, False))
        else x
    )


def draw_order(draw: DrawFn, *values: str) -> tuple[str, ...]:
    """The values in some order."""
    from hypothesis import strategies as st

    return tuple(draw(st.permutations(values)))


def _convolution_layer(draw: DrawFn, b: GraphBuilder) -> None:
    """Convolution, perhaps a batch norm, a residual, an activation."""
    x = _pick(draw, b, lambda s: _static_float(s, 4))
    channels = int(b.spec(x).shape[1])  # type: ignore[arg-type]
    out = int(_choose(draw, (channels, 1, 3)))
    kernel = int(_choose(draw, (1, 1, 3)))
    y = b.convolution(
        x, _new_weight(b, out, channels, kernel, kernel), *([_new_weight(b, out)] if _choose(draw, (True, False)) else []),
        stride=[1, 1], padding=[kernel // 2] * 2, dilation=[1, 1],
    )  # fmt: skip
    if _choose(draw, (True, False)):
        scale, shift, mean, deviation = (_new_weight(b, out) for _ in range(4))
        y = b.batch_norm(y, scale, shift, mean, b.mul(deviation, deviation), eps=_choose(draw, (1e-5, 0.5)))
    _activate(draw, b, _residual(draw, b, y))


def _linear_layer(draw: DrawFn, b: GraphBuilder) -> None:
    """A product with a weight in one of its writings, perhaps a bias, a residual, an activation."""
    x = _pick(draw, b, lambda s: _static_float(s, 2) or _static_float(s, 3))
    size = int(b.spec(x).shape[-1])  # type: ignore[arg-type]
    out = int(_choose(draw, (size, 3)))
    match _choose(draw, ("linear", "matmul", "permuted")):
        case "linear":
            y = b.linear(x, _new_weight(b, out, size))
        case "matmul":
            y = b.matmul(x, _new_weight(b, size, out))
        case _:
            y = b.matmul(x, b.permute(_new_weight(b, out, size), dims=[1, 0]))
    if _choose(draw, (True, False)):
        y = b.add(*draw_order(draw, y, _new_weight(b, out)))
    _activate(draw, b, _residual(draw, b, y))


def _written_norm(draw: DrawFn, b: GraphBuilder) -> None:
    """rms_norm or layer_norm in parts."""
    x = _pick(draw, b, lambda s: _static_float(s, 2) or _static_float(s, 3))
    last = b.spec(x).rank - 1
    centred = b.sub(x, b.mean(x, dim=last, keepdim=True)) if _choose(draw, (True, False)) else x
    square = _choose(draw, (lambda: b.mul(centred, centred), lambda: b.pow(centred, 2.0)))()
    spread = b.add(b.mean(square, dim=last, keepdim=True), 0.1)
    y = b.mul(centred, b.rsqrt(spread)) if _choose(draw, (True, False)) else b.div(centred, b.sqrt(spread))
    b.mul(*draw_order(draw, y, _new_weight(b, int(b.spec(x).shape[-1]))))  # type: ignore[arg-type]


def _written_attention(draw: DrawFn, b: GraphBuilder) -> None:
    """softmax(q @ k.T * scale + mask) @ v over heads that a view splits off, keys and values repeated or not."""
    x = _pick(draw, b, lambda s: _static_float(s, 3))
    batch, length, size = (int(d) for d in b.spec(x).shape)  # type: ignore[arg-type]
    heads, each = int(_choose(draw, (2, 4))), int(_choose(draw, (1, 4)))
    groups = int(_choose(draw, (heads, heads, 1)))

    def projected(count: int) -> str:
        y = b.view(b.linear(x, _new_weight(b, count * each, size)), size=[batch, length, count, each])
        return str(b.permute(y, dims=[0, 2, 1, 3]))

    def repeated(y: str) -> str:
        if groups == heads:
            return y
        y = b.expand(b.unsqueeze(y, dims=[2]), size=[batch, groups, heads // groups, length, each])
        return str(b.view(y, size=[batch, heads, length, each]))

    q, k, v = projected(heads), repeated(projected(groups)), repeated(projected(groups))
    scores = b.matmul(q, b.permute(k, dims=[0, 1, 3, 2]))
    scores = _choose(draw, (lambda: b.div(scores, 3.0), lambda: b.mul(scores, 0.7), lambda: scores))()
    mask = _choose(draw, ("none", "added", "bool"))
    if mask == "added":
        scores = b.add(scores, _new_weight(b, length, length))
    elif mask == "bool":
        seen = b.constant(np.tril(np.ones((length, length), bool)))
        scores = b.where(seen, scores, _choose(draw, (float("-inf"), -3.4028234663852886e38)))
    y = b.permute(b.matmul(b.softmax(scores, dim=-1), v), dims=[0, 2, 1, 3])
    b.view(y, size=[batch, length, heads * each])


LAYERS: dict[str, Callable[[DrawFn, GraphBuilder], None]] = {
    "convolution_layer": _convolution_layer,
    "linear_layer": _linear_layer,
    "written_norm": _written_norm,
    "written_attention": _written_attention,
}
"""Layers by name."""
