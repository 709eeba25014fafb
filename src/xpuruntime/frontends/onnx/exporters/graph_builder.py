"""The builder of ONNX graphs, and the exporter's view of the node that is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ....errors import IrError
from ....ir import Graph, Node, promote
from ....protocols import Array
from ....types import Dim, DimLike, DType, TensorSpec

__all__ = ["Exporter", "NodeExport", "OnnxGraphBuilder"]

_FAR = 2**63 - 1


class OnnxGraphBuilder:
    """The ONNX graph under construction.

    opset:   version of the default domain; exporters choose the form that it has.
    domains: other domains that nodes use, with their versions.
    """

    def __init__(self, graph: Graph, opset: int, numbers: dict[DType, int]) -> None:
        self.graph, self.opset, self.numbers = graph, opset, numbers
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.domains: dict[str, int] = {}
        self._taken = {*graph.values, *(o.name for o in graph.outputs)}
        self._constants: dict[tuple[object, ...], str] = {}
        self._symbols: dict[str, tuple[str, int]] = {}  # symbol -> a value and the axis that has this size
        self._dims: dict[DimLike, str] = {}
        self._label = ""
        self._counts: dict[str, int] = {}
        self._names: set[str] = set()

    def inner(self, graph: Graph) -> OnnxGraphBuilder:
        """Return a builder for a body of this graph. It sees this graph's values, and takes no name that this graph has."""
        inner = OnnxGraphBuilder(graph, self.opset, self.numbers)
        inner.domains, inner._taken, inner._names = self.domains, self._taken, self._names
        inner._counts, inner._symbols = self._counts, dict(self._symbols)
        self._taken.update(graph.values)
        return inner

    @property
    def label(self) -> str:
        """Return the name of the node that is being written."""
        return self._label

    def begin(self, label: str) -> None:
        """Name the following ONNX nodes after ``label``."""
        self._label = label

    def node_name(self, label: str) -> str:
        """Return an unused node name, the label itself if possible."""
        name = label
        while name in self._names:
            self._counts[label] = self._counts.get(label, 0) + 1
            name = f"{label}.{self._counts[label]}"
        self._names.add(name)
        return name

    def fresh(self, stem: str) -> str:
        """Return an unused value name."""
        name, number = stem, 0
        while name in self._taken:
            number += 1
            name = f"{stem}_{number}"
        self._taken.add(name)
        return name

    def add(
        self, op: str, inputs: Sequence[str | None], outputs: Sequence[str] | None = None, **attrs: Any
    ) -> str:
        """Append a node and return its first output's name. Attributes of None are omitted."""
        from onnx import helper

        operands = ["" if i is None else i for i in inputs]
        while operands and not operands[-1]:
            operands.pop()
        results = [self.fresh(f"{self._label}.{op}")] if outputs is None else list(outputs)
        name = self.node_name(self._label if outputs is not None else f"{self._label}.{op}")
        present = {k: v for k, v in attrs.items() if v is not None}
        self.nodes.append(helper.make_node(op, operands, results, name=name, **present))
        return results[0]

    def constant(self, array: Any, dtype: DType | None = None) -> str:
        """Return the name of an initializer with this array; equal ones are written once."""
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
        """Remember a value and axis from which a symbol can be read."""
        for axis, d in enumerate(() if spec is None else spec.shape):
            if (
                isinstance(d, Dim)
                and str(d) not in self._symbols
                and len(d.symbols) == 1
                and d.symbols == {_bare(d)}
            ):
                self._symbols[_bare(d)] = (name, axis)

    def dims(self, values: Sequence[DimLike]) -> str:
        """Return an int64[len] value of the dims, computed if they are symbolic."""
        if all(isinstance(v, int) for v in values):
            return self.constant(np.array(values, np.int64))
        return self.add("Concat", [self.dim(v) for v in values], axis=0)

    def dim(self, value: DimLike) -> str:
        """Return an int64[1] value of one dim."""
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
                f"symbol {atom!r}", "cannot be computed: no earlier value has a dim that is this symbol alone"
            )
        name, axis = self._symbols[atom]
        shape = self.add("Shape", [name])
        return self.add("Gather", [shape, self.constant(np.array([axis], np.int64))], axis=0)


def _bare(d: Dim) -> str:
    """Return the symbol of a dim that is one symbol; otherwise ""."""
    if len(d._terms) != 1:
        return ""
    ((monomial, coefficient),) = d._terms
    return monomial[0] if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], str) else ""


def _plain(value: Any) -> DimLike:
    terms = value._terms
    return int(terms[0][1]) if len(terms) == 1 and terms[0][0] == () else value


