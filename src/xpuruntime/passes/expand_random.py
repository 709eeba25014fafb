"""expand_random: write random ops as arithmetic on random bits, which depend on a seed and the number of the run.

    uniform     (bits >> 8) * 2**-24             normal      sqrt(-2 * log(u)) * cos(2 * pi * v)        bernoulli    u < p

A graph with draws that have no seed of their own gets a state: the seed and the number of the run, which counts up. Each draw has a stream of
its own, which its name decides, so that the parts of a divided model differ. A draw with a seed gives the same numbers in each run.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np

from ..ir import Editor, Graph, Node, Source, State, Value, Weight
from ..ir.nodes import make_node
from ..types import DType, TensorSpec
from ._lib.expansion import Expansion
from .context import PassContext

__all__ = ["run"]

_STATE = "random.state"
_SPEC = TensorSpec((2,), DType.INT64)
_MANTISSA = {DType.FLOAT16: 11, DType.BFLOAT16: 8, DType.FLOAT32: 24}
"""Bits of a uniform number: all of its values are exact in the dtype."""


def run(graph: Graph, context: PassContext | None = None, seed: int = 0) -> Graph:
    """Return the graph without random ops, except those whose kernel a policy names and those of symbolic sizes.

    If a seed is given, the graph gets its state also for draws of symbolic sizes, which a later call expands.
    """
    context = context or PassContext()
    every = [n for n in graph.nodes if n.op in _EXPANSIONS and _draws(n) and not context.is_forced(graph, n)]
    drawn = [n for n in every if _is_static(graph, n)]
    streams, state = _streams(drawn), ""
    if any(n.attrs["seed"] is None for n in (every if seed else drawn)):
        graph, state = _with_state(graph, seed)
    if not drawn:
        return graph

    def rule(editor: Editor, node: Node) -> None:
        if node.name in streams:
            _EXPANSIONS[node.op](_Draw(editor, node, state, streams[node.name]))

    return graph.rewrite(rule)


def _streams(nodes: Sequence[Node]) -> dict[str, int]:
    """Return the first of the two streams of each node."""
    taken: dict[int, str] = {}
    for node in nodes:
        stream = zlib.crc32(node.name.encode()) & ~1
        while stream in taken:
            stream = (stream + 2) & 0xFFFFFFFF
        taken[stream] = node.name
    return {name: stream for stream, name in taken.items()}


def _draws(node: Node) -> bool:
    if node.op == "dropout":
        return bool(node.attrs["train"] and node.attrs["p"])
    return all(v.spec is not None and v.spec.dtype in _TYPES for v in node.outputs[:1])


def _is_static(graph: Graph, node: Node) -> bool:
    specs = [graph.values[name].spec for name in (*node.values, *(v.name for v in node.outputs))]
    return all(s is not None and not s.symbols for s in specs)


_TYPES = frozenset(_MANTISSA) | {
    DType.FLOAT64,
    DType.BOOL,
    DType.INT64,
    DType.INT32,
    DType.INT16,
    DType.INT8,
    DType.UINT8,
}


def _with_state(graph: Graph, seed: int) -> tuple[Graph, str]:
    """Return the graph with the state, and the state's name. A graph that has one keeps it."""
    counts = {n.name for n in graph.nodes if n.op == "add" and Source(_STATE) in n.sources}
    for state in graph.states:
        if state.next in counts:
            return graph, state.name
    taken = set(graph.values) | graph.former_names
    name, number = _STATE, 0
    while {name, f"{name}.one", f"{name}.counted", f"{name}.first"} & taken:
        number += 1
        name = f"{_STATE}_{number}"
    values = {**graph.values, name: Value(name, _SPEC)}
    ones = make_node(
        "constant",
        (),
        {"value": np.array([0, 1], np.int64)},
        lambda count: [f"{name}.one"],
        values,
        sources=(Source(_STATE),),
    )
    values[ones.name] = ones.outputs[0]
    count = make_node(
        "add", (name, ones.name), {}, lambda count: [f"{name}.counted"], values, sources=ones.sources
    )
    initial, weights = None, graph.weights
    if seed:
        initial = f"{name}.first"
        data = Weight.encoded(np.array([seed, 0], np.int64))
        weights = (*weights, Weight(Value(initial, _SPEC), key=initial, data=data))
    states = (*graph.states, State(Value(name, _SPEC), initial, count.name))
    return graph.replace(nodes=(ones, count, *graph.nodes), states=states, weights=weights), name


