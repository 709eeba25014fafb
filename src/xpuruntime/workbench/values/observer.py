"""The interface of observers: the intermediate values of one model on one engine, for fixed inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...protocols import Array
from ...types import DType

__all__ = ["ObservedNode", "Observer"]


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """The step that computes a value: the model's nodes, their ops, and the kernel if the engine tells it."""

    nodes: tuple[str, ...]
    ops: tuple[str, ...] = ()
    kernel: str = ""


class Observer(Protocol):
    """The values that can be read between the nodes of a model.

    label:     engine and model, for messages. precision: what the engine computes in.
    order:     names of the values that can be read, in the order in which they are computed. Outputs of the model are among them.
    reads:     for each value that the model computes, the values that its node reads.
    outputs:   names of the values that are the model's outputs, in order.
    runs:      number of runs so far.
    """

    label: str
    precision: DType
    order: Sequence[str]
    reads: Mapping[str, Sequence[str]]
    outputs: Sequence[str]
    runs: int

    def values(self, names: Sequence[str]) -> dict[str, Array]:
        """Run the model, or the part of it that is needed, and return values by name. Raises the errors of building and running."""
        ...

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a value, or None if it is known only after a run."""
        ...

    def dtype_of(self, name: str) -> DType | None:
        """Return the element type of a value, or None if it is known only after a run."""
        ...

    def bytes_of(self, name: str) -> int | None:
        """Return the size of a value, or None if it is known only after a run."""
        ...

    def node_of(self, name: str) -> ObservedNode:
        """Return the step that computes a value."""
        ...

    def close(self) -> None:
        """Free the engine's resources. May be called twice."""
        ...
