"""Evaluation of ops and graphs on arrays.

An op: infer, prepare, compute, round to the inferred types, check the inferred shapes. A graph: bind symbols to the feeds, load weights,
evaluate node by node, return the outputs. Both are in one file, since the body of a ``fused`` node is a graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ...errors import IrError
from ...types import Dim, DType, TensorSpec
from ..attributes import Attrs
from ..graph import Graph, Node, Source
from ..infer import check_operands, find_op, infer_normal, normalize, output_count, speaker
from ..ops.control import CONTROL, bodies_of
from ..schema import OpEntry
from ..shapes.symbols import specialize
from . import table
from .feeds import Weights, bind_symbols, start_values
from .numbers import Array, dtype_of, to
from .rule import InterpRule, Operand, plain

__all__ = ["RULES", "apply", "evaluate", "run", "trace"]

Watch: TypeAlias = "Callable[[Node, tuple[Array, ...]], None]"
_OPEN = ("count", "sizes")
"""Attributes whose symbols stand for sizes that the node itself determines."""
_MAX_STACKED = 1 << 33
"""Maximum bytes that a loop stacks, so that a wrong number of iterations cannot fill the memory."""


def apply(op: str, *operands: Any, outputs: int | None = None, **attrs: Any) -> tuple[Array, ...]:
    """Return the results of an op on arrays (numbers if the op takes them, None for absent ones).

    outputs: number of results; by default, those that are not optional. Raises IrError as inference does, and for values that the
    op is not defined for (an index out of range, an integer division by zero).
    """
    row = find_op(op)
    values = [o if o is None or isinstance(o, bool | int | float) else np.asarray(o) for o in operands]
    return _compute(row, values, attrs, outputs, speaker(row, "", ()), "", ())


def evaluate(
    node: Node, arrays: Mapping[str, Array], symbols: Mapping[str, int] | None = None
) -> tuple[Array, ...]:
    """Return the results of one node. ``arrays``: its inputs by name; ``symbols``: values of the symbols in its attributes.

    Raises IrError for an opaque node, a missing value, and as ``apply`` does.
    """
    row = find_op(node.op)
    who = speaker(row, node.name, node.sources)
    missing = [name for name in node.values if name not in arrays]
    if missing:
        raise IrError(who, "reads a value that was not passed", got=f"%{missing[0]}")
    operands: list[Operand] = [arrays[i] if isinstance(i, str) else i for i in node.inputs]
    attrs = {k: concrete(v, symbols or {}) for k, v in node.attrs.items()}
    if node.op in CONTROL:
        operands = _as_declared(node, operands)
    open_dims = [str(d) for k, v in attrs.items() if k not in _OPEN for d in _dims(v)]
    if open_dims:
        raise IrError(who, "uses a dim that no input determines", got=open_dims[0])
    return _compute(row, operands, attrs, len(node.outputs), who, node.name, node.sources)


def _as_declared(node: Node, operands: Sequence[Operand]) -> list[Operand]:
    """Return the operands of a control-flow node in the float types of its bodies, which round like any graph."""
    inputs = [v.spec for v in bodies_of(node)[0].inputs[1 if node.op == "loop" else 0 :]]
    first = len(operands) - len(inputs)
    cast: list[Operand] = list(operands[:first])
    for operand, spec in zip(operands[first:], inputs, strict=True):
        differs = (
            isinstance(operand, np.ndarray)
            and spec is not None
            and spec.dtype.is_float
            and dtype_of(operand) is not spec.dtype
        )
        cast.append(to(operand, spec.dtype) if differs else operand)  # type: ignore[arg-type, union-attr]
    return cast


def _dims(value: Any) -> list[Dim]:
    """Return the symbolic dims in an attribute."""
    return [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, Dim)]


def concrete(value: Any, symbols: Mapping[str, int]) -> Any:
    """Return an attribute with known symbols replaced."""
    if isinstance(value, Dim):
        return value.substitute(symbols)
    if isinstance(value, tuple):
        return tuple(concrete(v, symbols) for v in value)
    if isinstance(value, Graph):
        return specialize(value, symbols)
    return value


def _compute(
    row: OpEntry,
    operands: Sequence[Operand],
    attrs: Mapping[str, Any],
    outputs: int | None,
    who: str,
    name: str,
    sources: Sequence[Source],
) -> tuple[Array, ...]:
    rule = RULES.get(row.name)
    if rule is None:
        raise IrError(
            who,
            "is opaque: the interpreter does not know it",
            got=f"{attrs.get('domain') or 'ai.onnx'}::{attrs.get('op_type')}, {attrs.get('reason')}",
            do="Run the model on an engine that supports it.",
        )
    specs = [TensorSpec(o.shape, dtype_of(o)) if isinstance(o, np.ndarray) else o for o in operands]
    check_operands(row, specs, who)
    full: Attrs = normalize(row, specs, attrs, name=name, sources=sources)
    expected = infer_normal(row, specs, full, who)
    count = output_count(row, expected) if outputs is None else outputs
    padded = [*operands, *[None] * (len(row.inputs) - len(operands) - any(p.rest for p in row.inputs))]
    try:
        with np.errstate(all="ignore"):
            results = rule.function(*rule.prepare(padded), **{k: full[k] for k in rule.reads})
    except (IndexError, ZeroDivisionError, ValueError) as error:
        raise IrError(who, f"is not defined for these values: {error}", got=_shown(specs)) from error
    arrays = results if isinstance(results, tuple | list) else (results,)
    return tuple(
        _finish(np.asarray(array), spec, who)
        for array, spec in zip(arrays[:count], expected[:count], strict=True)
    )


def _finish(array: Array, spec: TensorSpec, who: str) -> Array:
    """Round an array to the inferred type. A shape other than the inferred one is a bug of the op table or of the rule."""
    fits = len(array.shape) == spec.rank and all(
        a == d for a, d in zip(array.shape, spec.shape, strict=True) if isinstance(d, int)
    )
    if not fits:
        raise AssertionError(f"[{who}] returned shape {list(array.shape)}; inferred is {spec}")
    result = array if spec.dtype is DType.STRING else to(array, spec.dtype)
    return np.ascontiguousarray(result).reshape(array.shape)


def _shown(specs: Sequence[object]) -> str:
    return ", ".join(str(s) for s in specs)


def run(
    graph: Graph,
    feeds: Mapping[str, Any],
    *,
    weights: Weights | None = None,
    states: MutableMapping[str, Array] | None = None,
    watch: Watch | None = None,
    exact: bool = False,
) -> dict[str, Array]:
    """Run a graph and return the outputs by name, in the graph's order.

    feeds:   an array per input.
    weights: arrays by name, or a function from a Weight to its array.
    states:  contents of states by name; read before and updated after the run. A missing state starts from its ``init`` weight,
             or from zeros.
    watch:   called with each node and its results.
    exact:   keep every float in float64 between nodes and in the outputs, without rounding. The model's own casts still round.

    Raises InputError for a wrong feed, IrError for a node that cannot be computed (opaque ops, bad indices).
    """
    symbols: dict[str, int] = {}
    convert = _in_float64 if exact else _as_is
    values = {name: convert(array) for name, array in start_values(graph, feeds, weights, states, symbols)}
    left = Counter(name for node in graph.nodes for name in dict.fromkeys(node.values))
    left.update(graph.kept)
    for node in graph.nodes:
        results = tuple(map(convert, evaluate(node, values, symbols)))
        if watch is not None:
            watch(node, results)
        for value, array in zip(node.outputs, results, strict=True):
            if value.spec is not None:
                bind_symbols(value.spec, array.shape, symbols, f"{node.op} %{value.name}", IrError)
            if left[value.name]:
                values[value.name] = array
        for name in dict.fromkeys(node.values):
            left[name] -= 1
            if not left[name]:
                del values[name]  # free values after their last use, so that large models fit in memory
    if states is not None:
        states.update({s.name: values[s.next] for s in graph.states if s.next is not None})
    return {o.name: values[o.value] for o in graph.outputs}


def _as_is(array: Array) -> Array:
    return array


def _in_float64(array: Array) -> Array:
    if array.dtype == object or not DType.of(array.dtype).is_float:
        return array.astype(np.complex128) if array.dtype.kind == "c" else array
    return array.astype(np.float64)


def trace(
    graph: Graph,
    feeds: Mapping[str, Any],
    *,
    weights: Weights | None = None,
    states: MutableMapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Return the results of all nodes by name, in order. Arguments and errors as of ``run``."""
    results_by_name: dict[str, Array] = {}

    def watch(node: Node, results: tuple[Array, ...]) -> None:
        results_by_name.update(zip((v.name for v in node.outputs), results, strict=True))

    run(graph, feeds, weights=weights, states=states, watch=watch)
    return results_by_name


