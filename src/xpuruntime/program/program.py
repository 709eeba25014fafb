"""CompiledProgram: the compiler's output and the runtime's input, as plain data. ``file`` writes and reads it.

    CompiledProgram
      entries    prefill, decode, one per shape bucket: each with an ExecutionPlan per alternative (instruction-set level, target)
      weights    the locations of the model's arrays; ``recipes`` transform them to the buffers that kernels read
      states     buffers that persist between runs
      binaries   object code with its source and its requirements

A kernel sees only buffers. Calls, buffers and recipes refer to each other by value names; only buffers have offsets.
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
from ..storage.tensor_files import unpack_bits
from ..types import TensorSpec
from .segment import Segment

__all__ = [
    "BODY",
    "TENSOR_MAPS",
    "Binary",
    "BufferAllocation",
    "BufferKind",
    "CompiledProgram",
    "EntryPoint",
    "ExecutionPlan",
    "GoldenSample",
    "KernelCall",
    "KernelParam",
    "RecipeStep",
    "StateRef",
    "WeightRef",
    "WeightTransformRecipe",
]


BODY = "body."
"""The beginning of the names of entry points that only control flow runs: branches and bodies of loops."""


TENSOR_MAPS = "cuda:tensor-maps"
"""The requirement of a binary whose kernels have tensor maps as parameters: a runtime of before lacks it, and refuses the program."""


class BufferKind(enum.StrEnum):
    """The role of a buffer in a run."""

    INPUT = "input"
    """the caller's array; kernels only read it"""
    OUTPUT = "output"
    """the caller's array, or one allocated for the caller; kernels write it"""
    WEIGHT = "weight"
    """computed by a recipe when weights are loaded; shared by all executors"""
    STATE = "state"
    """kept by the executor from run to run"""
    SCRATCH = "scratch"
    """part of the arena, shared with buffers that live at other times"""


@dataclass(frozen=True, slots=True)
class BufferAllocation:
    """One value in memory.

    spec:       shape, dtype and layout; inputs and outputs are always dense.
    size_bytes: its bytes, padding included.
    root:       name of the buffer whose memory it shares; its own name if it has its own memory.
    offset:     bytes from the start of the root, or of the arena for scratch; a multiple of 64 for roots.
    first, last: indices of the first and last call that touch its memory; -1 for inputs and ``len(calls)`` for outputs.
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
    """One kernel launch.

    kernel:  its name in the catalogue: ``conv/generated``, ``matmul/onednn``.
    symbol:  the function in the plan's binary; for a library's kernel, the library's name of it.
    inputs, outputs: names of buffers, in the order of the kernel's arguments; a buffer in both is updated in place.
    params:  runtime parameters besides the buffers; compile-time constants are in the source instead.
    tasks:   independent units of work, which a backend distributes over threads or over its grid.
    grain:   minimum number of tasks per thread.
    scratch_bytes: private memory of each thread.
    library: name of the library that has the kernel; empty for generated code.
    options: the library's options, as plain data.
    nodes:   names of the model's nodes that it computes; ops: their IR ops.
    flops, bytes: arithmetic operations and minimum memory traffic, for cost models and reports.
    binary:  index of the binary with the symbol; -1 for the plan's binary.
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
    """One entry point on one target: calls, buffers, and the binary with the kernels.

    target:      ``cpu:x86-64-v4``; ``binary``: index into the program's binaries, -1 if no call uses it.
    calls:       kernel launches in order.
    arena_bytes: scratch memory of one run: the peak of the memory plan.
    batch:       calls per submission to the device.
    """

    target: str
    binary: int
    calls: tuple[KernelCall, ...]
    buffers: tuple[BufferAllocation, ...]
    arena_bytes: int
    batch: int

    def binary_of(self, call: KernelCall) -> int:
        """Return the index of the binary with a call's function; -1 for a library's call."""
        return -1 if call.library else self.binary if call.binary < 0 else call.binary

    @property
    def binaries(self) -> tuple[int, ...]:
        """Indices of the binaries that the plan needs, its own first."""
        default = (self.binary,) if self.binary >= 0 else ()
        return tuple(dict.fromkeys((*default, *(c.binary for c in self.calls if c.binary >= 0))))

    def buffer(self, name: str) -> BufferAllocation:
        """Return the buffer of that name. Raises KeyError."""
        for candidate in self.buffers:
            if candidate.name == name:
                return candidate
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One entry point of a program.

    inputs, outputs: dense specs with the user's names; ``input_buffers``, ``output_buffers``: names of their buffers.
    symbols: values of the model's symbolic dims in this entry point (its shape bucket).
    plans:   alternatives in order of preference; the first one that this machine can run is used.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    input_buffers: tuple[str, ...]
    output_buffers: tuple[str, ...]
    plans: tuple[ExecutionPlan, ...]
    symbols: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_body(self) -> bool:
        """Return True for a branch or the body of a loop, which other entry points run."""
        return self.name.startswith(BODY)


