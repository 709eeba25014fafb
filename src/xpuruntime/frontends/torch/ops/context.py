"""The context in which one call of an ATen op is lowered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ....ir import GraphBuilder
from ....types import Dim, DimLike, DType, TensorSpec
from ...lowered_parts import MAX_ROWS
from ...not_lowered import NotLowered

__all__ = [
    "IGNORED_ARGUMENTS",
    "AtenLoweringContext",
    "ComplexPair",
    "NotLowered",
    "OpLowering",
    "Results",
    "TensorRef",
    "per_dim",
]

Results: TypeAlias = "str | Sequence[str | None]"
"""The results of a lowering: the value of each result in ATen's order; None for one without readers."""
OpLowering: TypeAlias = "Callable[[AtenLoweringContext], Results]"

IGNORED_ARGUMENTS = frozenset(
    {"layout", "device", "pin_memory", "memory_format", "non_blocking", "generator", "implicit"}
)
"""Arguments about the storage of a result, which do not matter: a graph's values are dense and on no device yet."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor argument, as a value of the graph."""

    value: str


@dataclass(frozen=True, slots=True)
class ComplexPair(TensorRef):
    """A complex tensor as a pair of real ones; ``value`` is the real part. Only the lowerings of ``complexes`` accept it."""

    imaginary: str


_CAST_ATTRS: dict[DType, dict[str, Any]] = {
    DType.FLOAT8_E5M2: {"saturate": False},
    DType.FLOAT8_E4M3FNUZ: {"saturate": False},
    DType.FLOAT8_E5M2FNUZ: {"saturate": False},
    DType.FLOAT8_E8M0FNU: {"saturate": False, "round_mode": "nearest"},
}
"""How PyTorch casts to 8-bit floats. float8_e4m3fn saturates, as in ONNX."""


class AtenLoweringContext:
    """One call: arguments by the names of the op's schema, with defaults; results as PyTorch infers them.

    b:     the builder; nodes made through it carry this call's source.
    op:    ATen name with overload, if there is one: ``add.Tensor``, ``mm``.
    args:  tensors are ``TensorRef``, symbolic integers ``Dim``, dtypes ``DType``, lists of them lists.
    max_rows: maximum rows of a system or factorization (``LoweredParts``).
    read:  names of arguments that the lowering has used; ignoring one with a non-default value is an error of the lowering.
    """

    __slots__ = ("_dense", "_users", "args", "b", "max_rows", "op", "read", "results")

    def __init__(
        self,
        b: GraphBuilder,
        op: str,
        args: Mapping[str, Any],
        results: Sequence[TensorSpec | None],
        users: Callable[[int], bool],
        dense: frozenset[str] = frozenset(),
        max_rows: int = MAX_ROWS,
    ) -> None:
        self.b, self.op, self.args, self.results, self._users, self._dense = (
            b,
            op,
            args,
            results,
            users,
            dense,
        )
        self.max_rows = max_rows
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        """Return an argument that is not a tensor. Raise NotLowered for a tensor, whose content is known only at run time."""
        self.read.add(name)
        value = self.args[name]
        if isinstance(value, TensorRef):
            raise NotLowered(f"its argument {name} is a tensor")
        return value

    # ── tensors ──

    @property
    def x(self) -> str:
        """Return the first argument, a tensor."""
        return self.t(next(iter(self.args)))

    def opt(self, name: str) -> str | None:
        """Return an optional tensor."""
        self.read.add(name)
        value = self.args[name]
        if value is None:
            return None
        if not isinstance(value, TensorRef):
            raise NotLowered(f"its argument {name} is not a tensor")
        return value.value

    def t(self, name: str) -> str:
        """Return a required tensor."""
        value = self.opt(name)
        if value is None:
            raise NotLowered(f"its argument {name} is absent")
        return value

    def ts(self, name: str) -> list[str | None]:
        """Return a list of tensors, of which some may be absent."""
        self.read.add(name)
        values = self.args[name]
        if not all(v is None or isinstance(v, TensorRef) for v in values):
            raise NotLowered(f"its argument {name} is not a list of tensors")
        return [None if v is None else v.value for v in values]

    def operand(self, name: str) -> str | bool | int | float | None:
        """Return a tensor, or a number that an op takes as an operand; a symbolic size becomes a scalar tensor."""
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
        """Return a size as an int64 tensor of rank 0."""
        return str(self.b.select(self.b.dims(values=[value]), dim=0, index=0))

    def spec(self, value: str | None = None) -> TensorSpec:
        """Return shape and dtype of a value, by default of the first argument."""
        value = self.x if value is None else value
        spec = self.b.values[value].spec
        if spec is None:
            raise NotLowered("it reads a value whose type is known only at run time")
        return spec

    def dense(self, name: str) -> bool:
        """Return whether PyTorch's tensor is contiguous and the whole of its storage."""
        return name in self._dense

    # ── results ──

    def out(self, position: int = 0) -> TensorSpec:
        """Return shape and dtype of a result, as PyTorch infers it."""
        spec = self.results[position] if position < len(self.results) else None
        if spec is None:
            raise NotLowered("its result's shape is known only at run time")
        return spec

    def dtype(self) -> DType:
        """Return the result's dtype, which covers the argument ``dtype`` and its default."""
        self.read.add("dtype")
        return self.out().dtype

    def has_readers(self, position: int) -> bool:
        """Return whether this result has readers."""
        return self._users(position)

    def needed(self, count: int) -> int:
        """Return how many results, from the first on, must be computed."""
        return max((i + 1 for i in range(count) if self.has_readers(i)), default=1)

    # ── helpers ──

    def cast(self, value: str, dtype: DType) -> str:
        """Return the value in another dtype; itself if it has that already."""
        if self.spec(value).dtype is dtype:
            return value
        return str(self.b.cast(value, dtype=dtype, **_CAST_ATTRS.get(dtype, {})))

    def typed(self, operand: Any, dtype: DType) -> Any:
        """Return an operand in a dtype: a tensor is cast, a number stays."""
        return self.cast(operand, dtype) if isinstance(operand, str) else operand

    def like(self, number: Any, dtype: DType) -> str:
        """Return a scalar constant."""
        return str(self.b.constant(np.asarray(number).astype(dtype.numpy)))

    def axes(self, name: str = "dim") -> list[int] | None:
        """Return the dims to reduce; None for all of them (None or an empty list)."""
        value = self[name]
        return None if value is None or value == [] else value if isinstance(value, list) else [value]

    def ignore(self, *names: str) -> None:
        """Mark arguments that do not affect the results."""
        self.read.update(names)


def per_dim(value: Any, n: int) -> list[Any]:
    """Return one number per spatial dim; in ATen one number may apply to all."""
    values = value if isinstance(value, list) else [value]
    return values * n if len(values) == 1 else values
