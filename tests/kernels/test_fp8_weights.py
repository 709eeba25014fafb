"""Weights in float8_e4m3fn: exactly what ml_dtypes' codes and scales say, on each instruction set, only when a policy asks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.kernel_inputs import LEVELS
from support.native import compile_native, run_native

import xpuruntime as xrt
from xpuruntime.decisions import Reason
from xpuruntime.ir import GraphBuilder
from xpuruntime.kernels.spec.channel_codes import FP8
from xpuruntime.program.program import WeightTransformRecipe
from xpuruntime.runtime.weights.recipes import run_recipe
from xpuruntime.types import TensorSpec

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
KERNEL = {"matmul": "fp8_weights"}


def drawn(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    return (
        np.random.default_rng([*shape, seed]).standard_normal(shape).astype(getattr(ml_dtypes, dtype, dtype))
    )


def rounded(w: Any) -> Any:
    """The weight that is left, in float64: codes of ml_dtypes times scales."""
    wide = w.astype(np.float32)
    largest = abs(wide).max(1, keepdims=True, initial=0).astype(np.float64)
    scale = (largest / 448).astype(np.float32)
    scale[scale == 0] = 1
    with np.errstate(all="ignore"):
        codes = np.clip(wide / scale, -448, 448).astype(E4M3)
    return codes.astype(np.float64) * scale


def layer(rows: int, n: int, k: int, dtype: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    b = GraphBuilder("layer")
    x = b.input("x", f"{dtype}[{rows}, {k}]")
    residual = b.input("residual", f"{dtype}[{rows}, {n}]")
    w, bias = b.weight("w", f"{dtype}[{n}, {k}]"), b.weight("bias", f"{dtype}[{n}]")
    b.output("y", b.fused_linear(x, w, bias, residual, act="silu"))
    weight = drawn((n, k), dtype, 1) * np.exp(drawn((n, 1), "float32", 2)).astype(drawn((1,), dtype).dtype)
    weight[:1] = 0
    return (
        b.build(),
        {"x": drawn((rows, k), dtype), "residual": drawn((rows, n), dtype)},
        {"w": weight, "bias": drawn((n,), dtype)},
    )


def wanted(feeds: dict[str, Any], weights: dict[str, Any], w: Any) -> Any:
    x = {n: a.astype(np.float64) for n, a in feeds.items()}
    sums = x["x"] @ w.T + weights["bias"].astype(np.float64) + x["residual"]
    return sums / (1 + np.exp(-sums))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize(
    ("dtype", "limit"), [("float32", 1e-5), ("bfloat16", 1 / 256), ("float16", 1 / 1024)]
)
@pytest.mark.parametrize(
    ("rows", "n", "k"),
    [(1, 70, 33), (1, 256, 128), (3, 1, 1), (5, 40, 65), (40, 100, 64), (0, 7, 9), (2, 5, 0)],
)
def test_a_layer_computes_what_its_codes_and_scales_say(
    target: str, dtype: str, limit: float, rows: int, n: int, k: int
) -> None:
    graph, feeds, weights = layer(rows, n, k, dtype)
    got = run_native(graph, feeds, weights=weights, kernels=KERNEL, threads=2, target=target)["y"]
    want = wanted(feeds, weights, rounded(weights["w"]))
    assert got.shape == want.shape
    assert (abs(got.astype(np.float64) - want) <= limit * abs(want).max(initial=0)).all()


@pytest.mark.parametrize("target", LEVELS)
def test_every_code_is_read_as_ml_dtypes_reads_it(target: str) -> None:
    """Each finite number of the type, subnormal ones and both zeros included, is one weight of the identity's product."""
    numbers = np.arange(256, dtype=np.uint8).view(E4M3).astype(np.float32)
    numbers = numbers[np.isfinite(numbers)]  # 254 of them, of which the largest is 448: scales are 1
    b = GraphBuilder("codes")
    x, w = b.input("x", "float32[254, 254]"), b.weight("w", "float32[1, 254]")
    b.output("y", b.linear(x, w))
    got = run_native(
        b.build(),
        {"x": np.eye(254, dtype=np.float32)},
        weights={"w": numbers[None]},
        kernels=KERNEL,
        target=target,
    )["y"]
    assert np.array_equal(got[:, 0], numbers)


