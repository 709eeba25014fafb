"""The interface of kernels: one implementation of an op (or fused op) on a kind of target.

``supports`` answers yes, or no with a reason. ``lower`` returns the code: stages (usually one) of independent tasks. A stage's
``source`` is the text of one function named ``KERNEL``. The compiler renames it, and equal texts become one function.

C ABI of a CPU stage::

    extern "C" void KERNEL(void *const *args, const void *params, int64_t begin, int64_t end, void *scratch)

``args`` are the stage's arguments in order, and ``params`` packs ``KernelParam`` as 8-byte values. A call computes tasks ``begin`` to ``end`` of
``0 .. tasks``; every split over threads gives the same bits. ``scratch`` is ``scratch_bytes`` of thread-private memory, 64-byte aligned.

CUDA ABI of a stage::

    extern "C" __global__ void KERNEL(T0 const *in0, T1 *out0, ..., params...)

It takes one pointer per argument in order, then ``params`` by value. ``options`` are the launch: ``grid`` and ``block`` (three sizes each),
``shared`` bytes, and optionally ``cluster`` (three sizes), ``pdl``, and ``prologue_reads``: arguments that it reads before the previous launch
is complete (``compiler/pdl.py``). ``tasks`` is the number of blocks. There is no scratch: a stage that needs workspace declares temps.

Code that cannot be part of the common source (a user's text, the output of another compiler) is a ``Unit`` of its stage. It is compiled
separately, and its function has the same ABI.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

from ..codegen.target import CodegenTarget
from ..decisions import Support
from ..ir.attributes import Attrs, Const
from ..ir.graph import Node
from ..program.program import Binary, KernelParam, RecipeStep
from ..storage.blocks import GroupForm
from ..types import TensorSpec

__all__ = [
    "VECTOR_BYTES",
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
VECTOR_BYTES = 16
"""The widest memory access of a GPU's thread."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a node reads.

    spec:      its shape, dtype and layout.
    is_weight: whether it is constant, so that it may be packed at load.
    const:     its content, if it is a constant of the graph.
    groups:    the groups that hold a weight without loss, if it is stored in blocks along its last dim.
    """

    name: str
    spec: TensorSpec
    is_weight: bool = False
    const: Const | None = None
    groups: GroupForm | None = None


@dataclass(frozen=True, slots=True)
class NodeCall:
    """A node as kernels see it: static specs with layouts. ``inputs`` follow the node's operands: a tensor, a number, or None if absent."""

    node: Node
    inputs: tuple[Operand | Scalar | None, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def op(self) -> str:
        """The IR's name of the op."""
        return self.node.op

    @property
    def attrs(self) -> Attrs:
        """The node's attributes, with defaults filled in."""
        return self.node.attrs

    @property
    def tensors(self) -> tuple[Operand, ...]:
        """The operands that are tensors."""
        return tuple(i for i in self.inputs if isinstance(i, Operand))

    def tensor(self, position: int) -> Operand:
        """Return a tensor operand by position. Raises TypeError if it is a number or absent."""
        operand = self.inputs[position] if position < len(self.inputs) else None
        if not isinstance(operand, Operand):
            raise TypeError(f"operand {position} of {self.op} must be a tensor, got {operand!r}")
        return operand

    def optional(self, position: int) -> Operand | None:
        """Return a tensor operand, or None if it is absent."""
        return (
            None if position >= len(self.inputs) or self.inputs[position] is None else self.tensor(position)
        )


@dataclass(frozen=True, slots=True)
class Built:
    """A unit as object code.

    symbol:  the function's name.
    options: further launch options, which only its compiler knows.
    params:  parameters after the stage's own.
    """

    binary: Binary
    symbol: str
    options: Mapping[str, Any] = field(default_factory=dict)
    params: tuple[KernelParam, ...] = ()


class Unit(Protocol):
    """Code that is compiled separately and has its own binary. Units with equal digests are equal."""

    @property
    def digest(self) -> str:
        """sha256 of everything that determines the object code."""
        ...

    def build(self, target: CodegenTarget) -> Built:
        """Return the object code. Raises BuildError with the compiler's text."""
        ...


@dataclass(frozen=True, slots=True)
class Stage:
    """One function and its tasks.

    stem:    the base of the function's name: ``conv3x3_64x64``.
    args:    the function's arguments in order: ``in0`` (operand 0), ``out0``, ``temp0``. A packed weight operand is passed packed.
    tasks:   independent tasks (CUDA: blocks).
    grain:   minimum tasks per thread.
    parts:   parts of the target's prelude that the text uses (``exp``, ``erf`` ...).
    copies:  the stage only copies the first operand to the first result. It is dropped where both share memory.
    library, options: a library call, as in KernelCall. ``source`` is then empty, and ``stem`` is the library's name of the kernel.
    unit:    code that is compiled separately. ``source`` is then empty.
    flops, bytes: arithmetic operations and memory traffic, for roofline estimates.
    aligned_source: the text without the code for unaligned memory, used if the buffers of all ``aligned_args`` (positions in ``args``) begin
             at multiples of ``VECTOR_BYTES``; empty if the text has no such code.
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
    aligned_source: str = ""
    aligned_args: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight operand in the form that the kernel reads: steps over ``%in`` (the dense operand), and the result's shape and dtype.

    groups: ``%in`` is the operand as groups of this form instead, int8[..., groups, bytes of a group].
    """

    steps: tuple[RecipeStep, ...]
    spec: TensorSpec
    groups: GroupForm | None = None


@dataclass(frozen=True, slots=True)
class LoweredCall:
    """A node as code.

    temps:         sizes in bytes of workspace buffers that stages share.
    counters:      bytes of the buffer ``counters``, which all nodes of a program share. It is zero when a run begins, and each stage that uses it
                   leaves it zero.
    weights:       operand position to the packed form; only for operands with ``is_weight``.
    extra_weights: further arguments by name (``extra0``): an operand position, and another packing of that weight.
    in_place:      output position to the operand whose memory it may reuse if nothing reads that later. Element i of the output is written
                   after element i of the operand was read, by the same task.
    accumulates:   dtype of sums.
    deterministic: equal inputs give equal bits, for any number of threads.
    batch_invariant: a row of the results (a sample, a token) has the same bits wherever it is in the batch, whatever the other rows are.
    """

    stages: tuple[Stage, ...]
    temps: tuple[int, ...] = ()
    counters: int = 0
    weights: Mapping[int, Packed] = field(default_factory=dict)
    extra_weights: Mapping[str, tuple[int, Packed]] = field(default_factory=dict)
    in_place: Mapping[int, int] = field(default_factory=dict)
    accumulates: str = "float32"
    deterministic: bool = True
    batch_invariant: bool = True

    @property
    def workspace_bytes(self) -> int:
        """Return the bytes of the workspace: temps and the largest scratch of one thread."""
        return sum(self.temps) + max((s.scratch_bytes for s in self.stages), default=0)


class Kernel(ABC):
    """An implementation of ops on one kind of target. Every entry of the catalogue derives from it.

    name:       ``family/kernel`` (``matmul/generated``).
    ops:        the IR ops that it computes.
    on_request: whether only a policy that names the kernel selects it; ``opt_in_reason`` says why (it changes results, it is a user's).
    variants:   pins of a library's algorithms that compete with the library's own choice if times are measured.
    """

    name: str
    ops: tuple[str, ...]
    on_request: bool = False
    opt_in_reason: str = "changes results"
    variants: ClassVar[tuple[Mapping[str, int], ...]] = ()

    @abstractmethod
    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return whether the kernel computes this node on this target. A no has a reason code and text."""

    @abstractmethod
    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return the node as code. The caller has checked ``supports``."""

    def leads(self, call: NodeCall, target: CodegenTarget) -> bool:
        """Return whether this kernel precedes those before it in the catalogue, because it is the fastest for this call."""
        return False

    def repays_fusion(self, call: NodeCall, target: CodegenTarget) -> bool:
        """Return whether this kernel is faster than those of the parts from which a pass would make the call's node."""
        return True

    def view_alignment(self, call: NodeCall, target: CodegenTarget) -> int | None:
        """Return the alignment in bytes at which a value that the node reads or writes may be stored inside a larger one; None: a copy is read faster."""
        return target.place_alignment

    def batch_invariant_form(self) -> Kernel:
        """Return the kernel to use where a policy demands ``batch_invariant``: this one, or one of the same name that calls no library."""
        return self

    def exact_form(self) -> Kernel:
        """Return the kernel to use where a rule demands ``deterministic``: this one, or one of the same name that adds in the same order whether an
        operand is constant, as weights are in inference, or computed, as they are in training.
        """
        return self

    def pinned(self, name: str, values: Mapping[str, int]) -> Kernel | None:
        """Return the kernel with a library's algorithm fixed by a policy (``policies.pins``); None if it has no algorithms to choose from."""
        return None


def operand_ref(kind: str, position: int) -> str:
    """Return a stage's name of an argument: ``in0``, ``out1``, ``temp0``."""
    return f"{kind}{position}"
