"""Heavy CUDA kernels compile for every architecture, without a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cuda_kernels import call_of, one_node

from xpuruntime.codegen.cuda.nvrtc import nvrtc_toolchain
from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import BuildError
from xpuruntime.ir import GraphBuilder
from xpuruntime.kernels.cuda.attention.decode import FlashDecode
from xpuruntime.kernels.cuda.attention.flash import FlashV2, Naive
from xpuruntime.kernels.cuda.attention.flash_simt import FlashSimt
from xpuruntime.kernels.cuda.conv.depthwise import Depthwise
from xpuruntime.kernels.cuda.conv.generated import ImplicitGemm
from xpuruntime.kernels.cuda.matmul.experts import ExpertGemm, ExpertGemv
from xpuruntime.kernels.cuda.matmul.gemv import Gemv, NormLinear
from xpuruntime.kernels.cuda.matmul.generated import Generated

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
    (ExpertGemv(), "expert_linear", (empty((1, 2048)), empty((8, 1536, 2048)), empty((1, 2), "int64")), {"gated": True, "act": "silu"}),
    (ExpertGemm(), "expert_linear", (empty((128, 2048)), empty((64, 768, 2048)), empty((128, 8), "int64")), {}),
    (ExpertGemm(), "expert_linear", (empty((99, 2, 37), "float32"), empty((3, 65, 37), "float32"), empty((99, 2), "int32")), {"act": "gelu"}),
    (FlashV2(), "attention", (empty((1, 32, 1024, 128)),) * 3, {"causal": True}),
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
    (ImplicitGemm(), "convolution", (empty((2, 3, 9, 9), "float32"), empty((8, 3, 3, 3), "float32")), CONV),
)  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
def test_every_heavy_kernel_compiles(level: str, part: Callable[[Sequence[str], int], list[str]]) -> None:
    try:
        toolchain = nvrtc_toolchain()
    except BuildError as error:
        pytest.skip(str(error))
    target = cuda_target(f"cuda:{level}")
    functions: dict[str, str] = {}
    parts: set[str] = set()
    drawn = part([f"call {k}" for k in range(len(CALLS))], 6)
    calls = [call for k, call in enumerate(CALLS) if f"call {k}" in drawn]
    for kernel, op, operands, attrs in calls:
        graph, _, known = one_node(op, operands, "1" if "conv" in op or "linear" in op else "", **attrs)
        call = call_of(graph, known, innermost="conv" in op)
        assert kernel.supports(call, target)
        for stage in kernel.lower(call, target).stages:
            functions[f"kernel_{len(functions)}"] = stage.source
            parts |= stage.parts
            assert stage.options["shared"] <= target.config.smem_per_block
    flash = any(isinstance(kernel, FlashV2) and len(operands) == 3 for kernel, _, operands, _ in calls)
    assert ("flash_hopper" in parts) is (level == "sm_90" and flash)
    made = toolchain.build(target.source(functions, parts), target.sm.architecture)
    assert made.startswith(b"\x7fELF")
    for name in functions:
        assert f".text.{name}".encode() in made


def test_texts_that_a_compiler_once_died_of() -> None:
    """NVVM of CUDA 13 crashed where an image resized with values from outside and a byte copy stood in one text."""
    b = GraphBuilder("both")
    image = b.input("image", "bfloat16[2, 3, 7, 6]")
    cropped = b.resize(
        image, size=[2, 3, 13, 9], mode="cubic", coordinates="tf_crop_and_resize", roi=[0, 0, 0.2, -0.3, 1, 1, 0.8, 1.2], extrapolation_value=10.0,
    )  # fmt: skip
    b.output("cropped", cropped)
    b.output("turned", b.clone(b.permute(b.input("bytes", "int8[2, 14, 12, 3]"), dims=(0, 3, 1, 2))))
    assert compile_graph(b.build(), target="cuda:sm_90").binaries[0].data[:4] == b"\x7fELF"
