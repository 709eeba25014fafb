"""``CodegenTarget``: a target of code generation. A porter implements one (docs/how-to/porting-to-a-new-device.md).

The four methods of the porting guide name kernels and their files. ``assemble`` turns the functions of a plan into one binary. All sizes of
generated code are in ``config`` (TargetConfig).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from .. import _core
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
    """A target. Plans and binaries record its ``name``: ``cpu:x86-64-v4``, ``npu-sim:edge``. A backend of the kind before the colon runs them.

    kind:        which of our own kernels are for it (``cpu``, ``cuda``); empty for a target that brings its own.
    takes_fused: whether kernels exist for fused nodes and other layouts. If not, the compiler runs only the basic passes, on dense values.
    any_layout:  ops whose kernels are equally fast in every layout, so that no layout conversion is inserted for them.
    row_major_taps: maximum taps of a strided filter for which convolutions of one input channel are as fast with row-major results; 0: none is.
    row_major_filters: maximum filters with which convolutions of 32-bit and 64-bit floats are faster with row-major operands, and half of it for
                 16-bit floats; 0: none is.
    few_rows:    maximum rows for which a decoder's layer is fused with its norm or gate. For more rows, other kernels read the weight faster.
    few_rows_16_bits: the same for products of 16-bit floats.
    gates_many_rows: whether a kernel multiplies more rows of 16-bit floats with the gate in its epilogue.
    place_alignment: alignment in bytes of a value that the compiler stores inside a larger one.
    library_workspaces: whether libraries need workspaces, which the executor places where the arena is free.
    functions_per_binary: maximum number of functions that are compiled to one binary; 0 for no limit. With a limit, binaries compile side by side.
                 ``most_functions`` may vary it by what the functions contain.
    libraries:   this machine's libraries, if the target represents it (``cpu``, ``cuda:0``). The compiler asks them before it chooses one of their
                 kernels.
    here:        whether the code runs where it is compiled, with the same libraries: the target represents this machine, or a session
                 compiles (which compiles again without what a library declines).
    """

    name: str = "custom"
    config: TargetConfig = PORTABLE
    kind: str = ""
    takes_fused: bool = False
    any_layout: frozenset[str] = frozenset()
    row_major_taps: int = 0
    row_major_filters: int = 0
    few_rows: int = 8
    few_rows_16_bits: int = 8
    gates_many_rows: bool = False
    place_alignment: int = 1
    library_workspaces: bool = False
    functions_per_binary: int = 0
    libraries: LocalLibraries | None = None
    here: bool = False

    @abstractmethod
    def elementwise_kernel(self, kernel_name: str) -> tuple[str, str]:
        """Return the entry point and the file of an elementwise kernel (``relu``, ``add`` ...)."""

    @abstractmethod
    def matmul_kernel(self, is_vec: bool, transpose_b: bool) -> tuple[str, str]:
        """Return the entry point and the file of a matrix product. ``is_vec``: the left side has one row."""

    @abstractmethod
    def fused_kernel(self, kernel_type: str) -> tuple[str, str]:
        """Return the entry point and the file of a kernel of several ops (``softmax``, ``rmsnorm``, ``conv`` ...)."""

    @abstractmethod
    def shader_source(self, filename: str) -> str:
        """Return the text of a kernel file."""

    def assemble(self, functions: Mapping[str, str], parts: frozenset[str]) -> Binary:
        """Return one binary of functions (symbol to text) with the named parts of the prelude. Without a toolchain: the texts, as JSON.

        Raises BuildError with the toolchain's message.
        """
        data = json.dumps(dict(functions), sort_keys=True).encode()
        return Binary(
            self.name, "text", (), tuple(functions), data, "\n".join(functions.values()), type(self).__name__
        )

    def most_functions(self, parts: frozenset[str]) -> int:
        """Return the maximum number of functions with these parts of the prelude that are compiled to one binary; 0 for no limit."""
        return self.functions_per_binary

    def assemble_each(self, groups: Sequence[tuple[Mapping[str, str], frozenset[str]]]) -> list[Binary]:
        """Return the binary of each group of functions and parts. Several groups are compiled side by side. Raises BuildError.

        Groups of slow functions, of which few share a binary, begin first, because the last to end decides the time of all.
        """
        if len(groups) < 2:
            return [self.assemble(*group) for group in groups]
        order = sorted(range(len(groups)), key=lambda i: self.most_functions(groups[i][1]))
        with ThreadPoolExecutor(min(len(groups), _usable_cores()), "xpu-compile") as threads:
            begun = {i: threads.submit(self.assemble, *groups[i]) for i in order}
            try:
                return [begun[i].result() for i in range(len(groups))]
            finally:
                for future in begun.values():  # after an error, those that have not begun
                    future.cancel()

    def assemble_apart(
        self, symbol: str, text: str, parts: Sequence[str] = (), flags: Sequence[str] = ()
    ) -> Binary:
        """Return a binary of a text that defines ``symbol``, after the named parts of the prelude. ``flags`` go to the compiler.

        Raises BuildError with the compiler's message, or because the target does not support such texts.
        """
        raise BuildError(
            self.name, "does not support kernels from user source", do="Add the kernel to the catalogue."
        )


def _usable_cores() -> int:
    return _core.cpu_facts().usable_cores
