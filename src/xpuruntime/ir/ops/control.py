"""Control flow: ``cond`` takes one of two branches, ``loop`` repeats a body, ``fail`` ends the run. Branches and bodies are graphs that the node holds.

A body reads nothing from outside: every value that it needs is an operand of the node and an input of the body. It has no weights and
no states. Dims of its inputs are those of the operands, or symbols of its own where a size changes from iteration to iteration.

``sizes`` has a dim for each dim of every result, in order: a symbol where the size is known only at run time (the branches differ, the
number of iterations is not known), otherwise 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from ...errors import IrError
from ...types import Dim, DimLike, DType, TensorSpec
from ..attributes import MAX_NESTED, Body
from ..schema import Mismatch, OpCall, OpEntry, op

if TYPE_CHECKING:
    from ..graph import Graph
    from ..parts import Node

__all__ = ["AT_RUN_TIME", "CONTROL", "ROWS", "bodies_of", "depth_of", "own_symbols"]

CONTROL = frozenset(["cond", "loop"])
"""Ops that hold bodies which run on their own."""
AT_RUN_TIME = CONTROL | {"fail", "opaque"}
"""Ops that no pass computes, merges or moves out of a run."""


def bodies_of(node: Node) -> tuple[Graph, ...]:
    """Return the branches or the body of a node; nothing for other ops."""
    match node.op:
        case "cond":
            return node.attrs["then_branch"], node.attrs["else_branch"]
        case "loop":
            return (node.attrs["body"],)
        case _:
            return ()


def depth_of(graph: Graph) -> int:
    """Return how deeply bodies are nested in a graph: 0 without control flow."""
    return max((1 + depth_of(body) for node in graph.nodes for body in bodies_of(node)), default=0)


def own_symbols(body: Graph, outer: frozenset[str]) -> frozenset[str]:
    """Return the symbols that get their sizes inside a body. ``outer``: symbols of the node's operands."""
    inputs = frozenset().union(*(v.spec.symbols for v in body.inputs if v.spec is not None))
    symbols: set[str] = set(inputs - outer)
    for node in body.nodes:
        for name in ("count", "sizes"):
            value = node.attrs.get(name)
            symbols.update(
                s
                for d in (value if isinstance(value, tuple) else (value,))
                if isinstance(d, Dim)
                for s in d.symbols
            )
    return frozenset(symbols)


def _body(c: OpCall, name: str, operands: Sequence[TensorSpec], first: int, carried: int) -> Graph:
    """Return a checked body. ``first``: inputs before those of the operands; ``carried``: the first operands, whose sizes may change."""
    if not isinstance(c[name], Body):
        raise Mismatch(f"{name} must be a graph", type(c[name]).__name__)
    body = cast("Graph", c[name])
    if body.weights or body.states:
        raise Mismatch(f"{name} cannot have weights or states", do="Make them operands of the node.")
    if len(body.inputs) != first + len(operands):
        raise Mismatch(
            f"{name} has another number of inputs than the node has operands for it",
            f"{len(body.inputs)} for {first + len(operands)}",
        )
    if depth_of(body) >= MAX_NESTED:
        raise Mismatch(f"bodies are nested more than {MAX_NESTED} levels deep")
    try:
        body.check()
        inputs, _ = body.input_specs, body.output_specs
    except IrError as error:
        raise Mismatch(f"{name} is not a valid graph", str(error)) from error
    known: frozenset[str] = frozenset().union(*(s.symbols for s in operands))
    for at, (value, operand) in enumerate(zip(inputs[first:], operands, strict=True)):
        if value.dtype is not operand.dtype or value.rank != operand.rank:
            raise Mismatch(f"input %{value.name} of {name} has another type", f"{value} for {operand}")
        for inner, outer in zip(value.shape, operand.shape, strict=True):
            changes = at < carried and isinstance(inner, Dim) and not inner.symbols <= known
            if inner != outer and not changes and isinstance(inner, int) == isinstance(outer, int):
                raise Mismatch(f"input %{value.name} of {name} has another shape", f"{value} for {operand}")
    return body


def _sized(c: OpCall, shapes: Sequence[tuple[DType, Sequence[DimLike | None]]]) -> list[TensorSpec]:
    """Return the results' specs. A dim that is not known (None) is the node's own symbol, from ``sizes``."""
    sizes: Sequence[DimLike] = c["sizes"]
    count = sum(len(shape) for _, shape in shapes)
    if sizes and len(sizes) != count:
        raise Mismatch("sizes needs one dim for each dim of the results", f"{len(sizes)} for {count}")
    at, specs = 0, []
    for dtype, shape in shapes:
        dims: list[DimLike] = []
        for d in shape:
            own = sizes[at] if sizes else 0
            at += 1
            if d is None and own == 0:
                raise Mismatch(
                    "a size of a result is known only at run time", do="Name it by a symbol in sizes."
                )
            dims.append(own if d is None else d)
        specs.append(TensorSpec(tuple(dims), dtype))
    return specs


def _condition(spec: TensorSpec | None) -> None:
    if spec is not None and (spec.dtype is not DType.BOOL or spec.rank):
        raise Mismatch("the condition must be one bool without dims", spec)


