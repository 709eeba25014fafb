"""``peer_all_reduce`` on GPUs that write to each other's memory (``templates/cuda/peer_reduce.cuh``)."""

from __future__ import annotations

import math

from ...codegen.c_types import C_TYPES
from ...codegen.target import CodegenTarget
from ...decisions import Reason, Support
from ...ir.ops.collective import PEER_BYTES
from ...types import DType
from ..kernel import Kernel, LoweredCall, NodeCall
from ..spec.product import sizes
from .heavy import constants
from .launch import Argument, LaunchConfig, blocks_for, cuda_stage

__all__ = ["KERNELS", "PeerReduce"]

_THREADS, _MAX_BLOCKS = 256, 32
_DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


class PeerReduce(Kernel):
    """One launch: every rank sends its operand to all others, adds what it receives, and adds the residual."""

    name = "other/peers"
    ops = ("peer_all_reduce",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for dense floats of up to 32 bits that fit a box."""
        x = call.tensor(0).spec
        if x.dtype not in _DTYPES:
            return Support.no(
                Reason.DTYPE_UNSUPPORTED, f"floats of 16 or 32 bits are supported, not {x.dtype.value}"
            )
        specs = [*(t.spec for t in call.tensors), *call.outputs]
        if any(not s.is_dense or not s.is_static for s in specs) or not x.size_bytes:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "operands and result must be dense, and not empty")
        if x.size_bytes > PEER_BYTES:
            return Support.no(Reason.SHAPE_UNSUPPORTED, f"more than {PEER_BYTES} bytes")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage."""
        x, residual = call.tensor(0).spec, call.optional(2)
        kind, count = C_TYPES[x.dtype], math.prod(sizes(x))
        blocks = min(blocks_for(blocks_for(x.size_bytes or 1, 4), _THREADS), _MAX_BLOCKS)
        numbers = {"N": count, "RANKS": call.attrs["ranks"], "WORDS": PEER_BYTES // 4, "BLOCKS": blocks, "THREADS": _THREADS}  # fmt: skip
        flag = f"static constexpr bool RESIDUAL = {str(residual is not None).lower()};"
        before = [
            "struct KERNEL_sizes {",
            f"    typedef {kind} S;",
            constants("int", numbers),
            f"    {flag}",
            "};",
        ]
        arguments = [Argument("in0", "x", kind), Argument("in1", "table", "int64_t")]
        if residual is not None:
            arguments.append(Argument("in2", "residual", kind))
        arguments.append(Argument("out0", "y", kind, True))
        term = "residual" if residual is not None else f"(const {kind} *)nullptr"
        stage = cuda_stage(
            f"peer_reduce_{count}x{call.attrs['ranks']}",
            f"the sum of {count} elements over {call.attrs['ranks']} ranks",
            arguments,
            [f"peers::Reduce<KERNEL_sizes>::run(x, {term}, table, y);"],
            LaunchConfig((blocks, 1, 1), (_THREADS, 1, 1)),
            before=before,
            parts=frozenset({"peer_reduce"}),
            waits_itself=True,
            flops=count * call.attrs["ranks"],
            bytes=(x.size_bytes or 0) * (2 * call.attrs["ranks"] + (residual is not None)),
        )
        return LoweredCall((stage,))


KERNELS = (PeerReduce(),)
