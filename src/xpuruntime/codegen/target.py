"""CodegenTarget: what code is generated for. The compiler asks it; a porter writes one (see docs/porting.md).

The four methods of the porting guide name kernels and their files; ``assemble`` turns the functions that a plan calls into one
binary. Everything that sizes code stands in ``config`` (TargetConfig), so that a target is data before it is code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from ..program.program import Binary
from ..targets import TargetConfig

__all__ = ["CodegenTarget"]


class CodegenTarget(ABC):
    """One target. ``name`` is what plans and binaries carry: ``cpu:x86-64-v4``, ``npu-sim:edge``."""

    name: str
    config: TargetConfig

    @abstractmethod
    def elementwise_kernel(self, kernel_name: str) -> tuple[str, str]:
        """The entry point and the file of an elementwise kernel (``relu``, ``add`` ...)."""

    @abstractmethod
    def matmul_kernel(self, is_vec: bool, transpose_b: bool) -> tuple[str, str]:
        """The entry point and the file of a matrix product; ``is_vec``: the left side is one row."""

    @abstractmethod
    def fused_kernel(self, kernel_type: str) -> tuple[str, str]:
        """The entry point and the file of a kernel of several ops (``softmax``, ``rmsnorm``, ``conv`` ...)."""

    @abstractmethod
    def shader_source(self, filename: str) -> str:
        """The text of a kernel file."""

    @abstractmethod
    def assemble(self, functions: Mapping[str, str], parts: frozenset[str]) -> Binary:
        """One binary of functions (symbol to text) over the named parts of the prelude. Raises BuildError with the toolchain's text."""
