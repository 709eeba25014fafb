"""A node, or the graph inside a ``fused`` node, as terms over an iteration space.

Views inside a body move no element: reading a value at an index of the space means reading what it was made of at another index.
So a value is asked for with ``dims``: which dim of the space each of its own dims runs along (None: it stands still at 0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ..ir.attributes import Attrs, Const
from ..ir.graph import Graph, Node
from ..types import DType, TensorSpec
from .expr import POINTWISE, Term, why_not

__all__ = ["CONSTANT", "Dims", "Input", "Operation", "Plan", "Unfit", "body_of", "plan", "shape_of"]

Dims: TypeAlias = "tuple[int | None, ...]"
Source: TypeAlias = "str | bool | int | float | None"


CONSTANT = "constant"
"""The op of an operation whose one operand is a number of its dtype."""


class Unfit(Exception):
    """A body that no loop nest computes; the text says why. It never leaves ``supports``."""


@dataclass(frozen=True, slots=True)
class Input:
    """An operand read with a stride along each dim of the space (0: it stands still)."""

    name: str
    operand: int
    dtype: DType
    strides: tuple[int, ...]
    rank: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One op of the body: operands by name (of inputs and operations), or numbers."""

    name: str
    op: str
    operands: tuple[Source, ...]
    attrs: Attrs
    dtype: DType
    shape: tuple[int, ...]
    rank: int
    reduces: tuple[int, ...] = ()
    """dims of the space that it reduces over; () for a pointwise op"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is read, what is computed in which order, and the names of the results."""

    inputs: tuple[Input, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]

    def spec(self, name: str) -> tuple[DType, int]:
        """Dtype and rank of a name that the plan has."""
        entries: list[Input | Operation] = [*self.inputs, *self.operations]
        found = next(e for e in entries if e.name == name)
        return found.dtype, found.rank

    def term(self, source: Source) -> Term | None:
        """An operand as a term; the text of a value is its name."""
        if source is None:
            return None
        if isinstance(source, str):
            dtype, rank = self.spec(source)
            return Term(source, dtype, rank)
        return Term("", DType.FLOAT32, 0, source)


def shape_of(spec: TensorSpec) -> tuple[int, ...]:
    """A static shape."""
    return tuple(int(d) for d in spec.shape if isinstance(d, int))


def body_of(node: Node) -> Graph | None:
    """The graph inside a fused node; None for any other node."""
    body = node.attrs["body"] if node.op == "fused" else None
    return body if isinstance(body, Graph) else None


def plan(
    node: Node, operands: Sequence[TensorSpec | Const | bool | int | float | None], shape: tuple[int, ...]
) -> Plan:
    """The node over the space ``shape``. Operands that are constants of one element become numbers. Raises Unfit."""
    builder = _Builder(shape, operands)
    graph = body_of(node)
    if graph is None:
        output = node.spec
        values = [f"%{i}" if isinstance(o, TensorSpec | Const) else o for i, o in enumerate(operands)]
        builder.bind({f"%{i}": i for i, o in enumerate(operands) if isinstance(o, TensorSpec | Const)})
        outputs: tuple[str, ...] = (
            builder.node(node.op, values, node.attrs, output, builder.aligned(shape_of(output))),
        )
    else:
        builder.graph = graph
        builder.bind({v.name: i for i, v in enumerate(graph.inputs)})
        outputs = tuple(
            builder.value(o.value, builder.aligned(shape_of(graph.spec(o.value)))) for o in graph.outputs
        )
    return Plan(tuple(builder.inputs.values()), tuple(builder.operations.values()), outputs)


