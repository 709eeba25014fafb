"""One ONNX node while it is lowered: what a row of the table sees of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ....ir import GraphBuilder
from ....protocols import Array
from ....types import Dim, DimLike, DType, TensorSpec

__all__ = ["NotLowered", "Results", "Row", "Site", "lowest", "numbers"]

Results: TypeAlias = "str | Sequence[str | None]"
"""What a row gives back: the value of each output in ONNX's order; None for one that nobody reads."""
Row: TypeAlias = "Callable[[Site], Results]"


class NotLowered(Exception):
    """The table has no exact form for this node. ``value``: the operand whose content would have to be known, if that is why."""

    def __init__(self, reason: str, value: str = "") -> None:
        super().__init__(reason)
        self.reason, self.value = reason, value


class Site:
    """Operands as values of the graph that is built, attributes as Python values.

    b:       the builder; nodes made through it carry this node's source.
    opset:   version of the node's domain.
    inputs:  IR values; None where an optional one is absent.
    outputs: ONNX names; empty where nobody reads one.
    dtypes:  TensorProto.DataType -> DType.
    """

    __slots__ = ("_known", "attrs", "b", "dtypes", "inputs", "op", "opset", "outputs")

    def __init__(
        self,
        b: GraphBuilder,
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

    # ── operands ──

    @property
    def x(self) -> str:
        """The first operand."""
        return self.input(0)

    def opt(self, position: int) -> str | None:
        """An operand that may be absent."""
        return self.inputs[position] if position < len(self.inputs) else None

    def input(self, position: int) -> str:
        """An operand that must be there."""
        value = self.opt(position)
        if value is None:
            raise NotLowered(f"its input {position} is absent")
        return value

    def spec(self, position: int = 0) -> TensorSpec:
        """Shape and dtype of an operand."""
        return self.spec_of(self.input(position))

    def spec_of(self, value: str) -> TensorSpec:
        """Shape and dtype of any value."""
        found = self.b.values[value].spec
        if found is None:
            raise NotLowered("it reads a value whose type or rank is known only when it runs")
        return found

    def wants(self, position: int) -> bool:
        """Whether somebody reads this output."""
        return position < len(self.outputs) and bool(self.outputs[position])

    # ── contents that are known before the model runs ──

    def known(self, position: int) -> Array | None:
        """An operand's content: numbers, or an object array of dims; None when only a run can tell."""
        value = self.opt(position)
        return None if value is None else self._known(value)

    def content(self, position: int, what: str) -> Array:
        """The content of an operand that must be known. Raises NotLowered naming ``what``."""
        found = self.known(position)
        if found is None:
            raise NotLowered(f"its {what} is computed when it runs", self.input(position))
        return found

    def array(self, position: int, what: str) -> Array:
        """``content`` as plain numbers, dims not allowed."""
        found = self.content(position, what)
        if found.dtype == object:
            raise NotLowered(f"its {what} depends on a symbolic dim", self.input(position))
        return found

    def ints(self, position: int, what: str) -> list[int]:
        """``array`` as a flat list of integers."""
        return [int(v) for v in self.array(position, what).ravel()]

    def dims(self, position: int, what: str) -> list[DimLike]:
        """``content`` as a flat list of integers and dims."""
        return [v if isinstance(v, Dim) else int(v) for v in self.content(position, what).ravel().tolist()]

    def number(self, position: int, what: str) -> Any:
        """``array`` of one element, as a Python number."""
        found = self.array(position, what).ravel()
        if found.size != 1:
            raise NotLowered(f"its {what} is not one number")
        return found[0].item()

    def scalar_or_value(self, position: int) -> Any:
        """A number when the operand is a known scalar (a kernel can hold it), else the value."""
        found = self.known(position)
        if found is not None and found.size == 1 and found.dtype != object and found.dtype.kind in "biuf":
            return found.reshape(-1)[0].item()
        return self.input(position)

    # ── attributes ──

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or ``default`` where the node does not have it."""
        return self.attrs.get(name, default)

    def axis(self, default: int, rank: int | None = None) -> int:
        """Attribute ``axis``, counted from 0."""
        rank = self.spec().rank if rank is None else rank
        axis = int(self.attr("axis", default))
        if not -rank <= axis <= rank:
            raise NotLowered(f"axis {axis} is outside rank {rank}")
        return axis + rank if axis < 0 else axis

    def moved(self, name: str, position: int, what: str) -> list[int] | None:
        """Integers that older opsets hold in an attribute and newer ones in an input; None when in neither."""
        if name in self.attrs:
            return [int(v) for v in self.attrs[name]]
        return self.ints(position, what) if self.opt(position) is not None else None

    def dtype(self, number: int) -> DType:
        """The DType of a TensorProto.DataType."""
        found = self.dtypes.get(number)
        if found is None:
            raise NotLowered(f"element type {number} has no tensor form")
        return found

    # ── shapes ──

    def met(self, *positions: int) -> list[Any]:
        """Operands that broadcast: where two symbolic dims meet of which one cannot be 1, the other operand is stretched to it."""
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
                        raise NotLowered(f"symbolic dims {have} and {d} meet, of which either may be 1")
                    target[i] = have if lowest(have) > 1 else d
                elif have == 1 or isinstance(d, int):
                    target[i] = d
        if not clash:
            return values
        return [self._stretched(v, shapes[v], target) if v is not None else None for v in values]

    def _stretched(self, value: str, shape: Sequence[DimLike], target: Sequence[DimLike]) -> str:
        tail = target[len(target) - len(shape) :]
        if all(d in (1, t) or isinstance(t, int) for d, t in zip(shape, tail, strict=True)):
            return value
        size = [d if d == 1 else t for d, t in zip(shape, tail, strict=True)]
        return str(self.b.expand(value, size=size))

    # ── small values ──

    def like(self, number: float, position: int = 0) -> str:
        """A scalar constant of an operand's dtype."""
        made: str = self.b.constant(np.asarray(number).astype(self.spec(position).dtype.numpy))
        return made

    def cast(self, value: str, dtype: DType) -> str:
        """The value in another dtype; itself when it has that already."""
        return value if self.spec_of(value).dtype is dtype else str(self.b.cast(value, dtype=dtype))


def lowest(d: DimLike) -> int:
    """A lower bound of a dim whose symbols are 1 at least (an empty tensor is found when it runs)."""
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


def numbers(shape: Sequence[DimLike], what: str) -> list[int]:
    """The dims as integers. Raises NotLowered when one is symbolic."""
    if not all(isinstance(d, int) for d in shape):
        raise NotLowered(f"{what} is a symbolic dim")
    return [int(d) for d in shape if isinstance(d, int)]
