"""``attention/cudnn``: the fused attention of cuDNN's graph API (``cpp/src/backends/cuda/libraries/cudnn_attention.cpp``).

It takes many queries of 16-bit heads without a mask tensor; memory does not grow with the sequence. It is the default where it was measured to be
faster than our kernel (``leads``). cuDNN chooses one of its engines when a program is loaded and names it in the receipt.
``{kernel: cudnn, engine: N}`` selects that engine, or loading raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ....codegen.cuda.target import CudaTarget
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...spec.attention import AttentionShape, supported
from ...spec.product import sizes
from ..heavy import CHUNK_BYTES, TAGS, bytes_of, in_chunks
from ..matmul.libraries import absent
from .flash import HEAD_SIZES

__all__ = ["KERNELS", "CudnnAttention"]

_MOST_ELEMENTS = 256
"""Of a head: what its engines for compute capability 8.0 and later take (support matrix of cuDNN 9.19's graph API)."""

_MEASURED_HEADS = (64, 128)
_MANY_BLOCKS, _MANY_POSITIONS = 512, 512

_SIZED = ("q", "k", "v")


@dataclass(frozen=True)
class CudnnAttention(Kernel):
    """cuDNN's attention. ``engine``: its global index; -1: the heuristic's first engine with full sums and deterministic bits."""

    name: str = "attention/cudnn"
    engine: int = -1
    ops: tuple[str, ...] = ("attention",)
    on_request: bool = False
    asks: str = "pins an engine"

    def pinned(self, word: str, values: Mapping[str, int]) -> CudnnAttention:
        """Return the kernel with one engine of the library."""
        return replace(self, name=f"attention/{word}", engine=values.get("engine", -1), on_request=True)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for float16 and bfloat16, heads of whole 16-byte chunks up to 256 elements, causal from the first key on, no mask tensor."""
        missing = absent("cudnn", "nvidia-cudnn-cu13")
        if missing is not None:
            return missing
        found = supported(call)
        if not found:
            return found
        dtype = call.outputs[0].dtype
        if dtype not in TAGS:
            return Support.no(Reason.DTYPE_UNSUPPORTED, f"takes float16 and bfloat16, not {dtype.value}")
        s = AttentionShape.of(call)
        reason = _missing(s) or _misplaced(call, s)
        return Support.no(Reason.SHAPE_UNSUPPORTED, reason) if reason else found

    def leads(self, call: NodeCall, target: CodegenTarget) -> bool:
        """Return whether cuDNN is faster than our kernel. A program that is compiled for another machine may run without the library, so it gets no."""
        return target.here and _faster(AttentionShape.of(call), target)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage."""
        s = AttentionShape.of(call)
        specs = {n: call.tensor(i).spec for i, n in enumerate(_SIZED)} | {"y": call.outputs[0]}
        options: dict[str, Any] = {f"{n}_shape": list(sizes(spec)) for n, spec in specs.items()}
        options |= {f"{n}_strides": list(spec.physical.strides) for n, spec in specs.items()}
        options |= {
            "scale": s.scale, "causal": s.causal and s.offset < s.keys - 1, "offset": s.offset, "in": call.outputs[0].dtype.value,
            "engine": self.engine,
        }  # fmt: skip
        seen = 0.5 if s.causal and s.queries == s.keys and not s.offset else 1
        stage = Stage(
            "attention", "", ("in0", "in1", "in2", "out0"), library="cudnn", options=options, flops=int(s.flops * seen),
            bytes=bytes_of([*(o.spec for o in call.tensors), call.outputs[0]]),
        )  # fmt: skip
        return LoweredCall((stage,))


def _faster(s: AttentionShape, target: CodegenTarget) -> bool:
    """Return whether it is faster than ours, by 51 sizes on an H200 (``benchmarks/results/cuda_attention_sizes.json``, ``benchmarks/cuda/attention_sizes.py``).

    Heads of 64 and 128, as many keys as queries, bfloat16 and float16; the figures are our time over the library's:

        ======================  =====================  ==========================================
                                cuDNN is preferred     our kernel is preferred
        ======================  =====================  ==========================================
        512 positions, no mask  1.19 to 1.58
        512 blocks              1.05 to 1.31, no mask  causal 0.62 to 1.24 (0.86 to 0.89 with 192
                                1.11 to 1.58           and 256 blocks), no mask 0.53 to 1.14
        ======================  =====================  ==========================================

    A block is 128 queries of a head. Heads of 80 and 96 are 0.80 and 0.82 with 256 blocks and were not measured with more. Heads wider than ours
    takes are 52 times as fast as on the plain kernel with 256 positions, and 337 times with 1,024.
    """
    wide = max(s.d, s.dv)
    if wide > HEAD_SIZES[-1]:
        return True
    if not (isinstance(target, CudaTarget) and target.sm.wgmma):
        return False
    if s.queries != s.keys or s.d != s.dv or s.d not in _MEASURED_HEADS:
        return False
    blocks = s.batch * s.kv_heads * s.group * math.ceil(s.queries / 128)
    return blocks >= _MANY_BLOCKS or (not s.causal and s.queries >= _MANY_POSITIONS)


def _missing(s: AttentionShape) -> str:
    """Return what the node needs and the library's graph does not have; ``""`` if nothing is missing."""
    if s.empty or not s.keys or not s.d:
        return "has empty operands"
    if s.mask:
        return "takes no mask tensor"
    if s.softcap:
        return "has no soft cap"
    if not s.scale > 0:
        return f"takes factors above zero, not {s.scale:g}"
    if s.causal and s.offset < 0:
        return f"every query must see a key, and the first {-s.offset} see none"
    if max(s.d, s.dv) > _MOST_ELEMENTS:
        return f"heads of up to {_MOST_ELEMENTS} elements, not {max(s.d, s.dv)}"
    if max(s.batch, s.kv_heads * s.group, s.queries, s.keys) >= 2**31:
        return "counts sizes in 32 bits"
    return ""


def _misplaced(call: NodeCall, s: AttentionShape) -> str:
    """Return why the operands' layout does not suit the library's 16-byte loads, which it does not check; ``""`` if it does."""
    if any(steps[3] != 1 for steps in (s.q, s.k, s.v, s.y)):
        return "the elements of a head are not contiguous"
    if not in_chunks(
        call.outputs[0].dtype, s.d, s.dv, *(x for steps in (s.q, s.k, s.v, s.y) for x in steps[:3])
    ):
        return f"heads and their places are no multiples of {CHUNK_BYTES} bytes"
    if any(x <= 0 for steps in (s.q, s.k, s.v, s.y) for x in steps[:3]):
        return "an operand is spread out of fewer elements"
    return ""


KERNELS: tuple[Any, ...] = (CudnnAttention(),)