def _cond(c: OpCall) -> list[TensorSpec]:
    _condition(c.tensor(0))
    operands = c.tensors()[1:]
    branches = [_body(c, name, operands, 0, 0) for name in ("then_branch", "else_branch")]
    results = [b.output_specs for b in branches]
    if len(results[0]) != len(results[1]) or not results[0]:
        raise Mismatch(
            "the branches must have the same number of results, at least one",
            f"{len(results[0])} and {len(results[1])}",
        )
    outer: frozenset[str] = frozenset().union(*(s.symbols for s in operands))
    own = own_symbols(branches[0], outer) | own_symbols(branches[1], outer)
    shapes: list[tuple[DType, list[DimLike | None]]] = []
    for then, other in zip(*results, strict=True):
        if then.dtype is not other.dtype or then.rank != other.rank:
            raise Mismatch("the branches have results of different types", f"{then} and {other}")
        dims = [
            a if a == b and not _uses(a, own) else None for a, b in zip(then.shape, other.shape, strict=True)
        ]
        shapes.append((then.dtype, dims))
    return _sized(c, shapes)


def _fail(c: OpCall) -> TensorSpec:
    if any(isinstance(d, int) and d < 0 for d in c["size"]):
        raise Mismatch("a dim cannot be negative", list(c["size"]))
    return TensorSpec(tuple(c["size"]), c["dtype"])


def _uses(d: DimLike, symbols: frozenset[str]) -> bool:
    return isinstance(d, Dim) and bool(d.symbols & symbols)


def _loop(c: OpCall) -> list[TensorSpec]:
    trips, condition, carried = c.optional(0), c.optional(1), c["carried"]
    _condition(condition)
    if trips is not None and (trips.dtype is not DType.INT64 or trips.rank):
        raise Mismatch("the number of iterations must be one int64 without dims", trips)
    if trips is not None and c["trips"] is not None:
        raise Mismatch("the number of iterations is given twice", c["trips"])
    if trips is None and c["trips"] is None and not c["checked"]:
        raise Mismatch("the loop has no end", do="Give a number of iterations, or let the body decide.")
    operands = [s for s in c.rest(2) if s is not None]
    if not 0 <= carried <= len(operands):
        raise Mismatch("carried must be a number of operands", f"{carried} of {len(operands)}")
    body = _body(c, "body", operands, 1, carried)
    counter = body.input_specs[0]
    if counter.dtype is not DType.INT64 or counter.rank:
        raise Mismatch("the body's first input must be the int64 number of the iteration", counter)
    results = list(body.output_specs)
    if c["checked"]:
        _condition(results.pop(0) if results else None)
    if len(results) < max(carried, 1):
        raise Mismatch("the body needs a result for each carried value, and the node a result", len(results))
    outer: frozenset[str] = frozenset().union(*(s.symbols for s in operands))
    own = own_symbols(body, outer)
    shapes = list(_carried(body, operands[:carried], results[:carried], outer))
    count = c["trips"] if condition is None and not c["checked"] else None
    shapes += [
        (s.dtype, [count, *(None if _uses(d, own) else d for d in s.shape)]) for s in results[carried:]
    ]
    return _sized(c, shapes)


def _carried(
    body: Graph, operands: Sequence[TensorSpec], results: Sequence[TensorSpec], outer: frozenset[str]
) -> Iterator[tuple[DType, list[DimLike | None]]]:
    """Yield dtype and dims of the carried values after the loop; None for a dim that changes from iteration to iteration."""
    for value, spec, result in zip(body.input_specs[1:], operands, results, strict=False):
        if result.dtype is not spec.dtype or result.rank != spec.rank:
            raise Mismatch(f"the carried value %{value.name} changes its type", f"{spec} to {result}")
        dims: list[DimLike | None] = []
        for inner, after in zip(value.shape, result.shape, strict=True):
            if isinstance(inner, Dim) and not inner.symbols <= outer:
                dims.append(None)
            elif inner != after and isinstance(inner, int) == isinstance(after, int):
                raise Mismatch(f"the carried value %{value.name} changes its shape", f"{value} to {result}")
            else:
                dims.append(inner)
        yield spec.dtype, dims


ROWS: tuple[OpEntry, ...] = (
    op(
        "cond(condition, operands*; then_branch: graph, else_branch: graph, sizes: dims = []) -> outputs*",
        "control",
        _cond,
        onnx="If",
        meaning="the results of then_branch if the condition is true, else those of else_branch; both have the operands as inputs",
    ),
    op(
        "loop(trip_count?, condition?, operands?*; body: graph, carried: int = 0, trips: dim? = none, checked: bool = false,"
        " sizes: dims = []) -> outputs*",
        "control",
        _loop,
        onnx="Loop Scan",
        meaning="the body's inputs are the number of the iteration and the operands, of which the first `carried` become its first results;"
        " further results are stacked along a new first dim. It runs `trips` or trip_count times, not at all if the condition is false;"
        " if `checked`, the body's very first result is a bool that ends the loop when it is false",
    ),
    op(
        "fail(; size: dims, dtype: dtype, reason: str) -> y",
        "control",
        _fail,
        meaning="no result: a run that comes to this node fails with the reason. It is the body of a branch that the sizes of the inputs rule out",
    ),
)
