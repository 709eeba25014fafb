"""Hypothesis strategies for random well-typed graphs, for tests of passes, executors and file formats.

    @given(graphs())
    def test_it(graph): ...

Every graph verifies and runs with the symbols' values in ``SYMBOLS``. Its ops are defined for every input value (no index can be out of
range), so an interpreter and a backend must agree on it. Needs the ``hypothesis`` package, which is imported when a strategy is created.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xpuruntime.errors import IrError
from xpuruntime.ir import Graph, GraphBuilder, Source, infer
from xpuruntime.ir.shapes.symbols import substitute
from xpuruntime.types import Dim, DimLike, DType, TensorSpec, dim

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy
from .graph_layers import LAYERS
from .graph_steps import STEPS

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
    """Return a strategy of random graphs of up to ``max_nodes`` steps. A step may also add a constant.

    symbolic: dims may be the symbols n and m, and expressions of them.
    steps:    names of ``STEPS`` or ``LAYERS`` to use. Default: all of ``STEPS``.
    opaque:   add a node of an unknown op.
    states:   add a state that the run changes.
    sources:  add sources and unusual names.
    """
    from hypothesis import strategies as st

    step_functions = [{**STEPS, **LAYERS}[s] for s in steps] or list(STEPS.values())

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
            node_sources = (
                [Source(facts[0], facts[1], facts[2], facts[3], draw(st.integers(0, 9)))] if facts else []
            )
            with b.source(*node_sources):
                num_nodes = len(b.nodes)
                try:
                    draw(st.sampled_from(step_functions))(draw, b)
                    _check_values(b, num_nodes)
                except IrError:  # the step does not fit the drawn operands
                    for node in b.nodes[num_nodes:]:
                        for output in node.outputs:
                            del b.values[output.name]
                    del b.nodes[num_nodes:]
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
        used_names = {i for node in b.nodes for i in node.values}
        for i, name in enumerate(n for n in values if n not in used_names):
            b.output(f"y{i}", name)
        if sources:
            b.metadata = {"opset": 17, "not a word": [1, 2.5, None, {"x": float("nan")}]}
        return b.build()

    return make()


def _check_values(b: GraphBuilder, start: int) -> None:
    """Check that the nodes from ``start`` on also fit with the symbols' values: shapes n and 4 can be inferred, but not run with n = 3."""
    for node in b.nodes[start:]:
        operands = [substitute(b.spec(i), SYMBOLS) if isinstance(i, str) else i for i in node.inputs]
        specs = infer(node.op, operands, substitute(node.attrs, SYMBOLS))
        if any(substitute(v.spec, SYMBOLS) != spec for v, spec in zip(node.outputs, specs, strict=False)):
            raise IrError("random graph", "symbols hide a difference")


def arrays_for(
    graph: Graph, seed: int = 0, symbols: dict[str, int] | None = None
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, np.ndarray[Any, Any]]]:
    """Return random inputs and weights of a graph by name: small numbers of both signs. Symbols default to ``SYMBOLS``."""
    sizes = {**SYMBOLS, **(symbols or {})}
    rng = np.random.default_rng(seed)

    def array(spec: TensorSpec) -> np.ndarray[Any, Any]:
        shape = tuple(int(d.substitute(sizes)) if isinstance(d, Dim) else d for d in spec.shape)  # type: ignore[arg-type]
        if spec.dtype is DType.BOOL:
            return rng.integers(0, 2, shape).astype(bool)
        if spec.dtype.is_integer:
            return rng.integers(-4 if spec.dtype.is_signed else 0, 8, shape).astype(spec.dtype.numpy)
        return rng.normal(size=shape).astype(spec.dtype.numpy)

    inputs = {s.name: array(s) for s in graph.input_specs}
    return inputs, {w.name: array(w.spec) for w in graph.weights}
