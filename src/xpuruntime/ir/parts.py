"""The parts of a graph: values, nodes and their sources, weights, states, outputs."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import IrError
from ..storage.tensor_files import pack_bits, unpack_bits
from ..types import DType, TensorSpec
from .attributes import Attrs
from .serialization.text_writer import node_text

__all__ = ["Input", "Node", "Output", "Source", "State", "Value", "Weight", "known_spec"]

Input: TypeAlias = "str | bool | int | float | None"
"""An operand of a node: a value's name, an immediate number, or None for an absent optional operand."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value's name and spec. ``spec`` is None if unknown (a result of an opaque op that is not a tensor, or of unknown rank)."""

    name: str
    spec: TensorSpec | None

    def __post_init__(self) -> None:
        if self.spec is not None and (
            self.spec.name or self.spec.layout
        ):  # the spec has neither the name nor a layout
            object.__setattr__(self, "spec", TensorSpec(self.spec.shape, self.spec.dtype))

    def __str__(self) -> str:
        return f"%{self.name}: {'?' if self.spec is None else self.spec}"


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a node in the user's model. Any field may be empty.

    name:   the node's name in the model (ONNX node name, FX node name).
    op:     the model's name of the op: ``Conv``, ``com.microsoft::FusedConv``, ``aten.addmm.default``.
    module: path of the PyTorch module: ``layers.0.attn.q_proj``.
    file, line: the line of Python code.
    """

    name: str = ""
    op: str = ""
    module: str = ""
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        location = f"{self.file}:{self.line}" if self.file else ""
        return (
            " ".join(part for part in (self.name, self.op and f"({self.op})", self.module, location) if part)
            or "?"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One application of an op, named like its first output. ``sources``: the model's nodes that it computes; a fused node has several."""

    op: str
    inputs: tuple[Input, ...]
    attrs: Attrs
    outputs: tuple[Value, ...]
    sources: tuple[Source, ...] = ()

    @property
    def name(self) -> str:
        """The first output's name, unique in the graph."""
        return self.outputs[0].name if self.outputs else ""

    @property
    def spec(self) -> TensorSpec:
        """The first output's spec. Raises IrError when it is unknown."""
        return known_spec(self.outputs[0])

    @property
    def values(self) -> tuple[str, ...]:
        """Names of the values that it reads, in order, with repetitions."""
        return tuple(i for i in self.inputs if isinstance(i, str))

    def _key(self) -> tuple[object, ...]:
        # repr distinguishes 1, 1.0, True and signed zeros, and NaN equals itself
        return (self.op, repr(self.inputs), self.attrs, self.outputs, self.sources)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and (self is other or self._key() == other._key())

    def __hash__(self) -> int:
        return hash((self.op, self.name))

    def __str__(self) -> str:
        return node_text(self)


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant of the model that is stored outside the graph: its value and its location.

    file:   path of the file, relative to the graph's; empty if the caller passes the array by name.
    format: ``safetensors`` (``key`` names the tensor) or ``raw`` (little-endian, dense, at ``offset``).
    digest: sha256 of the elements' bytes (row-major, little-endian), if known.
    data:   the elements (row-major, little-endian, sub-byte types packed) as base64, if no checkpoint has them.
    """

    value: Value
    file: str = ""
    format: str = ""
    key: str = ""
    offset: int = 0
    digest: str = ""
    data: str = ""

    @property
    def name(self) -> str:
        """The value's name."""
        return self.value.name

    @property
    def spec(self) -> TensorSpec:
        """The value's spec."""
        return known_spec(self.value)

    @staticmethod
    def encoded(array: NDArray[Any]) -> str:
        """Encode an array for ``data``."""
        dtype = DType.of(array.dtype)
        flat = pack_bits(array, dtype) if dtype.bits < 8 else np.ascontiguousarray(array)
        return base64.b64encode(flat.tobytes()).decode()

    def content(self) -> bytes:
        """Decode the bytes of ``data``. Raises IrError if it is not base64, or if the size does not match the spec."""
        try:
            data = base64.b64decode(self.data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise IrError(f"weight %{self.name}", "has data that is not base64", got=str(error)) from error
        if len(data) != self.spec.size_bytes:
            actual_size = f"{len(data)} bytes for {self.spec}"
            raise IrError(f"weight %{self.name}", "has data of the wrong size", got=actual_size)
        return data

    def array(self) -> NDArray[Any]:
        """Return the elements of ``data``, read-only. Raises IrError as ``content``."""
        data, spec = self.content(), self.spec
        shape = tuple(int(d) for d in spec.shape if isinstance(d, int))
        if spec.dtype.bits < 8:
            return unpack_bits(np.frombuffer(data, np.uint8), spec.dtype, shape)
        return np.frombuffer(data, spec.dtype.numpy).reshape(shape)


@dataclass(frozen=True, slots=True)
class State:
    """A buffer that persists between runs. Reading ``name`` gives its content at the start of the run.

    init: name of the weight that initializes it; None for zeros.
    next: value that becomes its content at the end of the run (it may alias the state); None if the run does not change it.
    """

    value: Value
    init: str | None = None
    next: str | None = None

    @property
    def name(self) -> str:
        """The value's name."""
        return self.value.name

    @property
    def spec(self) -> TensorSpec:
        """The value's spec."""
        return known_spec(self.value)


@dataclass(frozen=True, slots=True)
class Output:
    """One output: the user's name of it, and the value."""

    name: str
    value: str


def known_spec(value: Value) -> TensorSpec:
    """Return the value's spec. Raises IrError if it is unknown, as after an opaque op."""
    if value.spec is None:
        raise IrError(
            f"value %{value.name}",
            "has no known tensor type, because an opaque op produces it",
            do="Use an engine that knows the op for its users, too.",
        )
    return value.spec
