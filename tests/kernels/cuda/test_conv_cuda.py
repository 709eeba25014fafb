"""Convolutions on CUDA: the kernels' own text, run on a CPU by the emulator, against the interpreter; what cuDNN is asked for."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cuda_kernels import call_of, judge, one_node

from xpuruntime.codegen.cuda.target import CudaTarget, cuda_target
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import GraphBuilder
from xpuruntime.kernels.cuda.conv import generated
from xpuruntime.kernels.cuda.conv.generated import CudnnConv, ImplicitGemm
from xpuruntime.kernels.cuda.matmul import libraries
from xpuruntime.kernels.cuda.matmul.fma import CONFIGS, FmaConfig, FmaTile, fma_config
from xpuruntime.policies import KernelPolicy, Rule
from xpuruntime.program.program import Binary

rng = np.random.default_rng(17)


def array(shape: tuple[int, ...], dtype: str = "bfloat16") -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(getattr(ml_dtypes, dtype, dtype))


def run(
    x: Any, w: Any, *more: Any, dtype: str = "bfloat16", weights: str = "1", act: str = "", **attrs: Any
) -> Any:
    n = len(x) - 2
    given = {"stride": [1] * n, "padding": [0] * n, "dilation": [1] * n} | attrs
    operands = [array(s, dtype) if s is not None else None for s in (x, w, *more)]
    if act:
        return judge(ImplicitGemm(), "fused_convolution", *operands, weights=weights, act=act, **given)
    options = {k: given.pop(k) for k in ("innermost", "shift", "target") if k in given}
    return judge(ImplicitGemm(), "convolution", *operands, weights=weights, **options, **given)


def test_tensor_cores_with_channels_innermost() -> None:
    run((2, 16, 9, 7), (24, 16, 3, 3), (24,), padding=[1, 1], innermost=True)
    run(
        (1, 16, 9, 7),
        (24, 16, 3, 3),
        stride=[2, 1],
        padding=[2, 1],
        dilation=[2, 1],
        innermost=True,
        dtype="float16",
    )
    run(
        (1, 3, 12, 11), (20, 3, 5, 3), (20,), stride=[2, 2], padding=[2, 1], innermost=True
    )  # channels that are no whole chunk
    run((1, 16, 8, 8), (24, 16, 1, 1), innermost=True, shift=1)


def test_groups_and_one_dim() -> None:
    run((2, 32, 6, 5), (48, 16, 3, 3), padding=[1, 1], groups=2, innermost=True)
    run((2, 16, 21), (24, 16, 3), (24,), padding=[1], innermost=True)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_plain_arithmetic_in_any_layout(dtype: str) -> None:
    run((2, 5, 7, 9), (70, 5, 3, 2), (70,), padding=[1, 0], dtype=dtype)
    run((1, 4, 5, 6), (6, 2, 3, 3), padding=[1, 1, 0, 2], groups=2, dtype=dtype, weights="")


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("tile", CONFIGS, ids=lambda t: f"{t.rows}x{t.columns}")
@pytest.mark.sampled(6)
def test_float32_tiles_and_splits(tile: FmaTile, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated, "fma_config", lambda *sizes: FmaConfig(tile, splits))
    run((2, 16, 9, 8), (72, 16, 3, 3), (72,), padding=[1, 1], innermost=True, dtype="float32")


def test_float32_of_every_rank_stride_and_group() -> None:
    given: Any = {"innermost": True, "dtype": "float32"}
    run((2, 16, 9, 7), (24, 16, 3, 3), stride=[2, 1], padding=[2, 1], dilation=[2, 1], **given)
    run((1, 3, 12, 11), (20, 3, 5, 3), (20,), stride=[2, 2], padding=[2, 1], **given)
    run((2, 32, 6, 5), (48, 16, 3, 3), padding=[1, 1], groups=2, **given)
    run((1, 16, 8, 8), (24, 16, 1, 1), shift=1, **given)
    run((2, 16, 40), (24, 4, 16), (24,), padding=[8], groups=4, **given)
    run((1, 8, 5, 6, 4), (24, 8, 3, 3, 3), (24,), padding=[1, 1, 1], **given)
    run((3, 96, 1, 1), (40, 96, 1, 1), (40,), **given)


def test_float32_spreads_nan_and_infinity_like_the_reference() -> None:
    x, w = array((1, 8, 6, 6), "float32"), array((12, 8, 3, 3), "float32")
    x[0, 1, 2, 2], x[0, 3, 5, 5], w[4, 2, 1, 1] = np.nan, np.inf, -np.inf
    how = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}
    judge(ImplicitGemm(), "convolution", x, w, weights="1", innermost=True, **how)


@pytest.mark.parametrize(
    ("x", "w", "groups", "dtype", "answer"),
    [
        ((1, 480, 14, 14), (80, 240, 1, 1), 2, "float16", True),
        ((1, 480, 14, 14), (80, 240, 1, 1), 2, "bfloat16", True),
        ((1, 480, 14, 14), (80, 480, 1, 1), 1, "float16", False),  # one group: cuDNN's engines are fast
        ((1, 480, 14, 14), (80, 240, 3, 3), 2, "float16", False),
        ((1, 1200, 14, 14), (80, 600, 1, 1), 2, "float16", False),  # a long loop over k
        ((32, 480, 14, 14), (80, 240, 1, 1), 2, "float16", False),  # more tiles than SMs
        ((0, 480, 14, 14), (80, 240, 1, 1), 2, "float16", False),
    ],
)
def test_it_precedes_cudnn_for_small_grouped_products(
    x: tuple[int, ...], w: tuple[int, ...], groups: int, dtype: str, answer: bool
) -> None:
    pad = [w[2] // 2] * 2
    operands = [np.zeros(s, getattr(ml_dtypes, dtype, dtype)) for s in (x, w)]
    graph, _, known = one_node(
        "convolution", operands, "1", stride=[1, 1], padding=pad, dilation=[1, 1], groups=groups
    )
    target = cuda_target("cuda:sm_90")
    assert ImplicitGemm().leads(call_of(graph, known, innermost=True), target) is answer
    assert not ImplicitGemm().leads(call_of(graph, known, innermost=False), target)


def test_small_grouped_products_on_tensor_cores() -> None:
    given: Any = {"innermost": True, "groups": 2, "dtype": "float16"}
    run((1, 96, 5, 7), (80, 48, 1, 1), (80,), **given)
    run((2, 32, 9, 6), (48, 16, 1, 1), stride=[2, 2], padding=[1, 0], **given)


def test_few_tiles_split_k_and_many_do_not() -> None:
    target = cuda_target("cuda:sm_90")
    assert fma_config(98, 512, 13824, 1, target).splits > 1
    assert fma_config(50176, 192, 48, 1, target).splits == 1


def test_epilogue_of_bias_residual_and_activation() -> None:
    given = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}
    for act, dtype in (("relu6", "bfloat16"), ("hardswish", "float32")):
        operands = [array(s, dtype) for s in ((1, 16, 6, 6), (16, 16, 3, 3), (16,), (1, 16, 6, 6))]
        judge(ImplicitGemm(), "fused_convolution", *operands, weights="1", act=act, innermost=True, **given)


def test_what_cudnn_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xpuruntime.kernels.cuda.conv.generated.absent", lambda library, package: None)
    target = cuda_target("cuda:sm_90")
    operands = [array(s) for s in ((2, 16, 9, 7), (24, 16, 3, 3), (24,), (2, 24, 5, 7))]
    graph, _, known = one_node(
        "fused_convolution", operands, "1", act="relu", stride=[2, 1], padding=[1, 1], dilation=[1, 1]
    )
    call = call_of(graph, known, innermost=True)
    assert CudnnConv().supports(call, target)
    lowered = CudnnConv().lower(call, target)
    (stage,) = lowered.stages
    assert (stage.library, stage.stem, stage.args) == ("cudnn", "conv", ("in0", "in1", "in2", "in3", "out0"))
    options = dict(stage.options)
    assert options["x_strides"] == [1008, 1, 112, 16]
    assert options["w_strides"] == [144, 1, 48, 16]
    assert options["y_shape"] == [2, 24, 5, 7]
    assert options["r_strides"] == options["y_strides"] == [840, 1, 168, 24]
    assert (options["bias"], options["residual"], options["act"], options["engine"]) == (
        True,
        True,
        "relu",
        -1,
    )
    refused = CudnnConv().supports(call_of(graph, known), target)
    assert refused.reason == "channels must be contiguous"


def test_cudnn_s_residuals_have_the_strides_of_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that is stored in a concatenation has other strides than a residual that is not (dla34, nextvit, nasnet)."""
    monkeypatch.setattr("xpuruntime.kernels.cuda.conv.generated.absent", lambda library, package: None)
    monkeypatch.setattr(
        CudaTarget,
        "assemble",
        lambda self, f, parts: Binary(self.name, "cubin", (self.name,), tuple(f), b"none"),
    )
    b = GraphBuilder("residual")
    x, w = b.input("x", "bfloat16[2, 16, 8, 8]"), b.weight("w", "bfloat16[16, 16, 1, 1]")
    conv = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]}
    shortcut = b.call("convolution", x, w, None, **conv)
    left = b.call("relu", b.call("add", b.call("convolution", b.call("relu", x), w, None, **conv), shortcut))
    right = b.call("relu", b.call("convolution", left, w, None, **conv))
    b.output(
        "y",
        b.call(
            "convolution",
            b.call("cat", right, left, dim=1),
            b.weight("v", "bfloat16[8, 32, 1, 1]"),
            None,
            **conv,
        ),
    )
    program = compile_graph(b.build(), target="cuda:sm_90")
    calls = [c.options for c in program.entries[0].plans[0].calls if c.library == "cudnn"]
    residuals = [o for o in calls if o["residual"]]
    assert len(calls) == 4
    assert residuals
    assert all(o["r_strides"] == o["y_strides"] for o in residuals), residuals


