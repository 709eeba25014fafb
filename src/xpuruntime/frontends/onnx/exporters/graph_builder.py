"""What a row of the writer's table works with: the node that is written, and a pen that adds ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ....errors import IrError
from ....ir import Graph, Node, promote
from ....protocols import Array
from ....types import Dim, DimLike, DType, TensorSpec

__all__ = ["Form", "Pen", "Writing"]

_FAR = 2**63 - 1


class Pen:
    """Collects the ONNX graph.

    opset:   version of the default domain; rows choose the form that it has.
    domains: other domains that nodes use, with their versions.
    """

    def __init__(self, graph: Graph, opset: int, numbers: dict[DType, int]) -> None:
        self.graph, self.opset, self.numbers = graph, opset, numbers
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.domains: dict[str, int] = {}
        self._taken = {*graph.values, *(o.name for o in graph.outputs)}
        self._constants: dict[tuple[object, ...], str] = {}
        self._symbols: dict[str, tuple[str, int]] = {}  # symbol -> a value and the axis that it is
        self._dims: dict[DimLike, str] = {}
        self._label = ""
        self._counts: dict[str, int] = {}
        self._names: set[str] = set()

    def begin(self, label: str) -> None:
        """Names of ONNX nodes from now on follow ``label``."""
        self._label = label

    def node_name(self, label: str) -> str:
        """A name that no ONNX node has; the label itself for the first."""
        name = label
        while name in self._names:
            self._counts[label] = self._counts.get(label, 0) + 1
            name = f"{label}.{self._counts[label]}"
        self._names.add(name)
        return name

    def fresh(self, stem: str) -> str:
        """A name that no value has."""
        name, number = stem, 0
        while name in self._taken:
            number += 1
            name = f"{stem}_{number}"
        self._taken.add(name)
        return name

    def add(
        self, op: str, inputs: Sequence[str | None], outputs: Sequence[str] | None = None, **attrs: Any
    ) -> str:
        """Append a node; gives its first output's name. Attributes of None are left off."""
        from onnx import helper

        operands = ["" if i is None else i for i in inputs]
        while operands and not operands[-1]:
            operands.pop()
        made = [self.fresh(f"{self._label}.{op}")] if outputs is None else list(outputs)
        name = self.node_name(self._label if outputs is not None else f"{self._label}.{op}")
        given = {k: v for k, v in attrs.items() if v is not None}
        self.nodes.append(helper.make_node(op, operands, made, name=name, **given))
        return made[0]

    def constant(self, array: Any, dtype: DType | None = None) -> str:
        """The name of an initialiser that holds the array; equal ones are written once."""
        from onnx import numpy_helper

        values = np.asarray(array) if dtype is None else np.asarray(array).astype(dtype.numpy)
        key = (str(values.dtype), values.shape, values.tobytes())
        if key not in self._constants:
            name = self.fresh("constant")
            self.initializers.append(numpy_helper.from_array(values, name))
            self._constants[key] = name
        return self._constants[key]

    # ── dims as data ──

    def learn(self, name: str, spec: TensorSpec | None) -> None:
        """Remember where a symbol can be read from."""
        for axis, d in enumerate(() if spec is None else spec.shape):
            if (
                isinstance(d, Dim)
                and str(d) not in self._symbols
                and len(d.symbols) == 1
                and d.symbols == {_bare(d)}
            ):
                self._symbols[_bare(d)] = (name, axis)

    def dims(self, values: Sequence[DimLike]) -> str:
        """int64[len] of dims, computed where they are symbolic."""
        if all(isinstance(v, int) for v in values):
            return self.constant(np.array(values, np.int64))
        return self.add("Concat", [self.dim(v) for v in values], axis=0)

    def dim(self, value: DimLike) -> str:
        """int64[1] of one dim."""
        if isinstance(value, int):
            return self.constant(np.array([value], np.int64))
        if value not in self._dims:
            self._dims[value] = self._computed(value)
        return self._dims[value]

    def _computed(self, value: Dim) -> str:
        total = None
        for monomial, coefficient in value._terms:
            factors = [self._atom(a) for a in monomial]
            if coefficient != 1 or not factors:
                factors.append(self.constant(np.array([coefficient], np.int64)))
            product = factors[0]
            for factor in factors[1:]:
                product = self.add("Mul", [product, factor])
            total = product if total is None else self.add("Add", [total, product])
        assert total is not None
        return total

    def _atom(self, atom: Any) -> str:
        if not isinstance(atom, str):
            return self.add("Div", [self.dim(_plain(atom.num)), self.dim(_plain(atom.den))])
        if atom not in self._symbols:
            raise IrError(
                f"symbol {atom!r}", "cannot be computed: no value before it has a dim of just that symbol"
            )
        name, axis = self._symbols[atom]
        shape = self.add("Shape", [name])
        return self.add("Gather", [shape, self.constant(np.array([axis], np.int64))], axis=0)


