"""The context in which one ONNX node is lowered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ....protocols import Array
from ....types import Dim, DimLike, DType, TensorSpec
from ...builder import ImportBuilder
from ...not_lowered import NotLowered

__all__ = [
    "NotLowered",
    "OnnxLoweringContext",
    "OpLowering",
    "Results",
    "lowest",
    "may_equal",
    "numbers",
]

Results: TypeAlias = "str | Sequence[str | None]"
"""The results of a lowering: the value of each output in ONNX's order; None for one without readers."""
OpLowering: TypeAlias = "Callable[[OnnxLoweringContext], Results]"


class OnnxLoweringContext:
    """One ONNX node: operands as values of the graph under construction, attributes as Python values.

    b:       the builder; nodes made through it carry this node's source.
    opset:   version of the node's domain.
    inputs:  IR values; None where an optional one is absent.
    outputs: ONNX names; empty for outputs without readers.
    dtypes:  TensorProto.DataType -> DType.
    """

    __slots__ = ("_known", "attrs", "b", "dtypes", "inputs", "op", "opset", "outputs")

    def __init__(
        self,
        b: ImportBuilder,
        op: str,
        opset: int,
        inputs: Sequence[str | None],
        outputs: Sequence[str],
        attrs: dict[str, Any],
        known: Callable[[str], Array | None],
        dtypes: dict[int, DType],
    ) -> None:
        self.b, self.op, self.opset, self.attrs, self.dtypes = b, op, opset, attrs, dtypes
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._known = known

    def with_inputs(self, *inputs: str | None, op: str = "") -> OnnxLoweringContext:
        """Return the same node with other operands, and as another op."""
        return OnnxLoweringContext(
            self.b, op or self.op, self.opset, inputs, self.outputs, self.attrs, self._known, self.dtypes
        )

    def with_operand(self, position: int, value: str) -> OnnxLoweringContext:
        """Return the same node with another operand at this position."""
        return self.with_inputs(*self.inputs[:position], value, *self.inputs[position + 1 :])

    def with_attributes(self, **attrs: Any) -> OnnxLoweringContext:
        """Return the same node with other attributes."""
        return OnnxLoweringContext(
            self.b,
            self.op,
            self.opset,
            self.inputs,
            self.outputs,
            {**self.attrs, **attrs},
            self._known,
            self.dtypes,
        )

    # ── operands ──

    @property
    def x(self) -> str:
        """Return the first operand."""
        return self.input(0)

    def opt(self, position: int) -> str | None:
        """Return an optional operand."""
        return self.inputs[position] if position < len(self.inputs) else None

    def input(self, position: int) -> str:
        """Return a required operand. Raise NotLowered if it is absent."""
        value = self.opt(position)
        if value is None:
            raise NotLowered(f"its input {position} is absent")
        return value

    def spec(self, position: int = 0) -> TensorSpec:
        """Return shape and dtype of an operand."""
        return self.spec_of(self.input(position))

    def spec_of(self, value: str) -> TensorSpec:
        """Return shape and dtype of any value."""
        spec = self.b.values[value].spec
        if spec is None:
            raise NotLowered("it reads a value whose type or rank is known only at run time")
        return spec

    def has_readers(self, position: int) -> bool:
        """Return whether this output has readers."""
        return position < len(self.outputs) and bool(self.outputs[position])

    def vector(self, position: int, size: DimLike, description: str) -> str:
        """Return an operand that must have one dim of this size. Raise NotLowered for another shape, which would broadcast to another meaning."""
        value, spec = self.input(position), self.spec(position)
        if not may_equal(spec.shape, (size,)):
            raise NotLowered(f"its {description} is {spec} instead of one dim of {size}")
        return self.sized(value, (size,))

    def sized(self, value: str, shape: Sequence[DimLike]) -> str:
        """Return a value whose shape ``may_equal`` this one, with these dims. A run whose sizes differ is an error: the sizes of a split add up to its dim."""
        for dim, (have, want) in enumerate(zip(self.spec_of(value).shape, shape, strict=True)):
            if have != want:
                value = str(self.b.call("split", value, outputs=1, sizes=[want], dim=dim))
        return value

    def epsilon(self, default: float) -> float:
        """Return the attribute ``epsilon``. Raise NotLowered if it is negative or not a number."""
        value = float(self.attr("epsilon", default))
        if not value >= 0:
            raise NotLowered(f"its epsilon is {value}")
        return value

    # ── contents known at import

    def known(self, position: int) -> Array | None:
        """Return an operand's content: numbers, or an object array of dims; None if it is known only at run time."""
        value = self.opt(position)
        return None if value is None else self._known(value)

    def content(self, position: int, description: str) -> Array:
        """Return the content of an operand that must be known. Raise NotLowered with ``description`` in the reason."""
        array = self.known(position)
        if array is None:
            raise NotLowered(f"its {description} is known only at run time", self.input(position))
        return array

    def array(self, position: int, description: str) -> Array:
        """Return ``content`` as plain numbers. Raise NotLowered for symbolic dims."""
        array = self.content(position, description)
        if array.dtype == object:
            raise NotLowered(f"its {description} depends on a symbolic dim", self.input(position))
        return array

    def ints(self, position: int, description: str) -> list[int]:
        """Return ``array`` as a flat list of integers."""
        return [int(v) for v in self.array(position, description).ravel()]

    def dims(self, position: int, description: str) -> list[DimLike]:
        """Return ``content`` as a flat list of integers and dims."""
        return [
            v if isinstance(v, Dim) else int(v) for v in self.content(position, description).ravel().tolist()
        ]

    def number(self, position: int, description: str) -> Any:
        """Return ``array`` of one element as a Python number."""
        elements = self.array(position, description).ravel()
        if elements.size != 1:
            raise NotLowered(f"its {description} is not one number")
        return elements[0].item()

    def scalar_or_value(self, position: int) -> Any:
        """Return a number if the operand is a known scalar (a kernel can embed it), else the value."""
        array = self.known(position)
        if array is not None and array.size == 1 and array.dtype != object and array.dtype.kind in "biuf":
            return array.reshape(-1)[0].item()
        return self.input(position)

    # ── attributes ──

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or ``default`` if the node does not have it."""
        return self.attrs.get(name, default)

    def axis(self, default: int, rank: int | None = None) -> int:
        """Return the attribute ``axis`` as a non-negative number."""
        rank = self.spec().rank if rank is None else rank
        axis = int(self.attr("axis", default))
        if not -rank <= axis <= rank:
            raise NotLowered(f"axis {axis} is outside rank {rank}")
        return axis + rank if axis < 0 else axis

    def attr_or_input(self, name: str, position: int, description: str) -> list[int] | None:
        """Return integers that older opsets have in an attribute and newer ones in an input; None if in neither."""
        if name in self.attrs:
            return [int(v) for v in self.attrs[name]]
        return self.ints(position, description) if self.opt(position) is not None else None

    def dtype(self, number: int) -> DType:
        """Return the DType of a TensorProto.DataType."""
        dtype = self.dtypes.get(number)
        if dtype is None:
            raise NotLowered(f"element type {number} is not supported in tensors")
        return dtype

    # ── shapes ──

    def broadcast_operands(self, *positions: int) -> list[Any]:
        """Return operands that broadcast. If two symbolic dims clash and one of them cannot be 1, expand the other operand to it."""
        values: list[Any] = [self.opt(i) for i in positions]
        shapes = {v: self.spec_of(v).shape for v in values if v is not None}
        rank = max((len(s) for s in shapes.values()), default=0)
        target: list[DimLike] = [1] * rank
        clash = False
        for shape in shapes.values():
            for i, d in enumerate(shape, rank - len(shape)):
                have = target[i]
                if have == d or d == 1:
                    continue
                if isinstance(have, Dim) and isinstance(d, Dim):
                    clash = True
                    if not (lowest(have) > 1 or lowest(d) > 1):
                        raise NotLowered(f"symbolic dims {have} and {d} broadcast, and either may be 1")
                    target[i] = have if lowest(have) > 1 else d
                elif have == 1 or isinstance(d, int):
                    target[i] = d
        if not clash:
            return values
        return [self._expanded(v, shapes[v], target) if v is not None else None for v in values]

    def _expanded(self, value: str, shape: Sequence[DimLike], target: Sequence[DimLike]) -> str:
        tail = target[len(target) - len(shape) :]
        if all(d in (1, t) or isinstance(t, int) for d, t in zip(shape, tail, strict=True)):
            return value
        size = [d if d == 1 else t for d, t in zip(shape, tail, strict=True)]
        return str(self.b.expand(value, size=size))

    # ── small values ──

    def like(self, number: float, position: int = 0) -> str:
        """Return a scalar constant of an operand's dtype."""
        constant: str = self.b.constant(np.asarray(number).astype(self.spec(position).dtype.numpy))
        return constant

    def cast(self, value: str, dtype: DType) -> str:
        """Return the value in another dtype; itself if it has that already."""
        return value if self.spec_of(value).dtype is dtype else str(self.b.cast(value, dtype=dtype))


def lowest(d: DimLike) -> int:
    """Return a lower bound of a dim with symbols of at least 1 (an empty tensor is found at run time)."""
    if isinstance(d, int):
        return d
    total = 0
    for monomial, coefficient in d._terms:
        if coefficient < 0 and monomial:
            return -1
        product = coefficient
        for atom in monomial:
            if not isinstance(atom, str):
                below, over = lowest(atom.num), atom.den
                (divisor,) = over._terms
                if divisor[0] or divisor[1] < 1 or below < 0:
                    return -1
                product *= below // divisor[1]
        total += product
    return total


def may_equal(a: Sequence[DimLike], b: Sequence[DimLike]) -> bool:
    """Return whether two shapes can be equal at run time: a symbol may be any integer, and only integers that differ rule it out."""
    return len(a) == len(b) and all(
        d == e or not (isinstance(d, int) and isinstance(e, int)) for d, e in zip(a, b, strict=True)
    )


def numbers(shape: Sequence[DimLike], description: str) -> list[int]:
    """Return the dims as integers. Raise NotLowered if one is symbolic."""
    if not all(isinstance(d, int) for d in shape):
        raise NotLowered(f"{description} is a symbolic dim")
    return [int(d) for d in shape if isinstance(d, int)]