@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_casts_read_every_code_as_ml_dtypes_does(target: str, dtype: str) -> None:
    b = GraphBuilder("cast")
    b.output("y", b.cast(b.input("x", "float8_e4m3fn[3, 256]"), dtype=dtype))
    codes = np.stack([np.roll(np.arange(256, dtype=np.uint8), i) for i in range(3)]).view(E4M3)
    got = run_native(b.build(), {"x": codes}, target=target)["y"].astype(np.float32)
    want = codes.astype(np.float32)
    assert np.array_equal(got, want, equal_nan=True)
    numbers = ~np.isnan(want)  # the sign of NaN is not kept by every processor
    assert np.array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


@pytest.mark.parametrize("rows", [1, 9])
def test_a_channel_with_a_number_that_is_not_finite_is_nan_and_no_other(rows: int) -> None:
    graph, feeds, weights = layer(rows, 40, 70, "float32")
    want = run_native(graph, feeds, weights=weights, kernels=KERNEL)["y"]
    weights["w"][3, 5], weights["w"][17, 69], weights["w"][30, 0] = np.nan, np.inf, -np.inf
    got = run_native(graph, feeds, weights=weights, kernels=KERNEL)["y"]
    assert np.isnan(got[:, [3, 17, 30]]).all()
    others = [i for i in range(40) if i not in (3, 17, 30)]
    assert np.array_equal(got[:, others], want[:, others])


def test_activations_that_are_not_finite_stay_in_their_row() -> None:
    graph, feeds, weights = layer(6, 40, 70, "float32")
    want = run_native(graph, feeds, weights=weights, kernels=KERNEL)["y"]
    feeds["x"][1, 7], feeds["x"][2, 69] = np.nan, np.inf
    got = run_native(graph, feeds, weights=weights, kernels=KERNEL)["y"]
    assert np.isnan(got[1]).all()
    assert not np.isfinite(got[2][rounded(weights["w"])[:, 69] > 0]).any()
    assert np.array_equal(got[[0, 3, 4, 5]], want[[0, 3, 4, 5]])


def test_layers_with_a_norm_and_a_gate() -> None:
    b, feeds, known = GraphBuilder("layers"), {}, {}
    shapes = [(1, 64, 64, False), (5, 33, 40, True), (16, 20, 65, True)]
    for i, (m, n, k, gated) in enumerate(shapes):
        feeds[f"x{i}"], known[f"w{i}"] = (
            drawn((1, m, k), "float32"),
            drawn((n * (1 + gated), k), "float32", 3),
        )
        known[f"s{i}"] = drawn((k,), "float32", 4)
        x = b.input(f"x{i}", f"float32[1, {m}, {k}]")
        w, s = (b.weight(f"{name}{i}", f"float32{list(known[f'{name}{i}'].shape)}") for name in "ws")
        b.output(
            f"y{i}",
            b.norm_linear(x, w, None, None, s, act="silu" if gated else "none", eps=1e-5, gated=gated),
        )
    got = run_native(b.build(), feeds, weights=known, kernels=KERNEL)
    for i, (_, n, _, gated) in enumerate(shapes):
        x = feeds[f"x{i}"][0].astype(np.float64)
        y = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * known[f"s{i}"] @ rounded(known[f"w{i}"]).T
        want = y[:, :n] / (1 + np.exp(-y[:, :n])) * y[:, n:] if gated else y
        assert abs(got[f"y{i}"][0] - want).max() <= 2e-5 * abs(want).max()


