"""Kernels that promise ``batch_invariant``: rows in another order give the same bits in that order."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cuda_kernels import call_of, one_node
from support.native import compile_native, run_native

from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.errors import KernelUnavailable, RunError
from xpuruntime.ir import Graph, GraphBuilder
from xpuruntime.kernels.catalogue import offers
from xpuruntime.runtime import Executor
from xpuruntime.testing.emulation.launches import emulate

ROWS = 13
POLICY: dict[str, Any] = {"version": 1, "kernel": {"batch_invariant": True}}
LAYERS: dict[str, Any] = {
    "linear": lambda b, x, w: b.linear(x, w("a", 70, 96), w("c", 70)),
    "linear of rank 3": lambda b, x, w: b.linear(b.view(x, size=[ROWS, 1, 96]), w("a", 33, 96)),
    "linear, long": lambda b, x, w: b.linear(b.cat(*[x] * 40, dim=1), w("a", 20, 96 * 40)),
    "norm_linear": lambda b, x, w: b.linear(b.silu(b.linear(b.rms_norm(x, w("s", 96), normalized_shape=[96]), w("a", 64, 96))), w("e", 30, 64)),
    "layer_norm": lambda b, x, w: b.gelu(b.layer_norm(x, w("s", 96), w("t", 96), normalized_shape=[96])),
    "softmax": lambda b, x, w: b.softmax(b.mul(x, x), dim=1),
    "elements": lambda b, x, w: b.tanh(b.add(b.exp(b.sigmoid(x)), w("a", 96))),
    "embedding": lambda b, x, w: b.embedding(w("a", 40, 33), b.argmax(b.slice(x, dim=1, start=0, end=40), dim=1)),
    "experts": lambda b, x, w: b.expert_linear(x, w("a", 6, 24, 96), b.topk(b.linear(x, w("r", 6, 96)), k=2, dim=1)[1]),
}  # fmt: skip


def layer(name: str, dtype: str, seed: int = 1, rows: int = ROWS) -> tuple[Graph, dict[str, Any]]:
    b, rng = GraphBuilder("rows"), np.random.default_rng(seed)
    weights: dict[str, Any] = {}

    def weight(key: str, *shape: int) -> str:
        array = 0.2 * rng.standard_normal(shape)
        weights[key] = array.astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
        return str(b.weight(key, f"{dtype}[{', '.join(map(str, shape))}]"))

    x = b.input("x", f"{dtype}[{rows}, 96]")
    b.output("y", LAYERS[name](b, x, weight))
    return b.build(), weights


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3", "cpu:x86-64-v2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.sampled(2)
def test_a_row_has_the_same_bits_wherever_it_is(target: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 96)).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    for name in LAYERS:
        graph, weights = layer(name, dtype)
        whole = run_native(graph, {"x": x}, weights=weights, target=target, policy=POLICY)["y"]
        order = rng.permutation(ROWS)
        mixed = run_native(graph, {"x": x[order]}, weights=weights, target=target, policy=POLICY)["y"]
        assert mixed.tobytes() == np.ascontiguousarray(whole[order]).tobytes(), name
        others = rng.standard_normal(x.shape).astype(x.dtype)
        others[5] = x[2]
        among = run_native(graph, {"x": others}, weights=weights, target=target, policy=POLICY)["y"]
        assert among[5].tobytes() == whole[2].tobytes(), name


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3", "cpu:x86-64-v2"])
@pytest.mark.parametrize("word", ["int8", "fp8", "int4", "int4_128"])
@pytest.mark.sampled(3)
def test_weights_of_fewer_bits_keep_it(target: str, word: str) -> None:
    """With 7, 8 and 11 rows, kernels that take 5 or 6 rows at once have a rest of one or two."""
    rng = np.random.default_rng(0)
    policy = {"version": 1, "kernel": {"batch_invariant": True, "weights": word}}
    for name, rows in (("linear", 7), ("linear", 8), ("linear", 11), ("experts", 11)):
        graph, weights = layer(name, "float32", rows=rows)
        x, order = rng.standard_normal((rows, 96)).astype(np.float32), np.roll(np.arange(rows), 1)
        whole, mixed = (
            run_native(graph, {"x": a}, weights=weights, target=target, policy=policy)["y"]
            for a in (x, x[order])
        )
        assert mixed.tobytes() == np.ascontiguousarray(whole[order]).tobytes(), (name, rows)


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3", "cpu:x86-64-v2"])
@pytest.mark.parametrize("word", ["int4", "int4_128"])
@pytest.mark.parametrize("activations", [None, "int8"])
@pytest.mark.sampled(3)
def test_a_row_does_not_depend_on_how_many_rows_chose_its_expert(
    target: str, word: str, activations: str | None
) -> None:
    rows, k, n, experts = 40, 300, 24, 3
    policy = {"version": 1, "kernel": {"batch_invariant": True, "weights": word}}
    if activations:
        policy["kernel"]["activations"] = activations
    b, rng = GraphBuilder("experts"), np.random.default_rng(0)
    x, ids = b.input("x", f"float32[{rows}, {k}]"), b.input("ids", f"int64[{rows}, 1]")
    b.output("y", b.expert_linear(x, b.weight("w", f"float32[{experts}, {n}, {k}]"), ids))
    graph, known = b.build(), {"w": rng.standard_normal((experts, n, k)).astype(np.float32)}
    feeds = {"x": rng.standard_normal((rows, k)).astype(np.float32)}
    results = []
    for chosen in (1, 2, 6, 7, 8, 9, rows):
        feeds["ids"] = np.where(np.arange(rows) < chosen, 0, 1)[:, None]
        results.append(run_native(graph, feeds, weights=known, target=target, policy=policy)["y"][0])
    assert all(y.tobytes() == results[0].tobytes() for y in results)


def test_kernels_that_do_not_promise_it_are_refused() -> None:
    graph, _ = layer("linear", "float32")
    forced = {"version": 1, "kernel": {"batch_invariant": True, "rules": [{"op": "matmul", "use": "onednn"}]}}
    with pytest.raises(KernelUnavailable) as caught:
        compile_native(graph, {"x": np.zeros((ROWS, 96), np.float32)}, policy=forced)
    assert "onednn" in str(caught.value)


def test_the_demand_of_a_program_is_recorded() -> None:
    graph, _ = layer("linear", "float32")
    feeds = {"x": np.zeros((ROWS, 96), np.float32)}
    kept, plain = (compile_native(graph, feeds, policy=p) for p in (POLICY, None))
    with Executor(kept, policy=POLICY):
        pass
    with pytest.raises(RunError.__mro__[1], match="batch_invariant"):
        Executor(plain, policy=POLICY)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [5, 13, 64])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_kernels_of_gpus_keep_it_emulated(rows: int, dtype: str) -> None:
    """Every kernel of CUDA that promises it and computes the node: few rows, rows that fill no tile, several tiles."""
    rng = np.random.default_rng(2)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x, w, s = ((rng.standard_normal(n) * 0.3).astype(kind) for n in ((rows, 96), (72, 96), (96,)))
    order = rng.permutation(rows)
    target, seen = cuda_target("cuda:sm_90"), set()
    for op, operands, attrs in (
        ("linear", [x, w], {}),
        ("rms_norm", [x, s], {"normalized_shape": [96]}),
        ("softmax", [x], {"dim": 1}),
        ("silu", [x], {}),
    ):
        graph, _, known = one_node(op, operands, "1", **attrs)
        call = call_of(graph, known)
        for kernel, support in offers(call, target):
            lowered = kernel.lower(call, target) if support else None
            if lowered is None or not lowered.batch_invariant or kernel.on_request:
                continue
            results = [emulate(lowered, call, target, {**known, "x0": a})[0] for a in (x, x[order])]
            assert results[1].tobytes() == np.ascontiguousarray(results[0][order]).tobytes(), kernel.name
            seen.add(kernel.name)
    assert {"matmul/generated", "norm/generated", "softmax/generated", "elementwise/generated"} <= seen
    assert not seen & {"matmul/cublas", "matmul/cublasLt"}
