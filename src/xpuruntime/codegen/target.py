"""CodegenTarget: a target of code generation. The compiler calls it; a porter implements one (see docs/how-to/porting-to-a-new-device.md).

The four methods of the porting guide name kernels and their files; ``assemble`` turns the functions that a plan calls into one
binary. All sizes of generated code are in ``config`` (TargetConfig).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import BuildError
from ..program.program import Binary
from ..targets import TargetConfig

if TYPE_CHECKING:
    from .local_libraries import LocalLibraries

__all__ = ["PORTABLE", "CodegenTarget"]


PORTABLE = TargetConfig(
    name="portable",
    channel_alignment_bytes=1,
    channel_tile=1,
    matmul_tile=1,
    max_threadgroup_1d=256,
    max_threadgroup_2d=16,
    max_threadgroup_3d_xy=8,
    max_threadgroup_3d_z=4,
    max_dispatches_per_batch=1000,
)
"""Sizes for a target without its own: no padding, and thread groups that every device supports."""


class CodegenTarget(ABC):
    """One target. ``name`` is recorded in plans and binaries: ``cpu:x86-64-v4``, ``npu-sim:edge``. A backend of the kind before the colon
    runs them.

    kind:        which of our own kernels are written for it (``cpu``, ``cuda``); empty for a target that brings its own.
    takes_fused: whether there are kernels for what passes make of a model: fused nodes, values in other layouts. Without, the
                 compiler keeps to the basic passes and to dense values.
    any_layout:  ops whose kernels are equally fast in every layout: no layout conversion is inserted for them.
    few_rows:    rows up to which a decoder's layer is one kernel with its norm or gate; beyond, other kernels read its weight faster.
    place_alignment: alignment in bytes of a value that the compiler stores inside a larger one.
    libraries:   those of this machine where the target represents it (``cpu``, ``cuda:0``): they are asked before one of their kernels is taken.
    here:        whether code runs where it is compiled, so that libraries which are here are there, too: the target represents this machine, or
                 a session compiles, which does so again without what a library declines.
    """

    name: str = "custom"
    config: TargetConfig = PORTABLE
    kind: str = ""
    takes_fused: bool = False
    any_layout: frozenset[str] = frozenset()
    few_rows: int = 8
    place_alignment: int = 1
    libraries: LocalLibraries | None = None
    here: bool = False

    @abstractmethod
    def elementwise_kernel(self, kernel_name: str) -> tuple[str, str]:
        """Return the entry point and the file of an elementwise kernel (``relu``, ``add`` ...)."""

    @abstractmethod
    def matmul_kernel(self, is_vec: bool, transpose_b: bool) -> tuple[str, str]:
        """Return the entry point and the file of a matrix product; ``is_vec``: the left side is one row."""

    @abstractmethod
    def fused_kernel(self, kernel_type: str) -> tuple[str, str]:
        """Return the entry point and the file of a kernel of several ops (``softmax``, ``rmsnorm``, ``conv`` ...)."""

    @abstractmethod
    def shader_source(self, filename: str) -> str:
        """Return the text of a kernel file."""

    def assemble(self, functions: Mapping[str, str], parts: frozenset[str]) -> Binary:
        """Return one binary of functions (symbol to text) over the named parts of the prelude. Without a toolchain: the texts, as JSON.

        Raises BuildError with the toolchain's text.
        """
        data = json.dumps(dict(functions), sort_keys=True).encode()
        return Binary(
            self.name, "text", (), tuple(functions), data, "\n".join(functions.values()), type(self).__name__
        )

    def assemble_apart(
        self, symbol: str, text: str, parts: Sequence[str] = (), flags: Sequence[str] = ()
    ) -> Binary:
        """Return one binary of a text that defines ``symbol``, after the named parts of the prelude; ``flags`` are passed to the compiler.

        Raises BuildError: with the compiler's text, or since the target takes no such texts.
        """
        raise BuildError(
            self.name, "does not support kernels from user source", do="Add the kernel to the catalogue."
        )
