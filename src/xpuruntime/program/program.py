"""CompiledProgram: what the compiler hands to the runtime, as plain data. ``file`` writes and reads it.

    CompiledProgram
      entries    prefill, decode, one per shape bucket: each an ExecutionPlan per alternative (instruction-set level, target)
      weights    where the model's own arrays lie; ``recipes`` make the buffers that kernels read out of them
      states     buffers that live from run to run
      binaries   object code with its sources and with what it needs of a machine

A kernel sees buffers only. Names of values join calls, buffers and recipes; no offset stands anywhere but in a buffer.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decisions import Decision
from ..errors import InputError
from ..tensor_files import unpack_bits
from ..types import TensorSpec
from .segment import Segment

__all__ = [
    "Binary",
    "BufferAllocation",
    "BufferKind",
    "CompiledProgram",
    "EntryPoint",
    "ExecutionPlan",
    "KernelCall",
    "KernelParam",
    "RecipeStep",
    "StateRef",
    "WeightRef",
    "WeightTransformRecipe",
]


class BufferKind(enum.StrEnum):
    """What a buffer is to a run."""

    INPUT = "input"
    """the caller's array; kernels only read it"""
    OUTPUT = "output"
    """the caller's array, or one made for him; kernels write it"""
    WEIGHT = "weight"
    """made by a recipe when weights are loaded; shared by every executor"""
    STATE = "state"
    """kept by the executor from run to run"""
    SCRATCH = "scratch"
    """a place in the arena, shared with buffers that live at another time"""


@dataclass(frozen=True, slots=True)
class BufferAllocation:
    """One value in memory.

    spec:       shape, dtype and layout; borders (inputs, outputs) are always dense.
    size_bytes: bytes that it takes, padding included.
    root:       name of the buffer whose memory it shares; its own name when it has its own.
    offset:     bytes from the start of the root; in scratch from the start of the arena, for roots a multiple of 64.
    first, last: indices of the first and the last call that touch its memory, -1 and ``len(calls)`` at the borders.
    """

    name: str
    kind: BufferKind
    spec: TensorSpec
    size_bytes: int
    root: str
    offset: int = 0
    first: int = -1
    last: int = -1


