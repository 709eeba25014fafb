"""The catalogue: the list of all kernels, by kind of target.

offers(call, target)       every kernel of the call's op with its answer, in order of preference
has_kernel("conv", target) whether any kernel lists the op

The functions ``_cpu`` and ``_cuda`` import their kernels by name, so a misspelled file is an ImportError. A target's kernels are imported when
they are first requested. Users' kernels (``user``) come last: only a policy that names one selects it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from ..codegen.target import CodegenTarget
from ..decisions import Reason, Support
from ..faults import is_fault, part, recorded
from .kernel import Kernel, NodeCall
from .user.kernel import user_kernels

__all__ = ["TARGET_KERNELS", "has_kernel", "kernel_words", "kernels", "kernels_of", "offers"]


def _cpu() -> tuple[Kernel, ...]:
    """Return the kernels of CPUs, in order of preference within an op."""
    from .cpu.attention.flash import KERNELS as ATTENTION
    from .cpu.attention.flash_backward import KERNELS as ATTENTION_BACKWARD
    from .cpu.attention.paged import KERNELS as ATTENTION_PAGED
    from .cpu.collective import KERNELS as COLLECTIVE
    from .cpu.control import KERNELS as CONTROL
    from .cpu.conv.generated import KERNELS as CONV
    from .cpu.elementwise import KERNELS as ELEMENTWISE
    from .cpu.fused import KERNELS as FUSED
    from .cpu.int8.conv import KERNELS as INT8_CONV
    from .cpu.int8.matmul import KERNELS as INT8_MATMUL
    from .cpu.matmul.einsum import KERNELS as MATMUL_EINSUM
    from .cpu.matmul.experts import KERNELS as MATMUL_EXPERTS
    from .cpu.matmul.generated import KERNELS as MATMUL
    from .cpu.matmul.grouped import KERNELS as MATMUL_GROUPED
    from .cpu.matmul.grouped_experts import KERNELS as MATMUL_GROUPED_EXPERTS
    from .cpu.matmul.norm_linear import KERNELS as MATMUL_NORM_LINEAR
    from .cpu.movement import KERNELS as MOVEMENT
    from .cpu.norm import KERNELS as NORM
    from .cpu.onednn import KERNELS as ONEDNN
    from .cpu.pool import KERNELS as POOL
    from .cpu.reduce import KERNELS as REDUCE
    from .cpu.rnn import KERNELS as RNN
    from .cpu.rope import KERNELS as ROPE
    from .cpu.rope_append import KERNELS as ROPE_APPEND
    from .cpu.sample_token import KERNELS as SAMPLE_TOKEN
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
        *MATMUL_GROUPED,
        *MATMUL_GROUPED_EXPERTS,
        *MATMUL_EXPERTS,
        *MATMUL_EINSUM,
        *INT8_MATMUL,
        *INT8_CONV,
        *ATTENTION,
        *ATTENTION_BACKWARD,
        *ATTENTION_PAGED,
        *ROPE,
        *ROPE_APPEND,
        *CONV,
        *POOL,
        *MOVEMENT,
        *RNN,
        *SAMPLE_TOKEN,
        *TASKS,
        *CONTROL,
        *COLLECTIVE,
        *ONEDNN,
    )


def _cuda() -> tuple[Kernel, ...]:
    """Return the kernels of CUDA devices, in order of preference within an op."""
    from .cuda.attention.cudnn import KERNELS as ATTENTION_CUDNN
    from .cuda.attention.decode import KERNELS as ATTENTION_DECODE
    from .cuda.attention.decode_append import KERNELS as ATTENTION_DECODE_APPEND
    from .cuda.attention.flash import KERNELS as ATTENTION
    from .cuda.attention.flash import REFERENCE as ATTENTION_REFERENCE
    from .cuda.attention.flash_backward import KERNELS as ATTENTION_BACKWARD
    from .cuda.attention.flash_simt import KERNELS as ATTENTION_SIMT
    from .cuda.attention.paged import KERNELS as ATTENTION_PAGED
    from .cuda.collective import KERNELS as COLLECTIVE
    from .cuda.conv.generated import KERNELS as CONV
    from .cuda.elementwise import KERNELS as ELEMENTWISE
    from .cuda.fused import KERNELS as FUSED
    from .cuda.matmul.experts import KERNELS as MATMUL_EXPERTS
    from .cuda.matmul.gemv import KERNELS as MATMUL_GEMV
    from .cuda.matmul.generated import KERNELS as MATMUL
    from .cuda.matmul.quantized import KERNELS as MATMUL_QUANTIZED
    from .cuda.matmul.quantized_experts import KERNELS as MATMUL_QUANTIZED_EXPERTS
    from .cuda.movement.families import KERNELS as MOVEMENT
    from .cuda.norm import KERNELS as NORM
    from .cuda.peer_reduce import KERNELS as PEER_REDUCE
    from .cuda.pool import KERNELS as POOL
    from .cuda.reduce import KERNELS as REDUCE
    from .cuda.rnn import KERNELS as RNN
    from .cuda.rope import KERNELS as ROPE
    from .cuda.sample_token import KERNELS as SAMPLE_TOKEN
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
        *MATMUL_QUANTIZED,
        *MATMUL_QUANTIZED_EXPERTS,
        *MATMUL_EXPERTS,
        *ATTENTION,
        *ATTENTION_SIMT,
        *ATTENTION_REFERENCE,
        *ATTENTION_BACKWARD,
        *ATTENTION_PAGED,
        *ATTENTION_CUDNN,
        *CONV,
        *POOL,
        *ROPE,
        *MOVEMENT,
        *RNN,
        *SAMPLE_TOKEN,
        *COLLECTIVE,
        *PEER_REDUCE,
        *TASKS,
    )


def _ported() -> tuple[Kernel, ...]:
    """Return the kernels of targets that bring their own."""
    from .ported import KERNELS as PORTED

    return PORTED


TARGET_KERNELS: Mapping[str, Callable[[], tuple[Kernel, ...]]] = {"cpu": _cpu, "cuda": _cuda, "": _ported}
"""The kernels of each kind of target, in order of preference. A policy or ``Kernel.leads`` may change the order."""


@cache
def kernels(kind: str = "cpu") -> tuple[Kernel, ...]:
    """Return every kernel of a kind of target."""
    load = TARGET_KERNELS.get(kind)
    return () if load is None else load()


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


def kernel_words(op: str, kind: str = "cpu") -> frozenset[str]:
    """Return the kernels that list an op, as words of policies: without their family."""
    return frozenset(kernel.name.partition("/")[2] for kernel in kernels_of(op, kind))


def has_kernel(op: str, target: CodegenTarget) -> bool:
    """Return whether any kernel lists the op. ``offers`` says which of them support a particular node."""
    return bool(kernels_of(op, target.kind))


def offers(call: NodeCall, target: CodegenTarget) -> Sequence[tuple[Kernel, Support]]:
    """Return every kernel of the call's op with its answer for this call, users' kernels last."""
    builtin = [(kernel, answer(kernel, call, target)) for kernel in kernels_of(call.op, target.kind)]
    builtin.sort(key=lambda offer: not (offer[1] and offer[0].leads(call, target)))
    return [
        *builtin,
        *((kernel, answer(kernel, call, target)) for kernel in user_kernels(call.op, target.kind)),
    ]


def answer(kernel: Kernel, call: NodeCall, target: CodegenTarget) -> Support:
    """Return a kernel's answer for a call. If the kernel raises, the answer is no, with the error as reason."""
    try:
        with part(f"kernel {kernel.name}"):
            return kernel.supports(call, target)
    except Exception as error:
        if not is_fault(error):
            raise
        return failed(error)


def failed(error: Exception) -> Support:
    """Return the answer of a kernel that raised, after storing a reproduction."""
    fault = recorded(error)
    stored = f"; reproduction: {fault.folder}" if fault.folder else ""
    return Support.no(Reason.INTERNAL_ERROR, f"a fault of xpuruntime: {fault.sentence}{stored}")