@dataclass
class _Builder:
    space: tuple[int, ...]
    operands: Sequence[TensorSpec | Const | bool | int | float | None]
    graph: Graph | None = None
    bound: dict[str, int] = field(default_factory=dict)
    inputs: dict[tuple[int, tuple[int, ...]], Input] = field(default_factory=dict)
    operations: dict[tuple[str, Dims], Operation] = field(default_factory=dict)

    def bind(self, names: Mapping[str, int]) -> None:
        self.bound.update(names)

    def aligned(self, shape: tuple[int, ...]) -> Dims:
        """Broadcasting: trailing dims of a shape along the trailing dims of the space."""
        first = len(self.space) - len(shape)
        if first < 0:
            raise Unfit(f"a value of shape {list(shape)} is larger than the loops over {list(self.space)}")
        return tuple(self._along(first + i, extent) for i, extent in enumerate(shape))

    def _along(self, dim: int, extent: int) -> int | None:
        if extent == self.space[dim]:
            return dim
        if extent == 1:
            return None
        raise Unfit(f"extent {extent} does not run along {self.space[dim]}")

    def spec_of(self, name: str) -> TensorSpec:
        if name in self.bound:
            operand = self.operands[self.bound[name]]
            return operand.spec if isinstance(operand, Const) else _tensor(operand)
        assert self.graph is not None
        return self.graph.spec(name)

    def value(self, name: str, dims: Dims) -> str:
        """The name under which a value at these dims is known in the text."""
        if name in self.bound:
            return self._input(self.bound[name], dims)
        assert self.graph is not None
        node = self.graph.producer(name)
        assert node is not None
        return self.node(node.op, node.inputs, node.attrs, node.spec, dims, name)

    def _input(self, position: int, dims: Dims) -> str:
        operand = self.operands[position]
        if isinstance(operand, Const):
            return self._constant(f"operand {position}", operand, operand.dtype, len(operand.shape))
        spec = _tensor(operand)
        own = spec.physical.strides
        strides = [0] * len(self.space)
        for d, stride in zip(dims, own, strict=True):
            if d is not None:
                strides[d] += stride
        return self._read(position, spec, tuple(strides))

    def _read(self, position: int, spec: TensorSpec, strides: tuple[int, ...]) -> str:
        key = (position, strides)
        if key not in self.inputs:
            count = sum(1 for i, _ in self.inputs if i == position)
            name = f"x{position}" + "abcdefghijklmnopqrstuvwxyz"[count - 1] * bool(count)
            self.inputs[key] = Input(name, position, spec.dtype, strides, spec.rank)
        return self.inputs[key].name

    def node(
        self, op: str, operands: Sequence[Source], attrs: Attrs, spec: TensorSpec, dims: Dims, name: str = ""
    ) -> str:
        if op in ("clone", "expand", "squeeze", "unsqueeze", "view"):
            assert isinstance(operands[0], str)
            return self._view(op, operands[0], spec, dims)
        if op in ("constant", "full"):
            value = attrs["value"]
            if not isinstance(value, Const | bool | int | float):
                raise Unfit(f"{op} without a number")
            return self._constant(name, value, spec.dtype, spec.rank)
        key = (name, dims)
        if key in self.operations:
            return self.operations[key].name
        if op not in POINTWISE:
            raise Unfit(f"{op} is not pointwise")
        sources = tuple(self._source(o, dims, spec) for o in operands)
        wrong = why_not(op, [self._dtype(s) for s in sources if isinstance(s, str)], spec.dtype, attrs)
        if wrong:
            raise Unfit(wrong)
        made = Operation(
            f"v{len(self.operations)}", op, sources, attrs, spec.dtype, shape_of(spec), spec.rank
        )
        self.operations[key] = made
        return made.name

    def _dtype(self, name: str) -> DType:
        entries: Iterator[Input | Operation] = iter((*self.inputs.values(), *self.operations.values()))
        return next(e.dtype for e in entries if e.name == name)

    def _source(self, operand: Source, dims: Dims, spec: TensorSpec) -> Source:
        """An operand of a pointwise op, broadcast to the op's result."""
        if not isinstance(operand, str):
            return operand
        own = self.spec_of(operand)
        shape, result = shape_of(own), shape_of(spec)
        first = len(result) - len(shape)
        mine = tuple(
            None if extent == 1 and result[first + i] != 1 else dims[first + i]
            for i, extent in enumerate(shape)
        )
        return self.value(operand, mine)

    def _constant(self, key: str, value: Const | bool | int | float, dtype: DType, rank: int) -> str:
        """A value that is the same everywhere."""
        if isinstance(value, Const):
            every = value.numpy().reshape(-1)
            bits = every.view(np.uint8).reshape(every.size, -1)
            if not every.size or (bits != bits[0]).any():
                raise Unfit(f"a constant of {value.size} elements inside a loop")
            value = every[0].item()
        assert isinstance(value, bool | int | float)
        made = Operation(f"v{len(self.operations)}", CONSTANT, (value,), Attrs(), dtype, (), rank)
        return self.operations.setdefault((key, ()), made).name

    def _view(self, op: str, source: str, spec: TensorSpec, dims: Dims) -> str:
        own, result = shape_of(self.spec_of(source)), shape_of(spec)
        if op == "clone" or own == result:
            return self.value(source, dims)
        if op == "expand":
            first = len(result) - len(own)
            mine = tuple(
                None if extent == 1 and result[first + i] != 1 else dims[first + i]
                for i, extent in enumerate(own)
            )
            return self.value(source, mine)
        kept = [(extent, d) for extent, d in zip(result, dims, strict=True) if extent != 1]
        if [e for e, _ in kept] == [e for e in own if e != 1]:  # only dims of 1 come or go
            along = iter(d for _, d in kept)
            return self.value(source, tuple(None if e == 1 else next(along) for e in own))
        if source in self.bound and self.spec_of(source).is_dense:
            return self._dense(source, result, dims)
        raise Unfit(f"a view of {list(own)} as {list(result)} between ops that one loop computes")

    def _dense(self, source: str, result: tuple[int, ...], dims: Dims) -> str:
        """A dense operand under another shape."""
        strides, step = [0] * len(self.space), 1
        for d, extent in zip(reversed(dims), reversed(result), strict=True):
            if d is not None:
                strides[d] += step
            step *= extent
        position = self.bound[source]
        return self._read(position, self.spec_of(source), tuple(strides))


def _tensor(operand: object) -> TensorSpec:
    if not isinstance(operand, TensorSpec):
        raise Unfit("an operand that is no tensor")
    return operand
