"""Matrices of experts in groups of codes: the values of their codes and numbers, for few rows and many, with gates and odd sizes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernels.test_expert_kernels import LAYERS, layers
from support.blocks import random_blocks
from support.native import compile_native, run_native

from xpuruntime.ir import GraphBuilder, interp
from xpuruntime.policies import KernelPolicy
from xpuruntime.runtime.weights.int4 import int4_groups, int4_values
from xpuruntime.storage.blocks import BLOCK_FORMATS
from xpuruntime.testing.emulation.cuda_host import cuda_host

LIMITS = {"float32": 1e-5, "bfloat16": 1 / 64, "float16": 1 / 512}


def on(target: str) -> Any:
    return cuda_host() if target == "cuda" else target


def rounded(w: Any, group: int) -> Any:
    """Return what codes and numbers of 4 bits say, in float32."""
    wide = np.pad(w.astype(np.float32), ((0, 0), (0, 0), (0, -w.shape[2] % group)))
    return int4_values(int4_groups(wide, group), group)[..., : w.shape[2]]


def in_float32(graph: Any, dtype: str) -> Any:
    return type(graph).from_json(_replaced(graph.to_json(), dtype))


def _replaced(data: Any, dtype: str) -> Any:
    if isinstance(data, dict):
        return {k: _replaced(v, dtype) for k, v in data.items()}
    if isinstance(data, list):
        return [_replaced(v, dtype) for v in data]
    return data.replace(dtype, "float32") if isinstance(data, str) else data


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3", "cpu:x86-64-v2", "cuda"])
@pytest.mark.parametrize(("word", "group"), [("int4", 32), ("int4_64", 64), ("int4_128", 128)])
@pytest.mark.parametrize("dtype", LIMITS)
def test_products_with_chosen_experts(word: str, group: int, dtype: str, target: str) -> None:
    graph, feeds, known = layers(dtype)
    policy = KernelPolicy(weights=word)
    program = compile_native(graph, feeds, policy=policy, target=on(target))
    used = [c.kernel for c in program.entries[0].plans[0].calls]
    assert set(used) == {f"matmul/{'int4_weights' if group == 32 else f'int4_weights_{group}'}"}
    got = run_native(graph, feeds, weights=known, policy=policy, target=on(target), split=3)
    narrow = np.dtype(getattr(ml_dtypes, dtype, dtype))
    wide = {n: a.astype(np.float32) if a.dtype == narrow else a for n, a in feeds.items()}
    exact = {n: rounded(w, group) for n, w in known.items()}
    want = interp.run(in_float32(graph, dtype), wide, weights=exact)
    for name, y in want.items():
        assert abs(got[name].astype(np.float32) - y).max() <= LIMITS[dtype] * abs(y).max()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize("rows", [2, 40])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_matrices_that_stay_in_their_blocks(name: str, rows: int, gated: bool, target: str) -> None:
    """Gate and up of different formats share a form that holds both."""
    b, k, experts, n = GraphBuilder("experts"), 256, 5, 21
    parts, weights = [], {}
    for i, kind in enumerate((name, "Q6_K") if gated else (name,)):
        raw = random_blocks(kind, experts * n, k // BLOCK_FORMATS[kind].values, seed=i)
        weights[f"w{i}"] = raw.reshape(experts, n, -1)
        parts.append(
            b.dequantize_blocks(b.weight(f"w{i}", f"uint8[{experts}, {n}, {raw.shape[1]}]"), blocks=kind)
        )
    w = b.cat(*parts, dim=1) if gated else parts[0]
    x, ids = b.input("x", f"float32[{rows}, {k}]"), b.input("ids", f"int64[{rows}, 2]")
    b.output("y", b.expert_linear(x, w, ids, act="silu", gated=gated))
    graph, draw = b.build(), np.random.default_rng(rows)
    feeds = {
        "x": draw.standard_normal((rows, k)).astype(np.float32),
        "ids": draw.integers(0, experts, (rows, 2)),
    }
    policy = KernelPolicy(weights="stored")
    program = compile_native(graph, feeds, policy=policy, target=on(target))
    assert {c.kernel for c in program.entries[0].plans[0].calls} == {"matmul/stored_weights"}
    got = run_native(graph, feeds, weights=weights, policy=policy, target=on(target))["y"]
    want = interp.run(graph, feeds, weights=weights)["y"]
    assert abs(got - want).max() <= 1e-5 * abs(want).max()


def test_memory_is_that_of_the_codes_and_only_a_policy_takes_them() -> None:
    graph, feeds, known = layers("float32", LAYERS[6:7])
    sizes = [
        sum(r.spec.size_bytes or 0 for r in compile_native(graph, feeds, policy=p).recipes)
        for p in (KernelPolicy(), KernelPolicy(weights="int4"))
    ]
    assert sizes[1] <= sizes[0] * 5 / 32 * 64 / 48 + 1  # inputs are padded to whole groups
    assert known["w0"].shape == (3, 64, 48)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_experts_that_no_row_chose_are_not_read(target: str) -> None:
    graph, feeds, known = layers("float32", LAYERS[:1])
    known["w0"][~np.isin(np.arange(4), feeds["i0"] % 4)] = np.nan
    got = run_native(graph, feeds, weights=known, policy=KernelPolicy(weights="int4"), target=on(target))
    assert np.isfinite(got["y0"]).all()