def test_a_library_that_is_absent_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "installed", lambda library: False)
    graph, _, known = one_node("linear", [array((9, 8)), array((8, 8))])
    said = libraries.CublasLt().supports(call_of(graph, known), cuda_target("cuda:sm_90"))
    assert said.reason == "cublasLt is not installed"
    assert said.do == "pip install nvidia-cublas"


@pytest.mark.parametrize(("channels", "filters", "act", "dtype", "taken"), [
    (34, 21, "relu", "float16", False), (34, 24, "relu6", "bfloat16", False), (32, 21, "leaky_relu", "float16", False),
    (34, 21, "silu", "float16", True), (34, 21, "relu", "float32", True), (32, 24, "relu", "float16", True), (3, 24, "relu", "float16", True),
])  # fmt: skip
def test_relu_in_16_bits_over_odd_channels_is_not_cudnn_s(
    channels: int, filters: int, act: str, dtype: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xpuruntime.kernels.cuda.conv.generated.absent", lambda library, package: None)
    operands = [array(s, dtype) for s in ((2, channels, 5, 5), (filters, channels, 1, 1), (filters,))]
    given = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]}
    graph, _, known = one_node("fused_convolution", operands, "1", act=act, **given)
    said = CudnnConv().supports(call_of(graph, known, innermost=True), cuda_target("cuda:sm_90"))
    assert bool(said) == taken
    assert taken or "turn NaN into 0" in str(said.reason)