@dataclass(frozen=True, slots=True)
class KernelParam:
    """One parameter of a kernel, packed by the target: ``type`` is ``i64`` or ``f64``."""

    name: str
    type: str
    value: int | float


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One dispatch.

    kernel:  the catalogue's name: ``conv/generated``, ``matmul/onednn``.
    symbol:  the function in the alternative's binary; for a library's kernel the library's own word.
    inputs, outputs: names of buffers, in the order of the kernel's arguments; an output may also stand in the inputs (in place).
    params:  declared parameters beside the buffers; whatever is fixed at compile time stands in the source instead.
    tasks:   independent units of work; a backend spreads them over threads or over its grid.
    grain:   smallest number of tasks that is worth a thread of its own.
    scratch_bytes: private memory of each thread.
    library: name of the library that has the kernel; empty for generated code.
    options: what the library needs to know, plain data.
    nodes:   names of the model's nodes that it computes; ops: what the IR calls them.
    flops, bytes: arithmetic operations, and bytes that must move at least, for cost models and reports.
    binary:  index of the binary that has the symbol, where that is not the plan's own: code that was compiled apart; -1: the plan's.
    """

    kernel: str
    symbol: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    params: tuple[KernelParam, ...] = ()
    tasks: int = 1
    grain: int = 1
    scratch_bytes: int = 0
    library: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    flops: int = 0
    bytes: int = 0
    binary: int = -1


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """What one entry point runs on one target: kernels, buffers, and which binary holds the kernels.

    target:      ``cpu:x86-64-v4``; ``binary``: index into the program's binaries, -1 where no call names a function of it.
    calls:       in the order in which they run.
    arena_bytes: scratch memory of one run: the peak that the memory plan reached.
    batch:       calls per submission to the device.
    """

    target: str
    binary: int
    calls: tuple[KernelCall, ...]
    buffers: tuple[BufferAllocation, ...]
    arena_bytes: int
    batch: int

    def binary_of(self, call: KernelCall) -> int:
        """Index of the binary that has a call's function; -1 for a library's call."""
        return -1 if call.library else self.binary if call.binary < 0 else call.binary

    @property
    def binaries(self) -> tuple[int, ...]:
        """Indices of every binary that the plan needs, each once: its own first."""
        own = (self.binary,) if self.binary >= 0 else ()
        return tuple(dict.fromkeys((*own, *(c.binary for c in self.calls if c.binary >= 0))))

    def buffer(self, name: str) -> BufferAllocation:
        """Return a buffer by name. Raises KeyError."""
        for candidate in self.buffers:
            if candidate.name == name:
                return candidate
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One way into a program.

    inputs, outputs: dense specs with the names that the user sees; ``input_buffers``, ``output_buffers``: names of their buffers.
    symbols: what the model's symbolic dims stand for in this entry point (its shape bucket).
    plans:   alternatives in order of preference; the first whose binary this machine can run is taken.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    input_buffers: tuple[str, ...]
    output_buffers: tuple[str, ...]
    plans: tuple[ExecutionPlan, ...]
    symbols: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WeightRef:
    """An array of the model: what it is and where it lies. Fields as the IR's weights have them; an empty ``file`` means that
    whoever loads the program hands the array in by name, unless ``data`` holds its bytes (row-major, little-endian, sub-byte types
    packed, low bits first).
    """

    name: str
    spec: TensorSpec
    file: str = ""
    format: str = ""
    key: str = ""
    offset: int = 0
    digest: str = ""
    data: bytes | Segment | None = field(default=None, repr=False)

    def array(self) -> NDArray[Any]:
        """Return the embedded array, read-only, not copied. Raises FormatError when it was damaged, InputError where there is none."""
        if self.data is None:
            raise InputError(
                f"weight {self.name!r}", "is not in the program", do="Hand its array in by that name."
            )
        data = self.data.view() if isinstance(self.data, Segment) else self.data
        shape = tuple(int(d) for d in self.spec.shape if isinstance(d, int))
        if self.spec.dtype.bits < 8:
            return unpack_bits(np.frombuffer(data, np.uint8), self.spec.dtype, shape)
        return np.frombuffer(data, self.spec.dtype.numpy).reshape(shape)


@dataclass(frozen=True, slots=True)
class RecipeStep:
    """One step: ``op`` of the recipe table over earlier results (``inputs``: names of weights, or ``%0`` for the first step's
    result) with plain attributes.
    """

    op: str
    inputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WeightTransformRecipe:
    """How a weight buffer is made when weights are loaded: batch-norm folding, casts, packing. The last step is the result;
    without steps it is the weight ``source`` itself.

    name: the buffer's name in every plan that reads it. ``spec``: the result, in the dtype and layout that kernels read.
    """

    name: str
    spec: TensorSpec
    source: str = ""
    steps: tuple[RecipeStep, ...] = ()


@dataclass(frozen=True, slots=True)
class StateRef:
    """A buffer that lives from run to run; it starts from the weight buffer ``init``, or from zeros."""

    name: str
    spec: TensorSpec
    init: str = ""


@dataclass(frozen=True, slots=True)
class Binary:
    """Object code, and what a machine must have to run it.

    target:   ``cpu:x86-64-v4``; ``format``: ``elf-x86-64``, ``elf-aarch64``, ``cubin``, ``wgsl``, ``python`` ...
    requires: instruction sets by the names of ``xpu doctor``'s list (``avx512f`` ...); libraries as ``lib:onednn>=3.2``.
    source:   the text it was made of; ``symbols``: its entry points. ``compiler``: what made it, with version and flags.
    """

    target: str
    format: str
    requires: tuple[str, ...]
    symbols: tuple[str, ...]
    data: bytes = field(repr=False)
    source: str = field(default="", repr=False)
    compiler: str = ""


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A model as programs for one or several targets.

    digest: sha256 of everything that it was built from: graph, policy, target, compiler. ``facts``: plain data for reports.
    folder: where it was loaded from; files of weights are named relative to it. Not written.
    """

    name: str
    entries: tuple[EntryPoint, ...]
    weights: tuple[WeightRef, ...] = ()
    recipes: tuple[WeightTransformRecipe, ...] = ()
    states: tuple[StateRef, ...] = ()
    binaries: tuple[Binary, ...] = ()
    decisions: tuple[Decision, ...] = field(default=(), repr=False)
    digest: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    folder: str = field(default="", repr=False, compare=False)

    def save(self, path: str | os.PathLike[str], weights: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Write a ``.npubin`` file, whole or not at all; ``weights``: arrays by name to embed.

        Raises FormatError for a program that a reader would refuse, InputError for an array of another type, StoreError.
        """
        from .file import save

        save(self, path, weights)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CompiledProgram:
        """Read what ``save`` wrote, memory-mapped and checked. Raises FormatError: truncated, damaged, newer, not a program."""
        from .file import load

        return load(path)

    def to_bytes(self) -> bytes:
        """What ``save`` writes; equal programs give equal bytes."""
        from .file import to_bytes

        return to_bytes(self)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> CompiledProgram:
        """Return the inverse of ``to_bytes``. Raises FormatError."""
        from .file import from_bytes

        return from_bytes(data)

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """Inputs of the first entry point."""
        return self.entries[0].inputs

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """Outputs of the first entry point."""
        return self.entries[0].outputs

    def entry(self, name: str = "") -> EntryPoint:
        """Return an entry point by name, the first without one. Raises InputError."""
        for candidate in self.entries:
            if not name or candidate.name == name:
                return candidate
        known = ", ".join(e.name for e in self.entries)
        raise InputError(
            f"program {self.name!r}", "has no such entry point", got=repr(name), do=f"It has {known}."
        )
