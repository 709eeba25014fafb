"""``LoopBody``: a node, or the graph inside a ``fused`` node, as operations over an iteration space.

Views inside a body move no element: reading a view at an index of the space reads its source at another index. So a value is requested with
``dims``: for each of its own dims the dim of the space that it runs along, or None if it stays at index 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...decisions import Reason
from ...ir.attributes import Attrs, AttrValue, Const
from ...ir.graph import Graph, Node
from ...types import HALF_FLOATS, DType, TensorSpec
from ..expr.expression import POINTWISE, why_not
from ..expr.terms import COMPUTED
from .formulas import FORMULAS, is_row, row_axes
from .plans import (
    CONSTANT,
    POSITION,
    Dims,
    Input,
    LoopPlan,
    Operand,
    Operation,
    Source,
    UnsupportedLoop,
    body_of,
    shape_of,
    space_of,
    tensor_of,
)

__all__ = [
    "CONSTANT",
    "POSITION",
    "Dims",
    "Input",
    "LoopBody",
    "LoopPlan",
    "Operand",
    "Operation",
    "UnsupportedLoop",
    "body_of",
    "plan",
    "shape_of",
    "space_of",
]

_OBSERVING = frozenset(
    ["cast", "isinf", "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or", "logical_xor", "floor", "ceil", "trunc", "round", "sign"]
)  # fmt: skip
"""Ops whose results show that an operand was not rounded: an infinity that is a large number, or a step that is taken too early."""
_EXACT = frozenset(("cast", "bitcast", CONSTANT))
"""Ops whose result is a number of its dtype."""
_SELECTING = frozenset(["neg", "abs", "relu", "maximum", "minimum", "clamp", "where", "amax", "amin"])
"""Ops whose result is a number of its dtype if the operands are."""


def plan(node: Node, operands: Sequence[Operand], space: tuple[int, ...]) -> LoopPlan:
    """Return the node as a plan over a space. Constant operands of one element become numbers. Raises UnsupportedLoop."""
    body = LoopBody(space, operands)
    graph = body_of(node)
    if graph is None:
        names = [f"%{i}" if isinstance(o, TensorSpec | Const) else o for i, o in enumerate(operands)]
        body.bound.update({f"%{i}": i for i, o in enumerate(operands) if isinstance(o, TensorSpec | Const)})
        outputs = [
            body.node(node, tuple(names), at, body.dims_of(shape_of(tensor_of(value.spec)), node))
            for at, value in enumerate(node.outputs)
        ]
    else:
        body.graph = graph
        body.bound.update({v.name: i for i, v in enumerate(graph.inputs)})
        for inner in graph.nodes:
            if is_row(inner.op):
                operand_spec = graph.spec(str(inner.inputs[0]))
                body.reduces(row_axes(inner.op, inner.attrs, operand_spec.rank), operand_spec)
        outputs = []
        for output in graph.outputs:
            shape = shape_of(graph.spec(output.value))
            outputs.append(body.value(output.value, body.dims_of(shape, graph.producer(output.value))))
    return body.done(outputs)


@dataclass
class LoopBody:
    """Builder of a plan.

    reduced: the dims of the space that its reductions cover. The first reduction sets it; others must agree.
    exact:   names of values that their dtype represents. 16-bit floats are computed in float, and other values of them are not rounded yet.
    """

    space: tuple[int, ...]
    operands: Sequence[Operand]
    graph: Graph | None = None
    bound: dict[str, int] = field(default_factory=dict)
    inputs: dict[tuple[int, tuple[int, ...]], Input] = field(default_factory=dict)
    operations: dict[tuple[object, ...], Operation] = field(default_factory=dict)
    rows: dict[str, tuple[str, ...]] = field(default_factory=dict)
    values: dict[tuple[str, Dims], str] = field(default_factory=dict)
    reduced: frozenset[int] | None = None
    exact: set[str] = field(default_factory=set)

    def done(self, outputs: Sequence[str]) -> LoopPlan:
        """Return the finished plan."""
        return LoopPlan(
            tuple(self.inputs.values()), tuple(self.operations.values()), tuple(outputs), self.space,
            self.reduced or frozenset(),
        )  # fmt: skip

    # ── where values are stored ──

    def aligned(self, shape: tuple[int, ...]) -> Dims:
        """Align the trailing dims of a shape with the trailing dims of the space, as broadcasting does."""
        first = len(self.space) - len(shape)
        if first < 0:
            raise UnsupportedLoop(
                f"a value of shape {list(shape)} is larger than the iteration space {list(self.space)}"
            )
        return tuple(self._along(first + i, extent) for i, extent in enumerate(shape))

    def _along(self, dim: int, extent: int) -> int | None:
        if extent == self.space[dim]:
            return dim
        if extent == 1:
            return None
        raise UnsupportedLoop(
            f"extent {extent} does not match extent {self.space[dim]} of the iteration space"
        )

    def dims_of(self, shape: tuple[int, ...], node: Node | None = None) -> Dims:
        """Return the dims of the space that a result has. The result of a reduction has the dims that it kept."""
        if node is not None and is_row(node.op) and "keepdim" in node.attrs and not node.attrs["keepdim"]:
            operand_spec = self._spec(str(node.inputs[0]) if self.graph is not None else "%0")
            axes = row_axes(node.op, node.attrs, operand_spec.rank)
            return tuple(d for i, d in enumerate(self.aligned(shape_of(operand_spec))) if i not in axes)
        if len(shape) == len(self.space) or not self.reduced:
            return self.aligned(shape)
        remaining = [d for d in range(len(self.space)) if d not in self.reduced]
        if [self.space[d] for d in remaining] == list(shape):
            return tuple(remaining)
        return self.aligned(shape)

    def _spec(self, name: str) -> TensorSpec:
        if name in self.bound:
            operand = self.operands[self.bound[name]]
            return operand.spec if isinstance(operand, Const) else tensor_of(operand)
        assert self.graph is not None
        return self.graph.spec(name)

    # ── values ──

    def value(self, name: str, dims: Dims) -> str:
        """Return the name of a value at these dims in the text."""
        if name in self.bound:
            return self.input(self.bound[name], dims)
        key = (name, dims)
        if key not in self.values:  # cached: otherwise chains of nodes that are read twice take 2^n steps
            assert self.graph is not None
            node = self.graph.producer(name)
            assert node is not None
            at = [v.name for v in node.outputs].index(name)
            self.values[key] = self.node(node, node.inputs, at, dims)
        return self.values[key]

    def input(self, position: int, dims: Dims) -> str:
        """Return the name of an operand at these dims."""
        operand = self.operands[position]
        if isinstance(operand, Const):
            return self._constant(operand, operand.dtype, len(operand.shape))
        spec = tensor_of(operand)
        strides = [0] * len(self.space)
        for d, stride in zip(dims, spec.physical.strides, strict=True):
            if d is not None:
                strides[d] += stride
        return self.read(position, spec.dtype, tuple(strides), spec.rank)

    def read(self, position: int, dtype: DType, strides: tuple[int, ...], rank: int = 1) -> str:
        """Return the name of an operand by its strides along the space."""
        key = (position, strides)
        if dtype not in COMPUTED:
            raise UnsupportedLoop(
                f"{dtype.value}: generated code supports bool, integers of 8 to 64 bits and floats of 16 to 64 bits",
                Reason.DTYPE_UNSUPPORTED,
            )
        if key not in self.inputs:
            count = sum(1 for i, _ in self.inputs if i == position)
            name = f"x{position}" + (f"_{count}" if count else "")
            self.inputs[key] = Input(name, position, dtype, strides, rank)
            self.exact.add(name)
        return self.inputs[key].name

    def position(self) -> str:
        """Return the name of an element's index within its row."""
        strides, step = [0] * len(self.space), 1
        for d in sorted(self.reduced or (), reverse=True):
            strides[d], step = step, step * self.space[d]
        dtype = DType.INT32 if step < 2**31 else DType.INT64
        return self.inputs.setdefault((POSITION, ()), Input("place", POSITION, dtype, tuple(strides), 1)).name

    def node(self, node: Node, operands: Sequence[Source], at: int, dims: Dims) -> str:
        """Return the name of result ``at`` of a node."""
        op, spec, attrs = node.op, tensor_of(node.outputs[at].spec), node.attrs
        if op in ("clone", "expand", "squeeze", "unsqueeze", "view"):
            return self._view(op, str(operands[0]), spec, dims)
        if op in ("constant", "full"):
            value = attrs["value"]
            if not isinstance(value, Const | bool | int | float):
                raise UnsupportedLoop(f"{op} has no numeric value")
            return self._constant(value, spec.dtype, spec.rank)
        if is_row(op):
            return self._row(node, operands, at, dims)
        sources = tuple(self._source(o, dims, spec) for o in operands)
        if self.graph is not None and self._observes(op, operands):
            sources = tuple(self._rounded(s, o) for s, o in zip(sources, operands, strict=True))
        return self._emit(op, sources, attrs, spec.dtype, spec.rank)

    def _observes(self, op: str, operands: Sequence[Source]) -> bool:
        """Return True if an op reads 16-bit floats as numbers of their dtype: a test or a step, or one that promotes them to a wider float."""
        dtypes = {self._spec(o).dtype for o in operands if isinstance(o, str)}
        return op in _OBSERVING or sum(d.is_float for d in dtypes) > 1

    def _rounded(self, source: Source, operand: Source) -> Source:
        """Return an operand of a pointwise op, rounded to its dtype if that has 16 bits and the value is not exact."""
        if not isinstance(source, str) or not isinstance(operand, str):
            return source
        spec = self._spec(operand)
        if spec.dtype not in HALF_FLOATS or self._is_exact(source, spec.dtype):
            return source
        return self._emit("cast", (source,), Attrs(), spec.dtype, spec.rank)

    def _is_exact(self, source: Source, dtype: DType) -> bool:
        """Return True for an operand that a dtype represents or that is rounded to it: a value, a number, or an operand of no float type."""
        if not isinstance(source, str):
            return True
        own = self.dtype(source)
        return source in self.exact if own is dtype else not own.is_float

    def emit(self, op: str, *sources: Source, dtype: DType, **attrs: AttrValue) -> str:
        """Add an operation of a formula: operands of one dtype, or numbers."""
        return self._emit(op, sources, Attrs(attrs), dtype, 1)

    def _emit(self, op: str, sources: tuple[Source, ...], attrs: Attrs, dtype: DType, rank: int) -> str:
        if op not in POINTWISE:
            raise UnsupportedLoop(f"{op} is not pointwise", Reason.OP_UNSUPPORTED)
        wrong = why_not(op, [self.dtype(s) for s in sources if isinstance(s, str)], dtype, attrs)
        if wrong:
            raise UnsupportedLoop(wrong, Reason.DTYPE_UNSUPPORTED)
        return self._add((op, repr(sources), attrs, dtype, rank), op, sources, attrs, dtype, rank)

    def reduce(self, kind: str, source: str, dtype: DType) -> str:
        """Add a reduction over the space's reduced dims, in ``dtype``."""
        return self._add((kind, source, dtype), kind, (source,), Attrs(), dtype, 1, reduces=True)

    def _add(
        self, key: tuple[object, ...], op: str, sources: tuple[Source, ...], attrs: Attrs, dtype: DType, rank: int,
        *, reduces: bool = False,
    ) -> str:  # fmt: skip
        if key not in self.operations:
            name = f"v{len(self.operations)}"
            self.operations[key] = Operation(name, op, sources, attrs, dtype, rank, reduces)
            if op in _EXACT or (op in _SELECTING and all(self._is_exact(s, dtype) for s in sources)):
                self.exact.add(name)
        return self.operations[key].name

    def dtype(self, name: str) -> DType:
        """Return the dtype of a name."""
        entries: list[Input | Operation] = [*self.inputs.values(), *self.operations.values()]
        return next(e.dtype for e in entries if e.name == name)

    def _source(self, operand: Source, dims: Dims, spec: TensorSpec) -> Source:
        """Return an operand of a pointwise op, broadcast to the op's result."""
        if not isinstance(operand, str):
            return operand
        return self.value(operand, _broadcast(shape_of(self._spec(operand)), shape_of(spec), dims))

    def _constant(self, value: Const | bool | int | float, dtype: DType, rank: int) -> str:
        """Return a value that is the same at every point of the space."""
        if isinstance(value, Const):
            elements = value.numpy().reshape(-1)
            bits = elements.view(np.uint8).reshape(elements.size, -1)
            if not elements.size or (bits != bits[0]).any():
                raise UnsupportedLoop(
                    f"a constant of {value.size} different elements is not supported inside a loop"
                )
            value = elements[0].item()
        assert isinstance(value, bool | int | float)
        return self._add((CONSTANT, repr(value), dtype, rank), CONSTANT, (value,), Attrs(), dtype, rank)

    # ── rows ──

    def _row(self, node: Node, operands: Sequence[Source], at: int, dims: Dims) -> str:
        """Return a result of a softmax, norm or reduction. Its formula is added once."""
        operand_spec = self._spec(str(operands[0]))
        axes = row_axes(node.op, node.attrs, operand_spec.rank)
        operand_dims = self.aligned(shape_of(operand_spec))
        self.reduces(axes, operand_spec)
        remaining = tuple(d for i, d in enumerate(operand_dims) if i not in axes)
        canonical = {
            len(operand_dims): tuple(None if i in axes else d for i, d in enumerate(operand_dims)),
            len(remaining): remaining,
        }
        full = shape_of(tensor_of(node.outputs[at].spec)) == shape_of(operand_spec)
        result_dims = operand_dims if full else canonical.get(len(dims), ())
        if any(
            w != d for w, d in zip(result_dims, dims, strict=True) if w is not None and self.space[w] != 1
        ):
            raise UnsupportedLoop(f"{node.op} cannot be combined with values along other dims")
        key = node.name or node.op
        if key not in self.rows:
            x = self.value(str(operands[0]), operand_dims)
            other_operands = [
                None
                if o is None
                else self.value(str(o), operand_dims[operand_spec.rank - self._spec(str(o)).rank :])
                for o in operands[1:]
            ]
            self.rows[key] = FORMULAS[node.op](
                self, x, other_operands, node.attrs, tensor_of(node.outputs[0].spec).dtype
            )
        return self.rows[key][at]

    def reduces(self, axes: tuple[int, ...], operand_spec: TensorSpec) -> None:
        """Record the dims of the space that a reduction over these axes covers. Raises UnsupportedLoop if they differ from another reduction's."""
        first = len(self.space) - operand_spec.rank
        shape = shape_of(operand_spec)
        if any(shape[a] != self.space[first + a] for a in axes):
            raise UnsupportedLoop("a reduced value must have the extents of the iteration space")
        reduced = frozenset(first + a for a in axes if shape[a] != 1)
        if self.reduced is not None and self.reduced != reduced:
            raise UnsupportedLoop("reductions over different dims do not fit one loop nest")
        self.reduced = reduced

    @property
    def count(self) -> int:
        """The number of elements that one reduction reads."""
        return math.prod(self.space[d] for d in self.reduced or ())

    # ── views ──

    def _view(self, op: str, source: str, spec: TensorSpec, dims: Dims) -> str:
        source_shape, result = shape_of(self._spec(source)), shape_of(spec)
        if op == "clone" or source_shape == result:
            return self.value(source, dims)
        if op == "expand":
            return self.value(source, _broadcast(source_shape, result, dims))
        nontrivial = [(extent, d) for extent, d in zip(result, dims, strict=True) if extent != 1]
        if [e for e, _ in nontrivial] == [e for e in source_shape if e != 1]:  # only dims of extent 1 differ
            along = iter(d for _, d in nontrivial)
            return self.value(source, tuple(None if e == 1 else next(along) for e in source_shape))
        if source in self.bound and self._spec(source).is_dense:
            return self._dense(source, result, dims)
        raise UnsupportedLoop(
            f"a view of {list(source_shape)} as {list(result)} is not supported inside a loop"
        )

    def _dense(self, source: str, result: tuple[int, ...], dims: Dims) -> str:
        """Return a dense operand under another shape."""
        strides, step = [0] * len(self.space), 1
        for d, extent in zip(reversed(dims), reversed(result), strict=True):
            if d is not None:
                strides[d] += step
            step *= extent
        spec = self._spec(source)
        return self.read(self.bound[source], spec.dtype, tuple(strides), spec.rank)


def _broadcast(shape: tuple[int, ...], result: tuple[int, ...], dims: Dims) -> Dims:
    """Return the dims of an operand whose shape broadcasts to a result along ``dims``."""
    first = len(result) - len(shape)
    return tuple(
        None if extent == 1 and result[first + i] != 1 else dims[first + i] for i, extent in enumerate(shape)
    )