def _bare(d: Dim) -> str:
    """The one symbol that a dim is; empty when it is more than that."""
    if len(d._terms) != 1:
        return ""
    ((monomial, coefficient),) = d._terms
    return monomial[0] if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], str) else ""


def _plain(value: Any) -> DimLike:
    terms = value._terms
    return int(terms[0][1]) if len(terms) == 1 and terms[0][0] == () else value


class Writing:
    """One node of the IR while it is written."""

    __slots__ = ("node", "pen")

    def __init__(self, pen: Pen, node: Node) -> None:
        self.pen, self.node = pen, node

    @property
    def opset(self) -> int:
        """The opset that is written."""
        return self.pen.opset

    def __getitem__(self, attr: str) -> Any:
        return self.node.attrs[attr]

    def no(self, why: str) -> IrError:
        """What to raise where ONNX has no form for this node."""
        return IrError(f"{self.node.op} %{self.node.name}", f"has no ONNX form: {why}")

    def has(self, position: int) -> bool:
        """Whether an operand is there."""
        return position < len(self.node.inputs) and self.node.inputs[position] is not None

    def spec(self, position: int = 0) -> TensorSpec:
        """Spec of a tensor operand."""
        operand = self.node.inputs[position]
        if not isinstance(operand, str):
            raise IrError(f"{self.node.op} %{self.node.name}", "operand must be a tensor", got=operand)
        return self.pen.graph.spec(operand)

    def operand(self, position: int, dtype: DType | None = None) -> str:
        """An operand's name; a number becomes a constant, and ``dtype`` casts what is of another."""
        operand = self.node.inputs[position]
        if operand is None:
            raise IrError(f"{self.node.op} %{self.node.name}", f"operand {position} is absent")
        if not isinstance(operand, str):
            return self.pen.constant(operand, dtype or self.node.spec.dtype)
        if dtype is None or self.pen.graph.spec(operand).dtype is dtype:
            return operand
        return self.cast(operand, dtype)

    def opt(self, position: int, dtype: DType | None = None) -> str | None:
        """An operand that may be absent."""
        return self.operand(position, dtype) if self.has(position) else None

    def operands(self) -> list[str | None]:
        """All of them, as they are."""
        return [self.opt(i) for i in range(len(self.node.inputs))]

    def common(self) -> DType:
        """The type that a pointwise op computes in."""
        specs = [self.pen.graph.spec(i) if isinstance(i, str) else i for i in self.node.inputs]
        return promote(specs)

    @property
    def out(self) -> str:
        """The first output's name."""
        return self.node.name

    @property
    def outs(self) -> list[str]:
        """Names of all outputs."""
        return [v.name for v in self.node.outputs]

    def add(self, op: str, inputs: Sequence[str | None], *, out: bool = False, **attrs: Any) -> str:
        """Append a node; with ``out`` it makes the node's outputs, else an inner value."""
        return self.pen.add(op, inputs, self.outs if out else None, **attrs)

    def to(self, value: str, dtype: DType, have: DType) -> None:
        """The node's output is this value, cast where its type is another."""
        if dtype is have:
            self.add("Identity", [value], out=True)
        else:
            self.add("Cast", [value], out=True, to=self.pen.numbers[dtype])

    def cast(self, value: str, dtype: DType) -> str:
        """An inner value in another type."""
        return self.add("Cast", [value], to=self.pen.numbers[dtype])

    def constant(self, array: Any, dtype: DType | None = None) -> str:
        """The name of an initialiser."""
        return self.pen.constant(array, dtype)

    def ints(self, values: Sequence[int]) -> str:
        """int64[len] of plain integers."""
        return self.pen.constant(np.array(values, np.int64))


Form: TypeAlias = "Callable[[Writing], None]"
"""How an op of the IR is written. Adds nodes that make the node's outputs. Raises IrError where ONNX has no form for it."""


def done(_: object) -> None:
    """For forms of one line: a lambda gives back what it computes, a form nothing."""


def both_ends(padding: Sequence[Any], rank: int) -> list[Any]:
    """Padding of ``rank`` dims as ONNX writes it, all begins and then all ends; one number a dim counts for both."""
    return list(padding) * (1 if len(padding) == 2 * rank else 2)


def far(end: DimLike | None) -> DimLike:
    """A slice's end as ONNX writes it."""
    return _FAR if end is None else end


def flat(array: Array) -> list[Any]:
    """Its elements as Python values."""
    return list(array.ravel().tolist())
