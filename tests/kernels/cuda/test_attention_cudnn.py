"""What cuDNN's attention is asked for, and what it declines with which reason."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cuda_doubles import leave_text_uncompiled
from support.cuda_kernels import call_of, one_node

from xpuruntime import ir
from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.codegen.target import CodegenTarget
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.kernels.catalogue import offers
from xpuruntime.kernels.cuda.attention.cudnn import CudnnAttention
from xpuruntime.kernels.cuda.matmul import libraries
from xpuruntime.kernels.kernel import NodeCall
from xpuruntime.policies import KernelPolicy

TARGET: CodegenTarget = cuda_target("cuda:sm_90")


@pytest.fixture(autouse=True)
def library_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_text_uncompiled(monkeypatch)


def array(shape: tuple[int, ...], dtype: str = "bfloat16") -> np.ndarray[Any, Any]:
    return np.zeros(shape, getattr(ml_dtypes, dtype, dtype))


def node(
    q: tuple[int, ...], k: tuple[int, ...], dv: int, *more: Any, dtype: str = "bfloat16", **attrs: Any
) -> NodeCall:
    operands = [array(q, dtype), array(k, dtype), array((*k[:3], dv), dtype), *more]
    graph, _, known = one_node("attention", operands, **attrs)
    return call_of(graph, known)


def test_shapes_strides_and_mask_go_into_the_call() -> None:
    call = node((2, 4, 33, 40), (2, 2, 90, 40), 24, causal=True, causal_offset=57, scale=0.5)
    assert CudnnAttention().supports(call, TARGET)
    (stage,) = CudnnAttention().lower(call, TARGET).stages
    assert (stage.library, stage.stem, stage.args) == ("cudnn", "attention", ("in0", "in1", "in2", "out0"))
    assert dict(stage.options) == {
        "choice": -1, "q_shape": [2, 4, 33, 40], "k_shape": [2, 2, 90, 40], "v_shape": [2, 2, 90, 24], "y_shape": [2, 4, 33, 24],
        "q_strides": [5280, 1320, 40, 1], "k_strides": [7200, 3600, 40, 1], "v_strides": [4320, 2160, 24, 1],
        "y_strides": [3168, 792, 24, 1], "scale": 0.5, "causal": True, "offset": 57, "in": "bfloat16", "engine": -1,
    }  # fmt: skip
    pinned = CudnnAttention().pinned("cudnn[engine=2]", {"engine": 2})
    assert pinned.on_request
    assert pinned.lower(call, TARGET).stages[0].options["engine"] == 2
    # A mask that hides nothing is none.
    sees_all = node((1, 2, 4, 64), (1, 2, 9, 64), 64, causal=True, causal_offset=8)
    assert CudnnAttention().lower(sees_all, TARGET).stages[0].options["causal"] is False


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (
            node((1, 2, 8, 64), (1, 2, 8, 64), 64, dtype="float32"),
            "cuDNN attention supports float16 and bfloat16, not float32",
        ),
        (node((1, 2, 8, 20), (1, 2, 8, 20), 20), "head sizes and strides must be multiples of 16 bytes"),
        (node((1, 2, 8, 264), (1, 2, 8, 264), 64), "heads of at most 256 elements are supported, got 264"),
        (node((1, 2, 8, 64), (1, 2, 0, 64), 64), "an operand is empty"),
        (node((1, 2, 8, 64), (1, 2, 9, 64), 64, array((8, 9), "bool")), "a mask tensor is not supported"),
        (node((1, 2, 8, 64), (1, 2, 9, 64), 64, softcap=2.0), "softcap is not supported"),
        (node((1, 2, 8, 64), (1, 2, 9, 64), 64, scale=-1.0), "the scale must be positive, got -1"),
        (
            node((1, 2, 8, 64), (1, 2, 9, 64), 64, causal=True, causal_offset=-3),
            "every query must attend to a key; the first 3 queries attend to none",
        ),
    ],
)
def test_what_the_library_has_not_is_a_reason(call: NodeCall, reason: str) -> None:
    said = CudnnAttention().supports(call, TARGET)
    assert not said
    assert said.reason == reason


def test_a_library_that_is_absent_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "installed", lambda library: False)
    said = CudnnAttention().supports(node((1, 2, 8, 64), (1, 2, 8, 64), 64), TARGET)
    assert (said.reason, said.do) == ("cudnn is not installed", "pip install nvidia-cudnn-cu13")


def test_heads_inside_positions_are_read_where_they_lie() -> None:
    b = ir.GraphBuilder("turned")
    heads = [
        b.permute(b.input(name, f"float16[2, 130, {h}, 64]"), dims=[0, 2, 1, 3])
        for name, h in (("q", 4), ("k", 2), ("v", 2))
    ]
    b.output("y", b.attention(*heads, causal=True))
    policy = KernelPolicy(attention={"kernel": "cudnn", "engine": 1})  # type: ignore[arg-type]
    program = compile_graph(b.build(), target="cuda:sm_90", policy=policy)
    call = next(c for c in program.entries[0].plans[0].calls if c.library)
    assert call.kernel == "attention/cudnn[engine=1]"
    assert call.options["q_strides"] == [33280, 64, 256, 1]
    assert call.options["k_strides"] == call.options["v_strides"] == [16640, 64, 128, 1]


def at(
    batch: int, heads: int, positions: int, d: int, keys: int = 0, kv_heads: int = 0, **attrs: Any
) -> NodeCall:
    k = (batch, kv_heads or heads, keys or positions, d)
    return node((batch, heads, positions, d), k, d, **attrs)


def first(call: NodeCall, level: str, here: bool) -> str:
    """The preferred one of the kernels that compute a call."""
    target = cuda_target(f"cuda:{level}")
    target.here = here
    return next(kernel.name for kernel, said in offers(call, target) if said)


CUDNN, OURS = "attention/cudnn", "attention/flash_v2"


@pytest.mark.parametrize(
    ("call", "kernel"),
    [
        (at(1, 20, 512, 64), CUDNN),
        (at(1, 20, 511, 64), OURS),
        (at(1, 12, 512, 64), OURS),  # two blocks share the keys
        (at(32, 12, 197, 64), CUDNN),  # 768 blocks
        (at(1, 12, 512, 64, keys=600), OURS),  # not measured
        (at(1, 32, 2048, 128, kv_heads=8, causal=True), CUDNN),
        (at(1, 32, 2048, 128, kv_heads=8, causal=True, dtype="float16"), CUDNN),
        (at(1, 32, 1920, 128, kv_heads=8, causal=True), OURS),  # 480 blocks
        (at(1, 16, 1024, 64, causal=True), OURS),
        (at(1, 32, 4096, 96, causal=True), OURS),  # not measured
        (at(1, 12, 1, 128, keys=1024, kv_heads=2), "attention/flash_decode"),
        (at(8, 64, 1, 128, keys=4096, kv_heads=8), "attention/flash_decode"),
    ],
)
def test_it_leads_where_it_was_measured_to_be_faster(call: NodeCall, kernel: str) -> None:
    assert first(call, "sm_90", here=True) == kernel
    # A program for machines that are not here must not need what they may lack, and other devices were not measured.
    ours = OURS if kernel == CUDNN else kernel
    assert (
        first(call, "sm_90", here=False)
        == first(call, "sm_80", here=True)
        == first(call, "sm_100", here=True)
        == ours
    )


def test_heads_that_ours_do_not_take_are_the_library_s_wherever_it_is_here() -> None:
    for call in (at(1, 8, 256, 256, kv_heads=1, causal=True), at(1, 8, 1, 256, keys=100, kv_heads=1)):
        assert first(call, "sm_80", here=True) == first(call, "sm_90", here=True) == CUDNN
        assert first(call, "sm_90", here=False) == "attention/flash_simt"


def test_a_default_is_overruled_by_policy_and_needs_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    b = ir.GraphBuilder("encoder")
    b.output("y", b.attention(*(b.input(name, "bfloat16[1, 20, 512, 64]") for name in "qkv")))
    graph, target = b.build(), cuda_target("cuda:sm_90")
    target.here = True

    def kernel(policy: KernelPolicy | None = None) -> str:
        (call,) = compile_graph(graph, target=target, policy=policy).entries[0].plans[0].calls
        return call.kernel

    assert kernel() == CUDNN
    assert kernel(KernelPolicy(attention="flash_v2")) == OURS
    assert kernel(KernelPolicy(rules=[{"op": "attention", "forbid": "cudnn"}])) == OURS  # type: ignore[list-item]
    monkeypatch.setattr(libraries, "installed", lambda library: False)
    assert kernel() == OURS
