"""The catalogue: the one authority on which kernels exist. A file per op family hands in its rows as ``KERNELS``.

offers(call, target)       every kernel of the call's op with its answer, in order of preference
has_kernel("conv", target) whether any kernel lists the op
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

from ..codegen.cpp import CppTarget
from ..codegen.target import CodegenTarget
from ..decisions import Support
from .kernel import Kernel, NodeCall

__all__ = ["FILES", "has_kernel", "kernels", "kernels_of", "offers"]

FILES = (
    "elementwise", "narrow", "fused", "reduce", "softmax", "norm", "matmul", "products", "attention", "rope", "embedding", "conv", "pool",
    "movement", "indexing", "places", "scan", "sort", "resize", "creation", "quant", "rnn", "signal", "onednn", "ported",
)  # fmt: skip
"""Files of kernels. Within an op an earlier row is preferred over a later one, unless a policy says otherwise."""


@cache
def kernels() -> tuple[Kernel, ...]:
    """Every row."""
    found: list[Kernel] = []
    for name in FILES:
        if find_spec(f"{__package__}.{name}") is not None:
            found += getattr(importlib.import_module(f".{name}", __package__), "KERNELS", ())
    return tuple(found)


@cache
def _by_op() -> dict[str, tuple[Kernel, ...]]:
    table: dict[str, list[Kernel]] = {}
    for kernel in kernels():
        for op in kernel.ops:
            table.setdefault(op, []).append(kernel)
    return {op: tuple(rows) for op, rows in table.items()}


def kernels_of(op: str) -> tuple[Kernel, ...]:
    """The rows that list an op, in order of preference."""
    return _by_op().get(op, ())


def _rows(op: str, target: CodegenTarget) -> tuple[Kernel, ...]:
    """Kernels that may be asked: ours for our targets, those that a foreign target names for that one."""
    foreign = not isinstance(target, CppTarget)
    return tuple(k for k in kernels_of(op) if getattr(k, "foreign", False) is foreign)


def has_kernel(op: str, target: CodegenTarget) -> bool:
    """Whether some kernel lists the op; what it says of a particular node shows in ``offers``."""
    return bool(_rows(op, target))


def offers(call: NodeCall, target: CodegenTarget) -> Sequence[tuple[Kernel, Support]]:
    """Every kernel of the call's op, and whether it computes this call on the target."""
    return [(kernel, kernel.supports(call, target)) for kernel in _rows(call.op, target)]
