"""``LoopPlan``: a node as inputs with strides in one iteration space, and the operations on them in order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...decisions import Reason
from ...ir.attributes import Attrs, Const
from ...ir.graph import Graph, Node
from ...types import DType, TensorSpec
from ..expr.terms import ExprTerm
from .formulas import is_row

__all__ = [
    "CONSTANT",
    "POSITION",
    "Dims",
    "Input",
    "LoopPlan",
    "Operand",
    "Operation",
    "Source",
    "UnsupportedLoop",
    "body_of",
    "shape_of",
    "space_of",
    "tensor_of",
]

Dims: TypeAlias = "tuple[int | None, ...]"
Source: TypeAlias = "str | bool | int | float | None"
Operand: TypeAlias = "TensorSpec | Const | bool | int | float | None"


CONSTANT = "constant"
"""The op of an operation whose single operand is a number of its dtype."""


POSITION = -1
"""Value of ``Input.operand`` for the index of an element within its row, in row-major order of the reduced dims."""


class UnsupportedLoop(Exception):
    """A body that no loop nest can compute. Its text and code are the reason that ``supports`` returns."""

    def __init__(self, why: str, code: Reason = Reason.SHAPE_UNSUPPORTED) -> None:
        super().__init__(why)
        self.code = code


@dataclass(frozen=True, slots=True)
class Input:
    """An operand that is read with a stride along each dim of the space (0 broadcasts). With POSITION, the value is the offset itself."""

    name: str
    operand: int
    dtype: DType
    strides: tuple[int, ...]
    rank: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One op of the body. Its operands are names of inputs and operations, or numbers.

    reduces: whether it is a reduction (``sum``, ``prod``, ``amax``, ``amin``, ``any``, ``all``) over the space's reduced dims.
    """

    name: str
    op: str
    operands: tuple[Source, ...]
    attrs: Attrs
    dtype: DType
    rank: int
    reduces: bool = False


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """Inputs, operations in order of execution, and the names of the results."""

    inputs: tuple[Input, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]
    space: tuple[int, ...] = ()
    reduced: frozenset[int] = frozenset()

    def spec(self, name: str) -> tuple[DType, int]:
        """Return dtype and rank of a name of the plan."""
        entries: list[Input | Operation] = [*self.inputs, *self.operations]
        entry = next(e for e in entries if e.name == name)
        return entry.dtype, entry.rank

    def term(self, source: Source) -> ExprTerm | None:
        """Return an operand as a term; the text of a value is its name."""
        if source is None:
            return None
        if isinstance(source, str):
            dtype, rank = self.spec(source)
            return ExprTerm(source, dtype, rank)
        return ExprTerm("", DType.FLOAT32, 0, source)


def shape_of(spec: TensorSpec) -> tuple[int, ...]:
    """Return a static shape."""
    return tuple(int(d) for d in spec.shape if isinstance(d, int))


def body_of(node: Node) -> Graph | None:
    """Return the graph inside a fused node; None for any other node."""
    body = node.attrs["body"] if node.op == "fused" else None
    return body if isinstance(body, Graph) else None


def space_of(node: Node, operands: Sequence[Operand]) -> tuple[int, ...]:
    """Return the space of a node: its first result's shape, or the input shape of its largest reduction."""
    graph = body_of(node)
    if graph is None:
        first = operands[0]
        return shape_of(first if isinstance(first, TensorSpec) and is_row(node.op) else node.spec)
    read = [shape_of(graph.spec(str(n.inputs[0]))) for n in graph.nodes if is_row(n.op)]
    results = [shape_of(graph.spec(o.value)) for o in graph.outputs]
    return max(read or results, key=lambda shape: (math.prod(shape), len(shape)))


def tensor_of(operand: object) -> TensorSpec:
    """Return an operand that is a tensor. Raises UnsupportedLoop for any other."""
    if not isinstance(operand, TensorSpec):
        raise UnsupportedLoop("an operand is not a tensor")
    return operand