@pytest.mark.parametrize(
    ("x", "w", "dtype", "innermost"),
    [
        ((2, 3, 12, 13), (16, 3, 7, 7), "float32", False),
        ((1, 16, 7, 5), (8, 16, 1, 1), "float32", True),
        ((2, 16, 6, 6), (10, 8, 3, 3), "float32", False),
        ((1, 32, 6, 7), (16, 32, 3, 3), "bfloat16", True),
    ],
)
def test_the_exact_form_adds_in_one_order(x: Any, w: Any, dtype: str, innermost: bool) -> None:
    """Inference has constant filters, training computed ones: the same bits under a rule that demands deterministic kernels."""
    operands = [array(x, dtype), array(w, dtype)]
    attrs = {
        "stride": [2, 2],
        "padding": [w[2] // 2] * 2,
        "dilation": [1, 1],
        "groups": x[1] // w[1],
        "innermost": innermost,
    }
    kernel = ImplicitGemm().exact_form()
    assert kernel.name == ImplicitGemm.name
    constant, computed = (judge(kernel, "convolution", *operands, weights=c, **attrs) for c in ("1", ""))
    assert constant.tobytes() == computed.tobytes()


def test_a_deterministic_rule_takes_the_exact_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "installed", lambda library: library != "cudnn")

    def symbols(rules: list[Any], constant: bool) -> list[Any]:
        b = GraphBuilder("net")
        x, spec = b.input("x", "float32[2, 3, 32, 32]"), "float32[16, 3, 7, 7]"
        filters = b.weight("w", spec) if constant else b.input("w", spec)
        b.output("y", b.convolution(x, filters, stride=[2, 2], padding=[3, 3], dilation=[1, 1]))
        policy = KernelPolicy(rules=rules)
        calls = (
            compile_graph(b.build(), target="cuda:sm_90", policy=policy, passes=[]).entries[0].plans[0].calls
        )
        return [(c.kernel, c.options["grid"], c.options["block"], c.options["shared"]) for c in calls]

    exact = [Rule(deterministic=True)]
    assert symbols(exact, True) == symbols(exact, False)
    assert symbols([], True) != symbols([], False)