class _Draw(Expansion):
    """A random node, and the bits that it reads."""

    def __init__(self, editor: Editor, node: Node, state: str, stream: int) -> None:
        super().__init__(editor, node)
        self.state, self.stream = state, stream

    def bits(self, shape: tuple[int, ...], bits: int, second: bool = False) -> str:
        """Return random integers of 32 or 53 bits."""
        seed = self.node.attrs["seed"]
        operands = (self.state,) if seed is None else ()
        count = math.prod(shape)
        more = {"bits": bits, "stream": self.stream + second, "seed": seed or 0}
        return self("view", self("random_bits", *operands, count=count, **more), size=shape)

    def uniform(self, shape: tuple[int, ...], dtype: DType) -> str:
        """Return numbers in [0, 1) in float64 or float32 that are exact in ``dtype``."""
        wide = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
        mantissa = _MANTISSA.get(dtype, 53 if wide is DType.FLOAT64 else 24)
        bits = self.bits(shape, 53 if wide is DType.FLOAT64 else 32)
        if wide is DType.FLOAT32:
            bits = self("bitwise_right_shift", bits, 32 - mantissa)
        return self("mul", self("cast", bits, dtype=wide), 2.0**-mantissa)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(d) for d in self.node.spec.shape)  # type: ignore[arg-type]

    def done(self, value: str, position: int = 0) -> None:
        """Replace a result by a value, in the result's type."""
        old = self.node.outputs[position]
        assert old.spec is not None
        if self.spec(value).dtype is not old.spec.dtype:
            value = self("cast", value, dtype=old.spec.dtype)
        self.editor.forward(old.name, value)


def _rand(draw: _Draw) -> None:
    low, high = draw.node.attrs["low"], draw.node.attrs["high"]
    value = draw.uniform(draw.shape, draw.node.spec.dtype)
    if (low, high) != (0.0, 1.0):
        value = draw("add", draw("mul", value, high - low), low)
        if draw.spec(value).dtype is not draw.node.spec.dtype:
            value = draw("cast", value, dtype=draw.node.spec.dtype)
        if high > low:  # rounding reaches the bound, which is outside
            value = draw("where", draw("lt", value, high), value, low)
    draw.done(value)


def _randn(draw: _Draw) -> None:
    """Emit the method of Box and Muller, with a uniform number in (0, 1) for the radius."""
    wide = DType.FLOAT64 if draw.node.spec.dtype is DType.FLOAT64 else DType.FLOAT32
    bits = 53 if wide is DType.FLOAT64 else 32
    first, second = (
        draw("mul", draw("cast", draw.bits(draw.shape, bits, k), dtype=wide), 2.0**-bits)
        for k in (False, True)
    )
    radius = draw("sqrt", draw("mul", draw("log", draw("add", first, 2.0 ** -(bits + 1))), -2.0))
    value = draw("mul", radius, draw("cos", draw("mul", second, 2 * math.pi)))
    mean, std = draw.node.attrs["mean"], draw.node.attrs["std"]
    value = value if std == 1 else draw("mul", value, std)
    draw.done(value if mean == 0 else draw("add", value, mean))


def _randperm(draw: _Draw) -> None:
    _, order = draw.editor.insert(draw.node, "sort", draw.bits(draw.shape, 53), dim=0)
    draw.done(order)


def _below(draw: _Draw, probability: str) -> str:
    dtype = draw.spec(probability).dtype
    return draw("lt", draw.uniform(draw.shape, dtype), probability)


def _bernoulli(draw: _Draw) -> None:
    probability = draw.wide(0)
    if not draw.spec(probability).dtype.is_float:
        probability = draw("cast", probability, dtype=DType.FLOAT32)
    draw.done(_below(draw, probability))


def _multinomial(draw: _Draw) -> None:
    """Emit the class in whose part of the cumulative sum a uniform number is. The sum rounds, so that the last edge is not 1."""
    wide, rank = DType.FLOAT64, draw.node.spec.rank
    weight = draw("softmax", draw("cast", draw.input(0), dtype=wide), dim=rank - 1)
    edges = draw("cumsum", weight, dim=rank - 1)
    classes = int(draw.spec(edges).shape[-1])  # type: ignore[arg-type]
    total = draw("slice", edges, dim=rank - 1, start=classes - 1, end=classes)
    number = draw("unsqueeze", draw("mul", draw.uniform(draw.shape, wide), total), dims=(rank,))
    passed = draw("ge", number, draw("unsqueeze", edges, dims=(rank - 1,)))
    place = draw("sum", draw("cast", passed, dtype=DType.INT64), dim=(rank,), keepdim=False)
    draw.done(draw("clamp", place, 0, classes - 1))


def _dropout(draw: _Draw) -> None:
    """Emit a product with 0 or the scale, as in PyTorch: a dropped NaN or infinity gives NaN."""
    p, x = draw.node.attrs["p"], draw.wide(0)
    kept = draw("ge", draw.uniform(draw.shape, draw.spec(x).dtype), p)
    masked = draw("mul", x, draw("cast", kept, dtype=draw.spec(x).dtype))
    draw.done(draw("mul", masked, 1 / (1 - p) if p < 1 else 0.0))
    if len(draw.node.outputs) > 1:
        draw.done(kept, 1)


_EXPANSIONS = {
    "rand": _rand,
    "randn": _randn,
    "randperm": _randperm,
    "bernoulli": _bernoulli,
    "multinomial": _multinomial,
    "dropout": _dropout,
}