def _fused(*operands: Array, body: Graph) -> list[Array]:
    """Return the body's outputs. The body runs like any graph, and each node in it rounds its result."""
    results = run(body, dict(zip((v.name for v in body.inputs), operands, strict=True)))
    return [results[o.name] for o in body.outputs]


def _cond(condition: Array, *operands: Array, then_branch: Graph, else_branch: Graph) -> list[Array]:
    """Return the results of the branch that the condition chooses."""
    return _fused(*operands, body=then_branch if condition else else_branch)


def _loop(
    trip_count: Array | None,
    condition: Array | None,
    *operands: Array,
    body: Graph,
    carried: int,
    trips: int | None,
    checked: bool,
) -> list[Array]:
    """Return the carried values after the last iteration, and the stacked results of all iterations."""
    count = int(trip_count) if trip_count is not None else trips
    state, rest = list(operands[:carried]), operands[carried:]
    stacked: list[list[Array]] = [[] for _ in body.outputs[carried + checked :]]
    at = size = 0
    going = condition is None or bool(condition)
    while going and (count is None or at < count):
        results = _fused(np.array(at, np.int64), *state, *rest, body=body)
        going = not checked or bool(results.pop(0))
        state = results[:carried]
        for rows, row in zip(stacked, results[carried:], strict=True):
            rows.append(row)
            size += row.nbytes
        if size > _MAX_STACKED:
            raise ValueError(f"its stacked results exceed {_MAX_STACKED >> 30} GiB after {at + 1} iterations")
        at += 1
    specs = body.output_specs[carried + checked :]
    return [
        *state,
        *(np.stack(rows) if rows else _no_rows(s) for rows, s in zip(stacked, specs, strict=True)),
    ]


def _no_rows(spec: TensorSpec) -> Array:
    """Return the stacked result of no iterations; a size that only an iteration would determine is 0."""
    return np.zeros((0, *(d if isinstance(d, int) else 0 for d in spec.shape)), spec.dtype.numpy)


def _fail(*, size: Sequence[int], dtype: DType, reason: str) -> Array:
    raise ValueError(reason)


RULES: Mapping[str, InterpRule] = {
    **table.RULES,
    "fused": plain(_fused),
    "cond": plain(_cond),
    "loop": plain(_loop),
    "fail": plain(_fail),
}
"""Every op's rule, including those of ``fused`` and of control flow, which evaluate graphs."""
