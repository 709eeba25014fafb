"""Products with chosen experts against the interpreter: few rows and many, gates, odd sizes, and experts that nothing may read."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.native import check, compile_native, run_native

import xpuruntime as xrt
from xpuruntime.errors import InputError, IrError, KernelUnavailable, RunError
from xpuruntime.ir import Graph, GraphBuilder, interp
from xpuruntime.testing.emulation.cuda_host import cuda_host

LEVELS = ("cpu", "cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64-v2")
Layer = tuple[int, int, int, int, int, str, bool, bool, str]
"""Rows, slots, experts, outputs, inputs, activation, whether there is a gate, whether slots share an input, dtype of ids."""
LAYERS: tuple[Layer, ...] = (
    (1, 2, 4, 17, 9, "none", False, True, "int64"),
    (1, 8, 8, 40, 33, "silu", True, True, "int64"),
    (3, 2, 5, 130, 65, "gelu", True, False, "int32"),
    (4, 1, 1, 1, 1, "relu", False, True, "int64"),
    (5, 3, 7, 33, 40, "none", False, True, "int64"),
    (37, 3, 5, 21, 19, "silu", True, False, "int64"),
    (70, 2, 3, 64, 48, "sigmoid", False, True, "int32"),
    (90, 2, 2, 70, 8, "none", False, False, "int64"),
)


def drawn(rng: Any, shape: tuple[int, ...], dtype: str, factor: float = 1.0) -> Any:
    return (factor * rng.standard_normal(shape)).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))


def layers(
    dtype: str, which: tuple[Layer, ...] = LAYERS, constant: bool = True
) -> tuple[Graph, dict[str, Any], dict[str, Any]]:
    """All layers as one program: compiling takes longer than running. Ids count from both ends, and no row chooses the last of several experts."""
    b, rng = GraphBuilder("experts"), np.random.default_rng(7)
    feeds: dict[str, Any] = {}
    known: dict[str, Any] = {}
    for i, (rows, slots, experts, n, k, act, gated, shared, ids) in enumerate(which):
        x = drawn(rng, (rows, k) if shared else (rows, slots, k), dtype)
        w = drawn(rng, (experts, n * (1 + gated), k), dtype, k**-0.5)
        chosen = rng.integers(0, max(1, experts - 1), (rows, slots)).astype(ids)
        chosen[rng.random((rows, slots)) < 0.3] -= experts
        feeds |= {f"x{i}": x, f"i{i}": chosen}
        (known if constant else feeds)[f"w{i}"] = w
        spec = {name: f"[{', '.join(map(str, a.shape))}]" for name, a in (("x", x), ("w", w), ("i", chosen))}
        y = b.expert_linear(
            b.input(f"x{i}", f"{dtype}{spec['x']}"), (b.weight if constant else b.input)(f"w{i}", f"{dtype}{spec['w']}"), b.input(f"i{i}", f"{ids}{spec['i']}"), act=act,
            gated=gated,
        )  # fmt: skip
        b.output(f"y{i}", y)
    return b.build(), feeds, known


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        ((40, 1, 5000, 1, 1, "none", False, True, "int64"), "1 to 4096 experts"),
        ((70_000, 1, 3, 1, 1, "none", True, True, "int64"), "more than 65535 pairs"),
    ],
)
def test_what_exceeds_a_launch_on_cuda_is_refused(layer: Layer, reason: str) -> None:
    graph, _, known = layers("float32", (layer,))
    with pytest.raises(KernelUnavailable, match=f"generated: {reason}"):
        xrt.compile(graph, weights=known, target=cuda_host())


LIMITS = {"bfloat16": 2e-2, "float16": 2e-3}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("target", LEVELS)
def test_products_with_chosen_experts(dtype: str, target: str) -> None:
    graph, feeds, known = layers(dtype)
    check(graph, feeds, weights=known, target=target, tolerance=LIMITS.get(dtype), split=3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_matrices_that_are_not_constant(dtype: str, target: str) -> None:
    graph, feeds, _ = layers(dtype, constant=False)
    check(graph, feeds, target=target, tolerance=LIMITS.get(dtype), split=3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_products_with_chosen_experts_on_cuda(dtype: str) -> None:
    graph, feeds, known = layers(dtype)
    check(graph, feeds, weights=known, target=cuda_host(), tolerance=LIMITS.get(dtype))


def test_few_rows_are_products_by_pair_and_many_are_grouped() -> None:
    """A GPU groups by one launch and multiplies by another; a gate is part of few rows' products."""
    few, many = layers("float32", LAYERS[:1]), layers("float32", LAYERS[7:])
    calls = [
        [c.kernel for c in compile_native(g, f, target=t).entries[0].plans[0].calls]
        for g, f, _ in (few, many)
        for t in ("cpu", cuda_host())
    ]
    assert calls == [["matmul/gemv"], ["matmul/gemv"], ["matmul/generated"], ["matmul/generated"] * 2]


def test_the_same_bits_however_the_work_is_spread() -> None:
    graph, feeds, known = layers("float32")
    one = run_native(graph, feeds, weights=known)
    several = run_native(graph, feeds, weights=known, split=7)
    assert all(one[n].tobytes() == several[n].tobytes() for n in one)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_experts_that_no_row_chose_are_not_read(target: str) -> None:
    """Their weights are NaN."""
    graph, feeds, known = layers("float32", LAYERS[:2] + LAYERS[5:])
    for i in range(len(known)):
        weight, chosen = known[f"w{i}"], feeds[f"i{i}"]
        idle = sorted({*range(len(weight))} - {*(chosen % len(weight)).flatten().tolist()})
        assert idle, "an expert that no row chose"
        weight[idle] = np.nan
    got = run_native(graph, feeds, weights=known, target="cpu" if target == "cpu" else cuda_host())
    assert all(np.isfinite(y).all() for y in got.values())


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("which", [0, 7])
def test_an_expert_that_does_not_exist_is_an_error(which: int, target: str) -> None:
    graph, feeds, known = layers("float32", LAYERS[which : which + 1])
    feeds["i0"][-1, -1] = LAYERS[which][2]
    with pytest.raises((InputError, RunError), match=str(LAYERS[which][2])):
        run_native(graph, feeds, weights=known, target="cpu" if target == "cpu" else cuda_host())
    with pytest.raises(Exception, match="out of range"):
        interp.run(graph, feeds, weights=known)


@pytest.mark.parametrize(
    ("x", "w", "ids", "gated"),
    [
        ("float32[3, 4]", "float32[2, 5, 6]", "int64[3, 1]", False),
        ("float32[3, 4]", "float32[2, 5, 4]", "int64[2, 1]", False),
        ("float32[3, 2, 4]", "float32[2, 5, 4]", "int64[3, 1]", False),
        ("float32[3, 4]", "float32[2, 5, 4]", "int64[3, 1]", True),
        ("float32[3, 4]", "float32[2, 5, 4]", "float32[3, 1]", False),
        ("float32[3, 4]", "float64[2, 5, 4]", "int64[3, 1]", False),
    ],
)
def test_shapes_that_do_not_match_are_refused(x: str, w: str, ids: str, gated: bool) -> None:
    b = GraphBuilder("g")
    with pytest.raises(IrError, match="expert_linear"):
        b.expert_linear(b.input("x", x), b.weight("w", w), b.input("i", ids), gated=gated)
