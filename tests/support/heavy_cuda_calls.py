"""Calls of heavy CUDA kernels, one for each kind of code that they generate, and what their compiled code takes of a multiprocessor."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from xpuruntime.codegen.cuda.cubin import KernelResources, kernels_in
from xpuruntime.codegen.cuda.nvrtc import nvrtc_toolchain
from xpuruntime.codegen.cuda.target import CudaTarget
from xpuruntime.kernels.cuda.attention.decode import FlashDecode
from xpuruntime.kernels.cuda.attention.flash import FlashV2, Naive
from xpuruntime.kernels.cuda.attention.flash_simt import FlashSimt
from xpuruntime.kernels.cuda.conv.depthwise import Depthwise
from xpuruntime.kernels.cuda.conv.generated import ImplicitGemm
from xpuruntime.kernels.cuda.matmul.experts import ExpertGemm, ExpertGemv
from xpuruntime.kernels.cuda.matmul.gemv import Gemv, NormLinear
from xpuruntime.kernels.cuda.matmul.generated import Generated
from xpuruntime.kernels.cuda.matmul.quantized import KERNELS as QUANTIZED
from xpuruntime.kernels.kernel import Stage

from .cuda_kernels import call_of, one_node

__all__ = ["CALLS", "FEW_SPILLS", "call_text", "resources", "stages"]

FEW_SPILLS = 16
"""Bytes of stack per thread that a kernel may have: a few registers that are spilled outside of its loops."""
_LARGE_SHARED = 128 * 1024

FP8_WEIGHTS, INT4_WEIGHTS = (
    next(k for k in QUANTIZED if k.name == f"matmul/{word}_weights").batch_invariant_form()
    for word in ("fp8", "int4")
)
CONV = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}


def empty(shape: tuple[int, ...], dtype: str = "bfloat16") -> np.ndarray[Any, Any]:
    """No memory: only the shape is looked at."""
    return np.broadcast_to(np.zeros((), getattr(ml_dtypes, dtype, dtype)), shape)


CALLS: tuple[tuple[Any, str, tuple[Any, ...], dict[str, Any]], ...] = (
    (Generated(), "fused_linear", (empty((4096, 512)), empty((4096, 512)), empty((4096,))), {"act": "gelu"}),
    (Generated(), "mm", (empty((40, 24), "float16"), empty((24, 40), "float16")), {}),
    (Generated(), "mm", (empty((40, 24), "int8"), empty((24, 40), "int8")), {}),
    (Gemv(), "linear", (empty((2, 512), "float32"), empty((64, 512), "float32")), {}),
    (Gemv(), "linear", (empty((1, 8960)), empty((1536, 8960))), {}),
    (NormLinear("matmul/gemv"), "norm_linear", (empty((1, 1536)), empty((5120, 1536)), empty((5120,)), None, empty((1536,))),
     {"gated": True, "act": "silu"}),
    (NormLinear("matmul/gemv"), "norm_linear", (empty((3, 37), "float64"), empty((9, 37), "float64"), None, empty((3, 9), "float64")), {}),
    (Gemv(), "fused_linear", (empty((8, 4096)), empty((1536, 4096)), None, empty((8, 1536))), {}),
    (NormLinear("matmul/gemv"), "norm_linear", (empty((16, 1536), "float16"), empty((5120, 1536), "float16"), None, None, empty((1536,), "float16")),
     {"gated": True, "act": "silu"}),
    (Generated(), "fused_linear", (empty((3152, 768)), empty((3072, 768)), empty((3072,))), {"act": "gelu"}),
    (Generated(), "fused_linear", (empty((1000, 4096), "float16"), empty((1001, 4096), "float16"), None, empty((1000, 1001), "float16")), {}),
    (Generated(), "fused_linear", (empty((2048, 3072)), empty((3584, 3072)), None, empty((2048, 3584))), {"act": "tanh"}),
    (ExpertGemv(), "expert_linear", (empty((1, 2048)), empty((8, 1536, 2048)), empty((1, 2), "int64")), {"gated": True, "act": "silu"}),
    (ExpertGemm(), "expert_linear", (empty((128, 2048)), empty((64, 768, 2048)), empty((128, 8), "int64")), {}),
    (ExpertGemm(), "expert_linear", (empty((99, 2, 37), "float32"), empty((3, 65, 37), "float32"), empty((99, 2), "int32")), {"act": "gelu"}),
    (FlashV2(), "attention", (empty((1, 32, 1024, 128)),) * 3, {"causal": True}),
    (FlashV2(), "attention", (empty((1, 8, 1024, 128)), *(empty((1, 2, 1088, 128)),) * 2, empty((1024, 1088), "bool")), {}),
    (FlashV2(), "attention", (*(empty((1, 2, 64, 40), "float16"),) * 3, empty((64, 64), "bool")), {"softcap": 5.0}),
    (FlashSimt(), "attention", (empty((16, 12, 197, 64), "float32"),) * 3, {}),
    (FlashSimt(), "attention", (*(empty((1, 2, 64, 256), "float32"),) * 3, empty((64, 64), "float32")), {"causal": True}),
    (Generated(), "fused_linear", (empty((4096, 64), "float32"), empty((256, 64), "float32"), empty((256,), "float32")), {"act": "gelu"}),
    (ImplicitGemm(), "fused_convolution", (empty((1, 64, 7, 7), "float32"), empty((64, 64, 3, 3), "float32"), empty((64,), "float32")), CONV | {"act": "silu"}),
    (FlashDecode(), "attention", (empty((1, 12, 1, 128)), *(empty((1, 2, 999, 128)),) * 2), {}),
    (Naive(), "attention", (empty((1, 2, 9, 40), "float64"),) * 3, {}),
    (ImplicitGemm(), "fused_convolution", (empty((2, 64, 9, 9)), empty((64, 64, 3, 3)), empty((64,))), CONV | {"act": "relu6"}),
    (Depthwise(), "fused_convolution", (empty((32, 64, 56, 56)), empty((64, 1, 3, 3)), empty((64,))), CONV | {"groups": 64, "act": "silu"}),
    (Depthwise(), "convolution", (empty((1, 64, 9, 9), "float32"), empty((64, 1, 3, 3), "float32")), CONV | {"groups": 64}),
    (Depthwise(), "convolution", (empty((1, 288, 14, 14), "float16"), empty((576, 1, 3, 3), "float16")), CONV | {"groups": 288, "stride": [2, 2]}),
    (Depthwise(), "convolution", (empty((1, 64, 9, 9)), empty((192, 1, 3, 3))), CONV | {"groups": 64}),
    (FP8_WEIGHTS, "norm_linear", (empty((1, 1536)), empty((5120, 1536)), None, None, empty((1536,))), {"gated": True, "act": "silu"}),
    (FP8_WEIGHTS, "linear", (empty((5, 300), "float16"), empty((64, 300), "float16")), {}),
    (FP8_WEIGHTS, "linear", (empty((40, 300), "float32"), empty((64, 300), "float32")), {}),
    (FP8_WEIGHTS, "linear", (empty((40, 300), "float16"), empty((64, 300), "float16")), {}),
    (FP8_WEIGHTS, "linear", (empty((200, 8960)), empty((1536, 8960))), {}),
    (INT4_WEIGHTS, "fused_linear", (empty((64, 1536)), empty((1536, 1536)), empty((1536,)), empty((64, 1536))), {}),
    (ImplicitGemm(), "convolution", (empty((2, 3, 9, 9), "float32"), empty((8, 3, 3, 3), "float32")), CONV),
)  # fmt: skip


def call_text(index: int) -> str:
    """Return the kernel, dtype and shapes of a call, for tables."""
    kernel, op, operands, attrs = CALLS[index]
    shapes = " ".join(f"{x.dtype.name}[{','.join(map(str, x.shape))}]" for x in operands if x is not None)
    words = " ".join(f"{k}={v}" for k, v in attrs.items() if k not in CONV)
    return f"{kernel.name} {op} {shapes} {words}".strip()


def stages(index: int, target: CudaTarget) -> tuple[Stage, ...]:
    """Return the stages of a call; none where its kernel needs more shared memory than the target has.

    Raises AssertionError if the kernel does not support the call for another reason.
    """
    kernel, op, operands, attrs = CALLS[index]
    graph, _, known = one_node(op, operands, "1" if "conv" in op or "linear" in op else "", **attrs)
    call = call_of(graph, known, innermost="conv" in op)
    support = kernel.supports(call, target)
    if not support and target.config.smem_per_block < _LARGE_SHARED:
        return ()
    assert support, (call_text(index), target.name, support)
    found: tuple[Stage, ...] = kernel.lower(call, target).stages
    return found


def resources(index: int, target: CudaTarget) -> list[tuple[KernelResources, dict[str, Any]]]:
    """Compile a call; return what each text of its stages takes, and the options of its launch. Raises BuildError."""
    found = stages(index, target)
    texts = [(text, s) for s in found for text in (s.source, s.aligned_source) if text]
    functions = {f"kernel_{k}": text for k, (text, _) in enumerate(texts)}
    source = target.source(functions, {part for s in found for part in s.parts})
    kernels = kernels_in(nvrtc_toolchain().build(source, target.sm.architecture))
    return [(kernels[f"kernel_{k}"], dict(s.options)) for k, (_, s) in enumerate(texts)]