class NodeExport:
    """One IR node while it is exported."""

    __slots__ = ("builder", "node")

    def __init__(self, builder: OnnxGraphBuilder, node: Node) -> None:
        self.builder, self.node = builder, node

    @property
    def opset(self) -> int:
        """Return the target opset."""
        return self.builder.opset

    def __getitem__(self, attr: str) -> Any:
        return self.node.attrs[attr]

    def no(self, why: str) -> IrError:
        """Return the error for a node without an ONNX equivalent."""
        return IrError(f"{self.node.op} %{self.node.name}", f"has no ONNX equivalent: {why}")

    def has(self, position: int) -> bool:
        """Return whether an operand is present."""
        return position < len(self.node.inputs) and self.node.inputs[position] is not None

    def spec(self, position: int = 0) -> TensorSpec:
        """Return the spec of a tensor operand."""
        operand = self.node.inputs[position]
        if not isinstance(operand, str):
            raise IrError(f"{self.node.op} %{self.node.name}", "operand must be a tensor", got=operand)
        return self.builder.graph.spec(operand)

    def operand(self, position: int, dtype: DType | None = None) -> str:
        """Return an operand's name. A number becomes a constant; with ``dtype`` a tensor of another type is cast."""
        operand = self.node.inputs[position]
        if operand is None:
            raise IrError(f"{self.node.op} %{self.node.name}", f"operand {position} is absent")
        if not isinstance(operand, str):
            return self.builder.constant(operand, dtype or self.node.spec.dtype)
        if dtype is None or self.builder.graph.spec(operand).dtype is dtype:
            return operand
        return self.cast(operand, dtype)

    def opt(self, position: int, dtype: DType | None = None) -> str | None:
        """Return the name of an optional operand."""
        return self.operand(position, dtype) if self.has(position) else None

    def operands(self) -> list[str | None]:
        """Return all operands unchanged."""
        return [self.opt(i) for i in range(len(self.node.inputs))]

    def common(self) -> DType:
        """Return the type that a pointwise op computes in."""
        specs = [self.builder.graph.spec(i) if isinstance(i, str) else i for i in self.node.inputs]
        return promote(specs)

    @property
    def out(self) -> str:
        """Return the first output's name."""
        return self.node.name

    @property
    def outs(self) -> list[str]:
        """Return the names of all outputs."""
        return [v.name for v in self.node.outputs]

    def add(self, op: str, inputs: Sequence[str | None], *, out: bool = False, **attrs: Any) -> str:
        """Append a node, which produces the IR node's outputs (``out``) or an inner value. Return its first output's name."""
        return self.builder.add(op, inputs, self.outs if out else None, **attrs)

    def to(self, value: str, dtype: DType, have: DType) -> None:
        """Write this value as the node's output, cast if the types differ."""
        if dtype is have:
            self.add("Identity", [value], out=True)
        else:
            self.add("Cast", [value], out=True, to=self.builder.numbers[dtype])

    def cast(self, value: str, dtype: DType) -> str:
        """Add a cast to another type as an inner value."""
        return self.add("Cast", [value], to=self.builder.numbers[dtype])

    def through(self, op: str, wide: DType, positions: Sequence[int], **attrs: Any) -> None:
        """Write the node as an op of operands that are cast to another type, whose result is cast to the node's."""
        y = self.add(op, [self.operand(i, wide) for i in positions], **attrs)
        self.to(y, self.node.spec.dtype, wide)

    def constant(self, array: Any, dtype: DType | None = None) -> str:
        """Return the name of an initializer with this array."""
        return self.builder.constant(array, dtype)

    def ints(self, values: Sequence[int]) -> str:
        """Return an int64[len] initializer of plain integers."""
        return self.builder.constant(np.array(values, np.int64))


SHORT_INTEGERS = frozenset({DType.INT8, DType.INT16, DType.UINT8, DType.UINT16})
"""Types that ONNX's products, powers and sums lack. Its casts of integers keep the lowest bits, as an overflow does."""

Exporter: TypeAlias = "Callable[[NodeExport], None]"
"""Writes the ONNX nodes that produce an IR node's outputs. Raises IrError if ONNX has no equivalent."""


def done(_: object) -> None:
    """Discard a result, so that a lambda can be an exporter."""


def full_padding(padding: Sequence[Any], rank: int) -> list[Any]:
    """Return the padding of ``rank`` dims in ONNX's order, all begins and then all ends. One number per dim is that of both ends."""
    return list(padding) * (1 if len(padding) == 2 * rank else 2)


def slice_end(end: DimLike | None) -> DimLike:
    """Return a slice's end as ONNX writes it."""
    return _FAR if end is None else end


def flat(array: Array) -> list[Any]:
    """Return the elements as a flat list of Python values."""
    return list(array.ravel().tolist())
