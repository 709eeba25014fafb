"""Formula: one direction of an op as IR, and the Writer through which its function reads operands and writes results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...ir import Graph
from ...ir.build import GraphBuilder
from ...types import HALF_FLOATS, DType, TensorSpec

__all__ = ["Formula", "Writer"]

Attributes: TypeAlias = "Mapping[str, Any]"


class Writer:
    """Operands, attributes and the builder of one formula.

    ``w["x"]`` is the value of an operand, ``w.optional("bias")`` that of one that may be missing (None). ``w.wide(v)`` computes in float32
    where the value has 16 bits, and ``w.like(v, "x")`` converts a result back to the operand's dtype.
    """

    def __init__(self, name: str, operands: Mapping[str, TensorSpec | None], attributes: Attributes) -> None:
        self.b = GraphBuilder(name)
        self.attributes = attributes
        self._values = {
            key: None if spec is None else self.b.input(key, spec) for key, spec in operands.items()
        }

    def __getitem__(self, operand: str) -> str:
        value = self._values[operand]
        assert value is not None, f"{operand} is missing"
        return value

    def optional(self, operand: str) -> str | None:
        """Return the value of an operand, or None if the call has none."""
        return self._values[operand]

    def spec(self, value: str) -> TensorSpec:
        """Return the spec of a value."""
        return self.b.spec(value)

    def shape(self, value: str) -> tuple[int, ...]:
        """Return the sizes of a value."""
        return tuple(int(d) for d in self.b.spec(value).shape if isinstance(d, int))

    def wide(self, value: str) -> str:
        """Return the value in float32 if it has 16 bits, else unchanged."""
        dtype = self.b.spec(value).dtype
        return self.cast(value, DType.FLOAT32) if dtype in HALF_FLOATS else value

    def like(self, value: str, operand: str) -> str:
        """Return a value in the dtype of an operand."""
        return self.cast(value, self.b.spec(self[operand]).dtype)

    def cast(self, value: str, dtype: DType) -> str:
        """Return a value in a dtype."""
        if self.b.spec(value).dtype is dtype:
            return value
        result: str = self.b.cast(value, dtype=dtype.value)
        return result

    def rows(self, value: str) -> str:
        """Return a value as a matrix: all dims but the last become one."""
        shape = self.shape(value)
        if len(shape) == 2:
            return value
        count = 1
        for size in shape[:-1]:
            count *= size
        result: str = self.b.view(value, size=[count, shape[-1]])
        return result

    def sum_leading(self, value: str, keep: int = 1) -> str:
        """Return the sum over all dims but the last ``keep``."""
        rank = self.b.spec(value).rank
        if rank == keep:
            return value
        result: str = self.b.sum(value, dim=list(range(rank - keep)))
        return result


@dataclass(frozen=True, slots=True)
class Formula:
    """One direction of an op.

    operands:   names of its tensors, in order; any of them may be missing in a call.
    attributes: names of its numbers and words, in order.
    write:      writes the nodes and returns the results, in order.
    """

    name: str
    operands: tuple[str, ...]
    attributes: tuple[str, ...]
    write: Callable[[Writer], Sequence[str]]

    def graph(self, specs: Sequence[TensorSpec | None], attributes: Sequence[Any]) -> Graph:
        """Return the graph for operands of these specs. Outputs are named ``result0``, ``result1`` ..."""
        writer = Writer(
            self.name,
            dict(zip(self.operands, specs, strict=True)),
            dict(zip(self.attributes, attributes, strict=True)),
        )
        for i, value in enumerate(self.write(writer)):
            writer.b.output(f"result{i}", value)
        return writer.b.build()