@dataclass(frozen=True, slots=True)
class WeightRef:
    """An array of the model: its spec and its location, with the fields of the IR's weights. With an empty ``file``, the array is
    passed by name when the program is loaded, unless ``data`` holds its bytes (row-major, little-endian, sub-byte types packed, low
    bits first).
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
        """Return the embedded array as a read-only view. Raises FormatError if it is damaged, InputError if there is none."""
        if self.data is None:
            raise InputError(
                f"weight {self.name!r}", "is not in the program", do="Pass its array by that name."
            )
        data = self.data.view() if isinstance(self.data, Segment) else self.data
        shape = tuple(int(d) for d in self.spec.shape if isinstance(d, int))
        if self.spec.dtype.bits < 8:
            return unpack_bits(np.frombuffer(data, np.uint8), self.spec.dtype, shape)
        return np.frombuffer(data, self.spec.dtype.numpy).reshape(shape)


@dataclass(frozen=True, slots=True)
class RecipeStep:
    """One step of a recipe: ``op`` of the recipe table, applied to ``inputs`` (names of weights, or ``%0`` for the first step's
    result) with plain attributes.
    """

    op: str
    inputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WeightTransformRecipe:
    """The transformation of weights to a buffer at load time: batch-norm folding, casts, packing. The last step is the result;
    without steps, the result is the weight ``source``.

    name: the buffer's name in every plan that reads it. ``spec``: the result, in the dtype and layout that kernels read.
    """

    name: str
    spec: TensorSpec
    source: str = ""
    steps: tuple[RecipeStep, ...] = ()


@dataclass(frozen=True, slots=True)
class StateRef:
    """A buffer that persists between runs, initialized from the weight buffer ``init`` or with zeros."""

    name: str
    spec: TensorSpec
    init: str = ""


@dataclass(frozen=True, slots=True)
class Binary:
    """Object code and its requirements.

    target:   ``cpu:x86-64-v4``; ``format``: ``elf-x86-64``, ``elf-aarch64``, ``cubin``, ``wgsl``, ``python`` ...
    requires: instruction sets by the names of ``xpu doctor``'s list (``avx512f`` ...); libraries as ``lib:onednn>=3.2``;
              ``cuda:sm_90``; ``TENSOR_MAPS``.
    source:   the source text; ``symbols``: its entry points. ``compiler``: the compiler with version and flags.
    """

    target: str
    format: str
    requires: tuple[str, ...]
    symbols: tuple[str, ...]
    data: bytes = field(repr=False)
    source: str = field(default="", repr=False)
    compiler: str = ""


@dataclass(frozen=True, slots=True)
class GoldenSample:
    """Inputs of an entry point and the outputs that belong to them, to verify the program on another machine.

    inputs, outputs: embedded arrays under the names of the entry point's specs.
    target: the target of the plan that computed the outputs; ``interpreter`` if the compiling machine cannot run the program.
    exact:  True if the same plan gives equal bits on every machine of its target: generated code alone, with weights that are
            copied, cast or permuted.
    """

    entry: str
    inputs: tuple[WeightRef, ...]
    outputs: tuple[WeightRef, ...]
    target: str
    exact: bool = False


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A model compiled for one or several targets.

    digest: sha256 of everything that it was built from: graph, policy, target, compiler. ``facts``: plain data for reports.
    golden: stored inputs and outputs, which ``xpu verify`` repeats.
    folder: the folder that it was loaded from; paths of weight files are relative to it. Not written.
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
    golden: tuple[GoldenSample, ...] = field(default=(), repr=False)
    folder: str = field(default="", repr=False, compare=False)

    def save(self, path: str | os.PathLike[str], weights: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Write a ``.npubin`` file atomically. ``weights``: arrays to embed, by name.

        Raises FormatError for a program that a reader would refuse, InputError for an array of another dtype or shape, StoreError.
        """
        from .file import save

        save(self, path, weights)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CompiledProgram:
        """Read, memory-map and check a ``.npubin`` file. Raises FormatError if it is truncated, damaged, newer, or not a program."""
        from .file import load

        return load(path)

    def to_bytes(self) -> bytes:
        """Return the bytes that ``save`` writes; equal programs give equal bytes."""
        from .file import to_bytes

        return to_bytes(self)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> CompiledProgram:
        """Read a program from ``to_bytes``'s bytes. Raises FormatError."""
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
        """Return an entry point by name, by default the first one. Raises InputError."""
        for candidate in self.entries:
            if not name or candidate.name == name:
                return candidate
        names = ", ".join(e.name for e in self.entries)
        raise InputError(
            f"program {self.name!r}",
            "has no such entry point",
            got=repr(name),
            do=f"Its entry points are {names}.",
        )
