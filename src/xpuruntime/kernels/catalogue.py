"""The catalogue: the one list of the kernels that exist.

offers(call, target)       every kernel of the call's op with its answer, in order of preference
has_kernel("conv", target) whether any kernel lists the op

Each room imports its files by name, so a misspelled file is an ImportError. A room is imported when its kind of target is first asked for.
Kernels of users (``user``) come last: only a policy that names one takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from ..codegen.target import CodegenTarget
from ..decisions import Reason, Support
from ..faults import is_fault, part, recorded
from .kernel import Kernel, NodeCall
from .user.kernel import user_kernels

__all__ = ["ROOMS", "has_kernel", "kernels", "kernels_of", "offers"]


def _cpu() -> tuple[Kernel, ...]:
    """Return the kernels of CPUs, in order of preference within an op."""
    from .cpu.attention.flash import KERNELS as ATTENTION
    from .cpu.conv.generated import KERNELS as CONV
    from .cpu.elementwise import KERNELS as ELEMENTWISE
    from .cpu.fused import KERNELS as FUSED
    from .cpu.matmul.einsum import KERNELS as MATMUL_EINSUM
    from .cpu.matmul.generated import KERNELS as MATMUL
    from .cpu.matmul.int4 import KERNELS as MATMUL_INT4
    from .cpu.matmul.norm_linear import KERNELS as MATMUL_NORM_LINEAR
    from .cpu.movement import KERNELS as MOVEMENT
    from .cpu.norm import KERNELS as NORM
    from .cpu.onednn import KERNELS as ONEDNN
    from .cpu.pool import KERNELS as POOL
    from .cpu.reduce import KERNELS as REDUCE
    from .cpu.rnn import KERNELS as RNN
    from .cpu.rope import KERNELS as ROPE
    from .cpu.rope_append import KERNELS as ROPE_APPEND
    from .cpu.softmax import KERNELS as SOFTMAX
    from .cpu.tasks import KERNELS as TASKS

    return (
        *ELEMENTWISE,
        *FUSED,
        *REDUCE,
        *SOFTMAX,
        *NORM,
        *MATMUL,
        *MATMUL_NORM_LINEAR,
        *MATMUL_INT4,
        *MATMUL_EINSUM,
        *ATTENTION,
        *ROPE,
        *ROPE_APPEND,
        *CONV,
        *POOL,
        *MOVEMENT,
        *RNN,
        *TASKS,
        *ONEDNN,
    )


def _cuda() -> tuple[Kernel, ...]:
    """Return the kernels of CUDA devices, in order of preference within an op."""
    from .cuda.attention.cudnn import KERNELS as ATTENTION_CUDNN
    from .cuda.attention.decode import KERNELS as ATTENTION_DECODE
    from .cuda.attention.decode_append import KERNELS as ATTENTION_DECODE_APPEND
    from .cuda.attention.flash import KERNELS as ATTENTION
    from .cuda.conv.generated import KERNELS as CONV
    from .cuda.elementwise import KERNELS as ELEMENTWISE
    from .cuda.fused import KERNELS as FUSED
    from .cuda.matmul.gemv import KERNELS as MATMUL_GEMV
    from .cuda.matmul.generated import KERNELS as MATMUL
    from .cuda.movement.families import KERNELS as MOVEMENT
    from .cuda.norm import KERNELS as NORM
    from .cuda.pool import KERNELS as POOL
    from .cuda.reduce import KERNELS as REDUCE
    from .cuda.rnn import KERNELS as RNN
    from .cuda.rope import KERNELS as ROPE
    from .cuda.softmax import KERNELS as SOFTMAX
    from .cuda.tasks import KERNELS as TASKS

    return (
        *ELEMENTWISE,
        *FUSED,
        *REDUCE,
        *SOFTMAX,
        *NORM,
        *ATTENTION_DECODE,
        *ATTENTION_DECODE_APPEND,
        *MATMUL_GEMV,
        *MATMUL,
        *ATTENTION,
        *ATTENTION_CUDNN,
        *CONV,
        *POOL,
        *ROPE,
        *MOVEMENT,
        *RNN,
        *TASKS,
    )


def _ported() -> tuple[Kernel, ...]:
    """Return the kernels of targets that bring their own."""
    from .ported import KERNELS as PORTED

    return PORTED


ROOMS: Mapping[str, Callable[[], tuple[Kernel, ...]]] = {"cpu": _cpu, "cuda": _cuda, "": _ported}
"""By kind of target. A policy, or a kernel that leads at a call (``Kernel.leads``), may change the order."""


@cache
def kernels(kind: str = "cpu") -> tuple[Kernel, ...]:
    """Return every kernel for a kind of target."""
    room = ROOMS.get(kind)
    return () if room is None else room()


@cache
def _by_op(kind: str) -> dict[str, tuple[Kernel, ...]]:
    table: dict[str, list[Kernel]] = {}
    for kernel in kernels(kind):
        for op in kernel.ops:
            table.setdefault(op, []).append(kernel)
    return {op: tuple(entries) for op, entries in table.items()}


def kernels_of(op: str, kind: str = "cpu") -> tuple[Kernel, ...]:
    """Return the kernels that list an op, in order of preference."""
    return _by_op(kind).get(op, ())


def has_kernel(op: str, target: CodegenTarget) -> bool:
    """Return whether any kernel lists the op. ``offers`` says which of them compute a particular node."""
    return bool(kernels_of(op, target.kind))


def offers(call: NodeCall, target: CodegenTarget) -> Sequence[tuple[Kernel, Support]]:
    """Return every kernel of the call's op, those of users last, with its answer for this call."""
    own = [(kernel, answer(kernel, call, target)) for kernel in kernels_of(call.op, target.kind)]
    own.sort(key=lambda offer: not (offer[1] and offer[0].leads(call, target)))
    return [*own, *((kernel, answer(kernel, call, target)) for kernel in user_kernels(call.op, target.kind))]


def answer(kernel: Kernel, call: NodeCall, target: CodegenTarget) -> Support:
    """Return a kernel's answer for a call. If its code raises, the answer is no and the reason says so."""
    try:
        with part(f"kernel {kernel.name}"):
            return kernel.supports(call, target)
    except Exception as error:
        if not is_fault(error):
            raise
        return failed(error)


def failed(error: Exception) -> Support:
    """Return the answer of a kernel whose own code failed, after writing a reproduction."""
    fault = recorded(error)
    stored = f"; reproduction: {fault.folder}" if fault.folder else ""
    return Support.no(Reason.INTERNAL_ERROR, f"a fault of xpuruntime: {fault.sentence}{stored}")
