"""Rows in 8 bits times weights in groups: exactly what the codes of both say, for every form, level and number of rows."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernels.test_expert_kernels import layers
from kernels.test_grouped_experts import in_float32
from kernels.test_grouped_experts import rounded as rounded_experts
from kernels.test_int4_weights import SHAPES, rounded
from kernels.test_int4_weights import layer as int4_layer
from kernels.test_weights_in_blocks import layer as stored_layer
from support.native import compile_native, run_native

from xpuruntime.codegen.cpp.target import cpu_target
from xpuruntime.codegen.cpp.toolchain import cxx_toolchain
from xpuruntime.errors import BuildError
from xpuruntime.ir import GraphBuilder, interp
from xpuruntime.kernels.cpu.matmul.grouped import KERNELS
from xpuruntime.kernels.kernel import NodeCall, Operand
from xpuruntime.storage.blocks import BLOCK_FORMATS

WORDS = {32: "int4_by_int8", 64: "int4_64_by_int8", 128: "int4_128_by_int8"}
LEVELS = ["cpu", "cpu:x86-64-v4+vnni", "cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64-v2"]
LIMITS = {"float32": 1e-5, "bfloat16": 1 / 64, "float16": 1 / 512}


def in_codes(x: Any, group: int) -> Any:
    """Return rows as their codes and scales have them: of each group, the largest magnitude is 127."""
    k = x.shape[-1]
    pad = [(0, 0)] * (x.ndim - 1) + [(0, -k % group)]
    groups = np.pad(x.astype(np.float32), pad).reshape(*x.shape[:-1], -1, group)
    most = abs(groups).max(-1, keepdims=True)
    inverse = np.divide(127, most, out=np.zeros_like(most), where=most >= 2.0**-120)
    values = np.rint(groups * inverse) * (most / 127)
    return values.reshape(*x.shape[:-1], -1)[..., :k].astype(np.float32)


def far(got: Any, want: Any) -> float:
    """Return the largest error, next to the largest value."""
    return float(abs(got.astype(np.float64) - want).max() / abs(want).max())


@pytest.mark.sampled(6)
@pytest.mark.parametrize("group", WORDS)
@pytest.mark.parametrize(("rows", "n", "k"), SHAPES)
@pytest.mark.parametrize("target", LEVELS)
def test_a_layer_computes_what_the_codes_say(group: int, rows: int, n: int, k: int, target: str) -> None:
    graph, feeds, weights = int4_layer(rows, n, k, "float32")
    got = run_native(
        graph, feeds, weights=weights, kernels={"matmul": WORDS[group]}, threads=2, target=target
    )["y"]
    exact = {**weights, "w": rounded(weights["w"], group)}
    want = interp.run(graph, {**feeds, "x": in_codes(feeds["x"], group)}, weights=exact)["y"]
    assert far(got, want) <= 1e-5
    floats = interp.run(graph, feeds, weights=exact)["y"]
    assert 1e-3 < far(got, floats) < 0.02  # eight bits, not more and not fewer


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize(("rows", "n", "dtype"), [(1, 70, "float32"), (5, 33, "float32"), (3, 40, "float16"), (40, 24, "bfloat16")])  # fmt: skip
@pytest.mark.parametrize("target", LEVELS)
def test_a_layer_of_stored_blocks(name: str, rows: int, n: int, dtype: str, target: str) -> None:
    """Signed codes of eight bits have products that exceed int16, and -128 is among them."""
    form = BLOCK_FORMATS[name]
    k = 512 if form.values > 32 else 352
    graph, feeds, weights = stored_layer([name], rows, n, k, dtype)
    kernels = {"matmul": "stored_by_int8"}
    assert {c.kernel for c in compile_native(graph, feeds, kernels=kernels).entries[0].plans[0].calls} == {
        "matmul/stored_by_int8"
    }
    got = run_native(graph, feeds, weights=weights, kernels=kernels, target=target)["y"]
    wide, _, _ = stored_layer([name], rows, n, k)
    exact = {w: a if a.dtype == np.uint8 else a.astype(np.float32) for w, a in weights.items()}
    want = interp.run(wide, {"x": in_codes(feeds["x"], form.form.group)}, weights=exact)["y"]
    assert far(got, want) <= LIMITS[dtype]


@pytest.mark.parametrize("target", LEVELS)
def test_the_largest_codes_of_both_sides(target: str) -> None:
    """All products have the same sign: sums of pairs are the largest that there are."""
    k, n = 256, 20
    b = GraphBuilder("largest")
    w = b.dequantize_blocks(b.weight("w", f"uint8[{n}, {k // 32 * 34}]"), blocks="Q8_0")
    b.output("y", b.linear(b.input("x", f"float32[3, {k}]"), w))
    raw = np.zeros((n, k // 32, 34), np.uint8)
    raw[..., :2] = np.array([1], "<f2").view(np.uint8)
    raw[..., 2:] = np.array([-128] * 10 + [127] * 10, np.int8).view(np.uint8)[:, None, None]
    x = np.ones((3, k), np.float32) * np.array([[1], [-1], [3]], np.float32)
    graph, weights = b.build(), {"w": raw.reshape(n, -1)}
    got = run_native(graph, {"x": x}, weights=weights, kernels={"matmul": "stored_by_int8"}, target=target)[
        "y"
    ]
    assert np.allclose(got, interp.run(graph, {"x": x}, weights=weights)["y"], rtol=1e-6)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows", [1, 6, 16])
@pytest.mark.parametrize("target", LEVELS)
def test_normed_and_gated_layers(rows: int, target: str) -> None:
    graph, feeds, weights = int4_layer(rows, 140, 96, "float32", "norm_linear")
    got = run_native(
        graph, feeds, weights=weights, kernels={"matmul": "int4_by_int8"}, split=3, target=target
    )["y"]
    x = feeds["x"].astype(np.float64)
    normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weights["scale"]
    sums = in_codes(normed, 32).astype(np.float64) @ rounded(weights["w"], 32).T + weights["bias"]
    gate, up = sums[:, :70], sums[:, 70:]
    want = gate / (1 + np.exp(-gate)) * up
    # A value between two codes may round to either.
    assert far(got, want) <= 5e-3
    assert np.median(abs(got - want)) <= 1e-5 * abs(want).max()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("word", "group"), [("int4_by_int8", 32), ("int4_128_by_int8", 128)])
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("target", LEVELS)
def test_products_with_chosen_experts(word: str, group: int, dtype: str, target: str) -> None:
    graph, feeds, known = layers(dtype)
    kernels = {"matmul": word}
    program = compile_native(graph, feeds, kernels=kernels, target=target)
    assert {c.kernel for c in program.entries[0].plans[0].calls} == {f"matmul/{word}"}
    got = run_native(graph, feeds, weights=known, kernels=kernels, target=target, split=3)
    narrow = np.dtype(getattr(ml_dtypes, dtype, dtype))
    wide = {n: in_codes(a, group) if a.dtype == narrow else a for n, a in feeds.items()}
    exact = {n: rounded_experts(w, group) for n, w in known.items()}
    want = interp.run(in_float32(graph, dtype), wide, weights=exact)
    for name, y in want.items():
        assert far(got[name], y) <= LIMITS[dtype]


@pytest.mark.parametrize("target", LEVELS)
def test_rows_with_infinities_are_nan_and_others_are_not(target: str) -> None:
    graph, feeds, weights = int4_layer(9, 40, 96, "float32")
    x = feeds["x"]
    x[1, 5], x[2, 50], x[3, 95] = np.inf, -np.inf, np.nan
    x[4], x[5] = 0, 1e-42
    x[6] *= 1e30
    kernels = {"matmul": "int4_by_int8"}
    got = run_native(graph, feeds, weights=weights, kernels=kernels, target=target)["y"]
    assert np.isnan(got[1:4]).all()
    rest = [0, 4, 5, 6, 7, 8]
    exact = {**weights, "w": rounded(weights["w"], 32)}
    feeds = {"x": in_codes(x[rest], 32), "residual": feeds["residual"][rest]}
    want = interp.run(int4_layer(6, 40, 96, "float32")[0], feeds, weights=exact)["y"]
    for row, expected in zip(rest, want, strict=True):
        assert far(got[row], expected) <= 1e-5


def test_a_row_has_the_same_bits_in_every_batch() -> None:
    graph, feeds, weights = int4_layer(50, 70, 160, "float32")
    kernels = {"matmul": "int4_by_int8"}
    together = run_native(graph, feeds, weights=weights, kernels=kernels)["y"]
    for first, rows in ((0, 1), (7, 1), (11, 2), (20, 5), (40, 10), (3, 17)):
        part = {name: a[first : first + rows] for name, a in feeds.items()}
        alone = int4_layer(rows, 70, 160, "float32")[0]
        got = run_native(alone, part, weights=weights, kernels=kernels)["y"]
        assert np.array_equal(got, together[first : first + rows])


@pytest.mark.parametrize("level", ["aarch64", "aarch64+dotprod"])
@pytest.mark.parametrize("word", ["int4_by_int8", "int8_by_int8"])
def test_arm_code_compiles(word: str, level: str) -> None:
    try:
        cxx_toolchain("aarch64")
    except BuildError as error:
        pytest.skip(f"no compiler for it here: {error.what}")
    b = GraphBuilder("one")
    names = [b.input("x", "float32[5, 64]"), b.input("w", "float32[70, 64]")]
    b.linear(*names)
    target = cpu_target(f"cpu:{level}")
    inputs = tuple(Operand(n, b.spec(n), n == "w") for n in names)
    kernel = next(k for k in KERNELS if k.name == f"matmul/{word}")
    stage = kernel.lower(NodeCall(b.nodes[0], inputs, (b.spec(b.nodes[0].name),)), target).stages[0]
    assert target.assemble({"k": stage.source}, stage.parts).data[18:20] == b"\xb7\x00"  # EM_AARCH64


def test_float64_is_refused() -> None:
    b = GraphBuilder("wide")
    x, w = b.input("x", "float64[2, 32]"), b.input("w", "float64[8, 32]")
    b.linear(x, w)
    inputs = (Operand(x, b.spec(x), False), Operand(w, b.spec(w), True))
    call = NodeCall(b.nodes[0], inputs, (b.spec(b.nodes[0].name),))
    for kernel in KERNELS:
        answer = kernel.supports(call, cpu_target("cpu:x86-64-v3"))
        assert not answer.ok
        assert "float64" in str(answer.reason)