def recipe(w: Any, op: str) -> Any:
    shape = (len(w),) if op == "scale_fp8" else w.shape
    spec = FP8.scales(len(w)) if op == "scale_fp8" else None
    step = spec.steps if spec else (FP8.quantize,)
    dtype = spec.spec.dtype if spec else FP8.dtype
    made = WeightTransformRecipe("r", TensorSpec(shape, dtype), "w", step)
    return np.array(run_recipe(made, {"w": w}))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_codes_are_those_of_ml_dtypes(dtype: str) -> None:
    """Halfway cases of every pair of neighbors, numbers next to them, subnormal numbers of the type, and rows whose scale is not a power of 2."""
    numbers = np.arange(127, dtype=np.uint8).view(E4M3).astype(np.float32)
    halves = (numbers[1:] + numbers[:-1]) / 2
    row = np.concatenate([numbers, halves, np.nextafter(halves, 1e9), np.nextafter(halves, -1)]).astype(
        np.float32
    )
    own = np.dtype(getattr(ml_dtypes, dtype, dtype))
    rows = [row, -row, row * 0.37, 0 * row, *([] if dtype == "float16" else [row * 1e-30, row * 1e30])]
    w = np.stack(rows).astype(own)
    wide = w.astype(np.float32)
    scales = recipe(w, "scale_fp8")
    want = (abs(wide).max(1).astype(np.float64) / 448).astype(np.float32)
    want[want == 0] = 1
    assert np.array_equal(scales, want)
    codes = recipe(w, "quantize_fp8")
    assert codes.dtype == E4M3
    expected = np.clip(wide / want[:, None], -448, 448).astype(E4M3)
    assert np.array_equal(codes.view(np.uint8), expected.view(np.uint8))
    assert np.array_equal(recipe(w[:0], "quantize_fp8"), w[:0].astype(E4M3))


def test_only_a_policy_takes_it() -> None:
    graph, feeds, _ = layer(1, 256, 128, "float32")
    plain = compile_native(graph, feeds)
    asked = compile_native(graph, feeds, policy=xrt.KernelPolicy(weights="fp8"))
    kernels = [[c.kernel for c in p.entries[0].plans[0].calls] for p in (plain, asked)]
    assert kernels == [["matmul/gemv"], ["matmul/fp8_weights"]]
    sizes = [sum(r.spec.size_bytes or 0 for r in p.recipes) for p in (plain, asked)]
    assert sizes == [256 * 128 * 4 + 256 * 4, 256 * 128 + 2 * 256 * 4]


def test_plan_and_receipt_say_so() -> None:
    torch = pytest.importorskip("torch")
    module, x = torch.nn.Linear(64, 32).eval(), torch.randn(1, 64)
    policy = xrt.KernelPolicy(weights="fp8")
    with xrt.InferenceSession(module, example_inputs=x, kernel_policy=policy, device="cpu") as session:
        (got,) = session.run([x]).values()
        weight = rounded(module.weight.detach().numpy())
        want = x.numpy() @ weight.T + module.bias.detach().numpy()
        assert abs(np.asarray(got) - want).max() <= 1e-5 * abs(want).max()
        assert "weights: fp8 of the policy" in session.plan.explain()
        rows = [r for r in session.receipt().evidence["r0"].rows if r.kernel.startswith("matmul/fp8_weights")]
        assert [(r.precision, r.weights) for r in rows] == [("float32", "float8_e4m3fn")]


def test_what_has_no_such_kernel_says_why() -> None:
    graph, feeds, _ = layer(1, 8, 8, "float64")
    program = compile_native(graph, feeds, policy=xrt.KernelPolicy(weights="fp8"))
    assert program.entries[0].plans[0].calls[0].kernel != "matmul/fp8_weights"
    refusals = [r for d in program.decisions for r in d.rejected if r.name.endswith("fp8_weights")]
    assert [(r.code, r.reason) for r in refusals] == [
        (Reason.DTYPE_UNSUPPORTED, "fp8 weights are not supported for float64")
    ]
