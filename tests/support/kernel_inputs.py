"""Arrays, targets and lists of cases that tests of kernels share."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np

from xpuruntime.kernels.kernel import Kernel
from xpuruntime.types import DType, Layout

from .kernel_cases import KernelCase

__all__ = ["EVERY", "FLOATS", "INTEGERS", "LEVELS", "Cases", "channels_last", "levels"]

LEVELS = ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu") if platform.machine() == "x86_64" else ("cpu",)
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64", "uint64")
EVERY = (*FLOATS, *INTEGERS, "bool")


def levels() -> list[Any]:
    """Return parameters of a test: this machine's best level always, and the other levels with the mark ``conformance``."""
    import pytest

    return [
        "cpu",
        *(pytest.param(level, marks=pytest.mark.conformance) for level in LEVELS if level != "cpu"),
    ]


class Cases(list[KernelCase]):
    """A list of cases under construction, with its own random numbers."""

    def __init__(self, kernels: tuple[Kernel, ...]) -> None:
        super().__init__()
        self.rng = np.random.default_rng(7)
        self._kernels = {op: kernel for kernel in kernels for op in kernel.ops}

    def add(
        self,
        op: str,
        *operands: Any,
        outputs: int | None = None,
        layouts: Any = (),
        to: Any = (),
        **attrs: Any,
    ) -> None:
        """Append a case. ``layouts``: layouts of the operands by position. ``to``: layouts of the results."""
        self.append(KernelCase(self._kernels[op], op, operands, attrs, dict(layouts), dict(to), outputs))

    def array(self, *shape: int, dtype: str = "float32") -> Any:
        """Return normal numbers, or integers from 0 to 99."""
        kind = DType(dtype).numpy
        if DType(dtype).is_integer or dtype == "bool":
            return self.rng.integers(0, 100, shape).astype(kind)
        return self.rng.standard_normal(shape).astype(kind)

    def places(self, size: int, *shape: int, dtype: str = "int64") -> Any:
        """Return random indices in a dim, including negative ones for signed types."""
        return self.rng.integers(-size if dtype.startswith("int") else 0, size, shape).astype(dtype)


def channels_last(shape: tuple[int, ...], channels: int = 0) -> Layout:
    """Return NHWC with channels padded to a multiple."""
    return Layout((0, 2, 3, 1), (shape[0], channels or shape[1], *shape[2:]))
