"""``attention/cudnn``: the fused attention of cuDNN's graph API (``cpp/src/backends/cuda/libraries/cudnn_attention.cpp``).

It supports 16-bit heads without a mask tensor. Memory grows linearly with the sequence. ``leads`` makes it the default for the
sizes at which it was measured to be faster than ``flash_v2``. cuDNN chooses one of its engines when a program is loaded, and the receipt
names it. The policy ``{kernel: cudnn, engine: N}`` pins an engine; if it is not available, loading raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ....codegen.cuda.target import CudaTarget
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...spec.attention import AttentionShape, supported
from ...spec.product import sizes
from ..crossovers import crossovers_of
from ..heavy import CHUNK_BYTES, TAGS, bytes_of, in_chunks
from ..matmul.libraries import CHOICES, absent
from .flash import HEAD_SIZES, query_tiles, splits_keys, wants_hopper

__all__ = ["KERNELS", "CudnnAttention"]

_MAX_HEAD_SIZE = 256
"""Maximum head size of cuDNN's engines for compute capability 8.0 and later (support matrix of cuDNN 9.19's graph API)."""

_SIZED = ("q", "k", "v")


@dataclass(frozen=True)
class CudnnAttention(Kernel):
    """cuDNN's attention.

    engine: a global engine index of cuDNN; -1: any that sums in float32 and is deterministic.
    choice: an index among the configurations of such engines in the heuristic's list; -1: the first that has a plan.
    """

    name: str = "attention/cudnn"
    engine: int = -1
    choice: int = -1
    ops: tuple[str, ...] = ("attention",)
    on_request: bool = False
    opt_in_reason: str = "pins an engine"
    variants: ClassVar[tuple[Mapping[str, int], ...]] = CHOICES

    def pinned(self, word: str, values: Mapping[str, int]) -> CudnnAttention:
        """Return the kernel with an engine or a configuration of cuDNN fixed."""
        engine, choice = values.get("engine", -1), values.get("choice", -1)
        return replace(self, name=f"attention/{word}", engine=engine, choice=choice, on_request=True)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for float16 and bfloat16 heads of at most 256 elements in 16-byte chunks, without a mask tensor; causal from the first key on."""
        missing = absent("cudnn", "nvidia-cudnn-cu13")
        if missing is not None:
            return missing
        answer = supported(call)
        if not answer:
            return answer
        dtype = call.outputs[0].dtype
        if dtype not in TAGS:
            return Support.no(
                Reason.DTYPE_UNSUPPORTED, f"cuDNN attention supports float16 and bfloat16, not {dtype.value}"
            )
        s = AttentionShape.of(call)
        reason = _missing(s) or _misplaced(call, s)
        return Support.no(Reason.SHAPE_UNSUPPORTED, reason) if reason else answer

    def leads(self, call: NodeCall, target: CodegenTarget) -> bool:
        """Return whether cuDNN is faster than our kernel. It is no for programs that are compiled for another machine, which may lack the library."""
        return target.here and _faster(AttentionShape.of(call), target)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage."""
        s = AttentionShape.of(call)
        specs = {n: call.tensor(i).spec for i, n in enumerate(_SIZED)} | {"y": call.outputs[0]}
        options: dict[str, Any] = {f"{n}_shape": list(sizes(spec)) for n, spec in specs.items()}
        options |= {f"{n}_strides": list(spec.physical.strides) for n, spec in specs.items()}
        options |= {
            "scale": s.scale, "causal": s.causal and s.offset < s.keys - 1, "offset": s.offset, "in": call.outputs[0].dtype.value,
            "engine": self.engine, "choice": self.choice,
        }  # fmt: skip
        seen = 0.5 if s.causal and s.queries == s.keys and not s.offset else 1
        stage = Stage(
            "attention", "", ("in0", "in1", "in2", "out0"), library="cudnn", options=options, flops=int(s.flops * seen),
            bytes=bytes_of([*(o.spec for o in call.tensors), call.outputs[0]]),
        )  # fmt: skip
        return LoweredCall((stage,), batch_invariant=False)


def _faster(s: AttentionShape, target: CodegenTarget) -> bool:
    """Return whether cuDNN is faster than ``flash_v2`` (``docs/development/kernel-notes.md``, ``benchmarks/cuda/attention_sizes.py``).

    The sizes are those of ``crossovers``. ``flash_v2`` does not support heads of more than 128 elements.
    """
    head_size = max(s.d, s.dv)
    if head_size > HEAD_SIZES[-1]:
        return True
    if not (isinstance(target, CudaTarget) and target.sm.wgmma):
        return False
    measured = crossovers_of(target)
    if s.queries != s.keys or s.d != s.dv or s.d not in measured.cudnn_attention_heads:
        return False
    tiles = query_tiles(s)
    if wants_hopper(s, target) and splits_keys(s, target):
        return False
    many_queries = not s.causal and s.queries >= measured.cudnn_attention_queries
    return tiles >= measured.cudnn_attention_tiles or many_queries


def _missing(s: AttentionShape) -> str:
    """Return why cuDNN's graph does not compute the node; ``""`` if it does."""
    if s.empty or not s.keys or not s.d:
        return "an operand is empty"
    if s.mask:
        return "a mask tensor is not supported"
    if s.softcap:
        return "softcap is not supported"
    if not s.scale > 0:
        return f"the scale must be positive, got {s.scale:g}"
    if s.causal and s.offset < 0:
        return f"every query must attend to a key; the first {-s.offset} queries attend to none"
    if max(s.d, s.dv) > _MAX_HEAD_SIZE:
        return f"heads of at most {_MAX_HEAD_SIZE} elements are supported, got {max(s.d, s.dv)}"
    if max(s.batch, s.kv_heads * s.group, s.queries, s.keys) >= 2**31:
        return "sizes must be below 2**31"
    return ""


def _misplaced(call: NodeCall, s: AttentionShape) -> str:
    """Return why the operands' layout does not allow cuDNN's 16-byte loads, which cuDNN does not check; ``""`` if it does."""
    if any(steps[3] != 1 for steps in (s.q, s.k, s.v, s.y)):
        return "the elements of a head must be contiguous"
    if not in_chunks(
        call.outputs[0].dtype, s.d, s.dv, *(x for steps in (s.q, s.k, s.v, s.y) for x in steps[:3])
    ):
        return f"head sizes and strides must be multiples of {CHUNK_BYTES} bytes"
    if any(x <= 0 for steps in (s.q, s.k, s.v, s.y) for x in steps[:3]):
        return "broadcast operands are not supported"
    return ""


KERNELS: tuple[Any, ...] = (CudnnAttention(),)
