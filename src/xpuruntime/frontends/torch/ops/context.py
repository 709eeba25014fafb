"""One call of an ATen op while it is lowered: what a row of the table sees of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ....ir import GraphBuilder
from ....types import Dim, DimLike, DType, TensorSpec
from ...not_lowered import NotLowered

__all__ = [
    "FREE",
    "AtenLoweringContext",
    "ComplexPair",
    "NotLowered",
    "OpLowering",
    "Results",
    "TensorRef",
    "listed",
]

Results: TypeAlias = "str | Sequence[str | None]"
"""What a row gives back: the value of each result in ATen's order; None for one that nobody reads."""
OpLowering: TypeAlias = "Callable[[AtenLoweringContext], Results]"

FREE = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking", "generator", "implicit"})
"""Arguments that say where and how a result lies, not what it is; a graph's values are dense and on no device yet."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """An argument that is a tensor: its value in the graph."""

    value: str


@dataclass(frozen=True, slots=True)
class ComplexPair(TensorRef):
    """A complex tensor that was made of real ones: ``value`` is its real part. Only the rows of ``complexes`` take it."""

    imaginary: str


class AtenLoweringContext:
    """Arguments by the names of the op's schema, defaults filled in; results as PyTorch's own inference has them.

    b:     the builder; nodes made through it carry this call's source.
    op:    ATen name, overload included where there is one: ``add.Tensor``, ``mm``.
    args:  tensors are ``TensorRef``, symbolic integers ``Dim``, dtypes ``DType``, lists of them lists.
    read:  names of the arguments that the row has looked at; one that says something and was not read is an error of the row.
    """

    __slots__ = ("_dense", "_users", "args", "b", "op", "read", "results")

    def __init__(
        self,
        b: GraphBuilder,
        op: str,
        args: Mapping[str, Any],
        results: Sequence[TensorSpec | None],
        users: Callable[[int], bool],
        dense: frozenset[str] = frozenset(),
    ) -> None:
        self.b, self.op, self.args, self.results, self._users, self._dense = (
            b,
            op,
            args,
            results,
            users,
            dense,
        )
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        """An argument that is no tensor. Raises NotLowered for a tensor: its content is known only when it runs."""
        self.read.add(name)
        value = self.args[name]
        if isinstance(value, TensorRef):
            raise NotLowered(f"its argument {name} is a tensor")
        return value

    # ── tensors ──

    @property
    def x(self) -> str:
        """The first argument, a tensor."""
        return self.t(next(iter(self.args)))

    def opt(self, name: str) -> str | None:
        """A tensor that may be absent."""
        self.read.add(name)
        value = self.args[name]
        if value is None:
            return None
        if not isinstance(value, TensorRef):
            raise NotLowered(f"its argument {name} is no tensor")
        return value.value

    def t(self, name: str) -> str:
        """A tensor."""
        value = self.opt(name)
        if value is None:
            raise NotLowered(f"its argument {name} is absent")
        return value

    def ts(self, name: str) -> list[str | None]:
        """A list of tensors, of which some may be absent."""
        self.read.add(name)
        values = self.args[name]
        if not all(v is None or isinstance(v, TensorRef) for v in values):
            raise NotLowered(f"its argument {name} is no list of tensors")
        return [None if v is None else v.value for v in values]

    def operand(self, name: str) -> str | bool | int | float | None:
        """A tensor, or a number that an op takes as an operand; a symbolic size becomes a scalar tensor."""
        self.read.add(name)
        value = self.args[name]
        if isinstance(value, TensorRef):
            return value.value
        if isinstance(value, Dim):
            return self.scalar(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        raise NotLowered(f"its argument {name} is a {type(value).__name__}")

    def scalar(self, value: DimLike) -> str:
        """A size as an int64 tensor of rank 0."""
        return str(self.b.select(self.b.dims(values=[value]), dim=0, index=0))

    def spec(self, value: str | None = None) -> TensorSpec:
        """Shape and dtype of a value; of the first argument where none is named."""
        value = self.x if value is None else value
        found = self.b.values[value].spec
        if found is None:
            raise NotLowered("it reads a value whose type is known only when it runs")
        return found

    def dense(self, name: str) -> bool:
        """Whether PyTorch's tensor is the whole of its memory, in order."""
        return name in self._dense

    # ── results ──

    def out(self, position: int = 0) -> TensorSpec:
        """Shape and dtype of a result, as PyTorch infers it."""
        found = self.results[position] if position < len(self.results) else None
        if found is None:
            raise NotLowered("its result's shape is known only when it runs")
        return found

    def dtype(self) -> DType:
        """The result's dtype; stands for the argument ``dtype`` and for the default that it has."""
        self.read.add("dtype")
        return self.out().dtype

    def wants(self, position: int) -> bool:
        """Whether somebody reads this result."""
        return self._users(position)

    def needed(self, count: int) -> int:
        """How many results, from the first on, have to be made."""
        return max((i + 1 for i in range(count) if self.wants(i)), default=1)

    # ── small helps ──

    def cast(self, value: str, dtype: DType) -> str:
        """The value in another dtype; itself when it has that already."""
        return value if self.spec(value).dtype is dtype else str(self.b.cast(value, dtype=dtype))

    def typed(self, operand: Any, dtype: DType) -> Any:
        """An operand in a dtype: a tensor is cast, a number stays as it is."""
        return self.cast(operand, dtype) if isinstance(operand, str) else operand

    def like(self, number: Any, dtype: DType) -> str:
        """A scalar constant."""
        return str(self.b.constant(np.asarray(number).astype(dtype.numpy)))

    def axes(self, name: str = "dim") -> list[int] | None:
        """Dims to reduce; None, an absent list and an empty one are all of them."""
        value = self[name]
        return None if value is None or value == [] else value if isinstance(value, list) else [value]

    def ignore(self, *names: str) -> None:
        """These arguments make no difference to the results here."""
        self.read.update(names)


def listed(value: Any, n: int) -> list[Any]:
    """One number per spatial dim; ATen lets one stand for all."""
    values = value if isinstance(value, list) else [value]
    return values * n if len(values) == 1 else values
