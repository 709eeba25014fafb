"""The catalogue: the one authority on which kernels exist. A file per op family hands in its rows as ``KERNELS``.

offers(call, target)       every kernel of the call's op with its answer, in order of preference
has_kernel("conv", target) whether any kernel lists the op

Users' kernels stand behind them (``user``): only a policy that names one takes it.

Which files are asked follows from the target's kind: kernels of CPUs, kernels of CUDA devices, or those of targets that bring their own.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec

from ..codegen.target import CodegenTarget
from ..decisions import Reason, Support
from ..faults import is_fault, part, recorded
from .kernel import Kernel, NodeCall
from .user import user_kernels

__all__ = ["FILES", "has_kernel", "kernels", "kernels_of", "offers"]

FILES: Mapping[str, tuple[str, ...]] = {
    "cpu": (
        "elementwise", "narrow", "fused", "reduce", "softmax", "norm", "matmul", "streamed", "int4", "products", "attention", "rope", "rope_append", "embedding",
        "conv", "pool", "movement", "indexing", "places", "scan", "sort", "distance", "resize", "creation", "quant", "rnn", "signal", "onednn",
    ),
    "cuda": (
        "cuda.elementwise", "cuda.fused", "cuda.reduce", "cuda.softmax", "cuda.norm", "cuda.decode", "cuda.decode_append", "cuda.gemv", "cuda.matmul",
        "cuda.attention", "cuda.attention_cudnn", "cuda.conv", "cuda.pool", "cuda.rope", "cuda.data", "cuda.recurrent", "cuda.tasks",
    ),
    "": ("ported",),
}  # fmt: skip
"""Files of kernels by kind of target. Within an op an earlier row is preferred over a later one, unless that one leads at a call or a policy says otherwise."""


@cache
def kernels(kind: str = "cpu") -> tuple[Kernel, ...]:
    """Every row for a kind of target."""
    found: list[Kernel] = []
    for name in FILES.get(kind, ()):
        if find_spec(f"{__package__}.{name}") is not None:
            found += getattr(importlib.import_module(f".{name}", __package__), "KERNELS", ())
    return tuple(found)


@cache
def _by_op(kind: str) -> dict[str, tuple[Kernel, ...]]:
    table: dict[str, list[Kernel]] = {}
    for kernel in kernels(kind):
        for op in kernel.ops:
            table.setdefault(op, []).append(kernel)
    return {op: tuple(rows) for op, rows in table.items()}


def kernels_of(op: str, kind: str = "cpu") -> tuple[Kernel, ...]:
    """The rows that list an op, in order of preference."""
    return _by_op(kind).get(op, ())


def has_kernel(op: str, target: CodegenTarget) -> bool:
    """Whether some kernel lists the op; what it says of a particular node shows in ``offers``."""
    return bool(kernels_of(op, target.kind))


def offers(call: NodeCall, target: CodegenTarget) -> Sequence[tuple[Kernel, Support]]:
    """Every kernel of the call's op, users' last, and whether it computes this call on the target."""
    own = [(kernel, answer(kernel, call, target)) for kernel in kernels_of(call.op, target.kind)]
    own.sort(key=lambda row: not (row[1] and _leads(row[0], call, target)))
    return [*own, *((kernel, answer(kernel, call, target)) for kernel in user_kernels(call.op, target.kind))]


def answer(kernel: Kernel, call: NodeCall, target: CodegenTarget) -> Support:
    """Whether a kernel computes a call. One that fails over the question does not, and the reason says so."""
    try:
        with part(f"kernel {kernel.name}"):
            return kernel.supports(call, target)
    except Exception as error:
        if not is_fault(error):
            raise
        return failed(error)


def failed(error: Exception) -> Support:
    """The answer of a kernel whose own code failed; a reproduction is written."""
    fault = recorded(error)
    stored = f"; reproduction: {fault.folder}" if fault.folder else ""
    return Support.no(Reason.INTERNAL_ERROR, f"a fault of xpuruntime: {fault.sentence}{stored}")


def _leads(kernel: Kernel, call: NodeCall, target: CodegenTarget) -> bool:
    """Whether a row is preferred over those before it."""
    asked = getattr(kernel, "leads", None)
    return asked is not None and bool(asked(call, target))
