"""Kernel: one implementation of one op (or fused op) on a kind of target, and its properties.

``supports`` answers yes, or no with a reason. ``lower`` gives the code: stages (usually one) of independent tasks. A stage's
``source`` is the text of one function called ``KERNEL``; the compiler names it, and equal texts become one function.

C ABI of a CPU stage::

    extern "C" void KERNEL(void *const *args, const void *params, int64_t begin, int64_t end, void *scratch)

``args`` are the stage's arguments in order, ``params`` packs ``KernelParam`` as 8-byte values, and tasks ``begin`` to ``end`` of
``0 .. tasks`` are computed; any split over threads gives the same bits. ``scratch`` is ``scratch_bytes`` of the thread's own, 64-byte aligned.

CUDA ABI of a stage::

    extern "C" __global__ void KERNEL(T0 const *in0, T1 *out0, ..., params...)

It takes one pointer per argument in order, then ``params`` by value. ``options`` are the launch: ``grid`` and ``block`` (three sizes each),
``shared`` bytes, and optionally ``cluster`` (three sizes), ``pdl``, and ``early``: arguments that it reads before the previous launch is complete
(``compiler/pdl.py``). ``tasks`` is the number of blocks. There is no scratch: a stage that needs workspace declares temps.

Code that cannot be part of the common source (a user's text, the output of another compiler) is a ``Unit`` of its stage. It is compiled
separately, and its function has the same ABI.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from ..codegen.target import CodegenTarget
from ..decisions import Support
from ..ir.attributes import Attrs, Const
from ..ir.graph import Node
from ..program.program import Binary, KernelParam, RecipeStep
from ..types import TensorSpec

__all__ = [
    "Built",
    "Kernel",
    "LoweredCall",
    "NodeCall",
    "Operand",
    "Packed",
    "Scalar",
    "Stage",
    "Unit",
    "operand_ref",
]

Scalar: TypeAlias = bool | int | float


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a node reads.

    It has a spec with layout, whether it is a weight (known before the run, so it may be packed), and its content if it is a constant of the graph.
    """

    name: str
    spec: TensorSpec
    is_weight: bool = False
    const: Const | None = None


@dataclass(frozen=True, slots=True)
class NodeCall:
    """A node as kernels see it: static specs with layouts. ``inputs`` follow the node's operands: a tensor, a number, or None."""

    node: Node
    inputs: tuple[Operand | Scalar | None, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def op(self) -> str:
        """The IR's name of the op."""
        return self.node.op

    @property
    def attrs(self) -> Attrs:
        """The node's attributes, complete and canonical."""
        return self.node.attrs

    @property
    def tensors(self) -> tuple[Operand, ...]:
        """The operands that are tensors."""
        return tuple(i for i in self.inputs if isinstance(i, Operand))

    def tensor(self, position: int) -> Operand:
        """Return a tensor operand by position. Raises TypeError if it is a number or absent."""
        found = self.inputs[position] if position < len(self.inputs) else None
        if not isinstance(found, Operand):
            raise TypeError(f"operand {position} of {self.op} is {found!r}, no tensor")
        return found

    def optional(self, position: int) -> Operand | None:
        """Return a tensor operand, or None if it is absent."""
        return (
            None if position >= len(self.inputs) or self.inputs[position] is None else self.tensor(position)
        )


@dataclass(frozen=True, slots=True)
class Built:
    """A unit as object code.

    It has the function's name, further launch ``options`` that only its compiler knows, and ``params`` after the stage's own.
    """

    binary: Binary
    symbol: str
    options: Mapping[str, Any] = field(default_factory=dict)
    params: tuple[KernelParam, ...] = ()


class Unit(Protocol):
    """Code that is compiled separately and has a binary of its own. Equal digests are equal code."""

    @property
    def digest(self) -> str:
        """sha256 of everything that decides the object code."""
        ...

    def build(self, target: CodegenTarget) -> Built:
        """Return the object code. Raises BuildError with the compiler's text."""
        ...


@dataclass(frozen=True, slots=True)
class Stage:
    """One function and its tasks.

    stem:   what it does, for names: ``conv3x3_64x64``.
    args:   ``in0`` (operand 0), ``out0``, ``temp0``: the function's arguments in order. Operands of which a kernel packed a
            weight are the packed ones.
    parts:  parts of the target's prelude that the text uses (``exp``, ``erf`` ...).
    copies: it only brings the first operand to the first result; there is nothing to do where both are one place.
    library, options: for a library's kernel, as in KernelCall; then ``source`` is empty and ``stem`` the library's word.
    unit: code that is compiled apart; then ``source`` is empty.
    """

    stem: str
    source: str
    args: tuple[str, ...]
    tasks: int = 1
    grain: int = 1
    scratch_bytes: int = 0
    params: tuple[KernelParam, ...] = ()
    parts: frozenset[str] = frozenset()
    copies: bool = False
    library: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    flops: int = 0
    bytes: int = 0
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight operand in the form that the kernel reads: steps over ``%in`` (the operand, dense) and the result's shape and dtype."""

    steps: tuple[RecipeStep, ...]
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class LoweredCall:
    """A node as code.

    temps:    bytes of buffers that live between the stages.
    counters: bytes of the buffer ``counters``, which stages name among their results: zeros when a run begins, and each stage that uses
          it leaves zeros behind; all nodes of a program share it.
    weights:  operand position to the packed form; only for operands with ``is_weight``.
    beside:   further arguments by name (``beside0``): made of a known operand, in addition to its packed form.  # words: beside
    in_place: output position to the operand whose memory it may reuse when nothing reads that later: element i of the output
          is written after element i of the operand was read, by the same task.
    accumulates: dtype of sums; ``deterministic``: equal inputs give equal bits, for any number of threads.
    """

    stages: tuple[Stage, ...]
    temps: tuple[int, ...] = ()
    counters: int = 0
    weights: Mapping[int, Packed] = field(default_factory=dict)
    beside: Mapping[str, tuple[int, Packed]] = field(default_factory=dict)
    in_place: Mapping[int, int] = field(default_factory=dict)
    accumulates: str = "float32"
    deterministic: bool = True


class Kernel(ABC):
    """An implementation of ops on one kind of target. Every entry of the catalogue derives from it.

    name:       ``family/kernel`` (``matmul/generated``).
    ops:        the IR ops that it computes.
    on_request: only a policy that names the kernel takes it; ``asks`` says why (it changes results, it is a user's).
    """

    name: str
    ops: tuple[str, ...]
    on_request: bool = False
    asks: str = "changes results"

    @abstractmethod
    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return whether the kernel computes this node on this target. A no has a code and a reason."""

    @abstractmethod
    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return the node as code. The caller has asked ``supports`` before."""

    def leads(self, call: NodeCall, target: CodegenTarget) -> bool:
        """Return whether this kernel is preferred over those before it in the catalogue, because it is the fastest at this call."""
        return False

    def pinned(self, name: str, values: Mapping[str, int]) -> Kernel | None:
        """Return the kernel with a library's algorithm fixed by the values of a policy (``policies.pins``), or None if it has none."""
        return None


def operand_ref(kind: str, position: int) -> str:
    """Return ``in0``, ``out1``, ``temp0``: the stage's names of its arguments."""
    return f"{kind}{position}"
