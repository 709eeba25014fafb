"""One token of a decoder on CUDA: its launches, and blocks that combine their partial results by shared counters."""

from __future__ import annotations

import contextlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from support.native import compile_native

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.errors import KernelUnavailable
from xpuruntime.llm.build import DECODE, build_program
from xpuruntime.llm.checkpoint.config import DecoderConfig
from xpuruntime.llm.decoder import decoder_graph
from xpuruntime.runtime import Executor
from xpuruntime.testing.emulation.cuda_host import cuda_host
from xpuruntime.types import DType

rng = np.random.default_rng(2)
SIZES = {
    "model_type": "qwen2", "vocab_size": 300, "hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("layers", [1, 3])
def test_a_layer_is_five_launches(layers: int) -> None:
    """These are norm and QKV; rotations, cache and attention; output and residual; norm, gate, up and SiLU; down and residual."""
    config = DecoderConfig.from_json({**SIZES, "num_hidden_layers": layers})
    graph = decoder_graph(config, length=1, capacity=256, dtype=DType.BFLOAT16)
    calls = build_program({DECODE: graph}, target=cuda_host()).entry(DECODE).plans[0].calls
    ends = ["create/fill", "elementwise/generated", "embedding/generated", "matmul/gemv", "reduce/generated"]
    layer = ["matmul/gemv", "attention/flash_decode", "matmul/gemv", "matmul/gemv", "matmul/gemv"]
    assert [c.kernel for c in calls] == [*ends[1:3], *layer * layers, *ends[3:]]
    before = build_program({DECODE: graph}, target=cuda_host("sm_80")).entry(DECODE).plans[0].calls
    assert [c.kernel for c in before] == [*ends[:3], *layer * layers, *ends[3:]]  # counters to zero
    # Qwen2.5-1.5B has 28 layers. Its vocabulary is so large that the sampled token needs counters on every target.
    assert len(before) + 5 * (28 - layers) == 145


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "words",
    [
        "rules:\n    - op: attention\n      use: flash_v2",
        "rules:\n    - op: attention\n      use: naive",
        "rules:\n    - op: rope\n      use: generated",
        "attention: naive",
        "attention: [flash_v2, naive]",
    ],
)
def test_a_kernel_that_is_named_for_attention_or_rotations_keeps_them_apart(
    tmp_path: Path, words: str
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(f"version: 1\nkernel:\n  {words}\n")
    config = DecoderConfig.from_json({**SIZES, "num_hidden_layers": 1})
    graph = decoder_graph(config, length=1, capacity=256, dtype=DType.BFLOAT16)
    program = build_program({DECODE: graph}, target=cuda_host(), policy=xrt.load_policy(file))
    calls = {c.ops[0]: c.kernel for c in program.entry(DECODE).plans[0].calls if c.ops}
    assert {"rope_append", "attention"} <= set(calls)
    named = words.split(": ")[-1].strip("[]").split(",")[0]
    assert named in calls["attention"] + calls["rope_append"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("named", "apart"), [("cublasLt", True), ("[generated, cublasLt]", False), ("onednn", False)]
)
def test_a_preferred_product_decides_whether_norms_are_fused(tmp_path: Path, named: str, apart: bool) -> None:
    """A norm becomes part of a product only if the first kernel that the policy names computes both."""
    file = tmp_path / "policy.yaml"
    file.write_text(f"version: 1\nkernel:\n  matmul: {named}\n")
    config = DecoderConfig.from_json({**SIZES, "num_hidden_layers": 1})
    graph = decoder_graph(config, length=1, capacity=64, dtype=DType.BFLOAT16)
    calls = (
        build_program({DECODE: graph}, target=cuda_target("cuda:sm_90"), policy=xrt.load_policy(file))
        .entry(DECODE)
        .plans[0]
        .calls
    )
    assert any("norm_linear" in c.ops for c in calls) is not apart


def test_attention_of_later_layers_may_start_early() -> None:
    """Attention reads masks and caches before griddep_wait. The first layer's launch waits for all before it, so that later layers need not."""
    config = DecoderConfig.from_json({**SIZES, "num_hidden_layers": 3})
    graph = decoder_graph(config, length=1, capacity=256, dtype=DType.BFLOAT16)
    calls = build_program({DECODE: graph}, target=cuda_host()).entry(DECODE).plans[0].calls
    assert [c.options["pdl"] for c in calls if "rope_attention" in c.ops] == [False, True, True]
    assert all(c.options["pdl"] for c in calls if "rope_attention" not in c.ops)
    assert not any("prologue_reads" in c.options for c in calls)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("dtype", "fused"), [("bfloat16", True), ("float16", True), ("float32", False)])
def test_only_what_a_kernel_computes_is_fused(dtype: str, fused: bool) -> None:
    config = DecoderConfig.from_json({**SIZES, "num_hidden_layers": 1})
    graph = decoder_graph(config, length=1, capacity=64, dtype=DType.of(dtype))
    calls = build_program({DECODE: graph}, target=cuda_host()).entry(DECODE).plans[0].calls
    assert any("rope_attention" in c.ops for c in calls) is fused
    assert any("rope_append" in c.ops for c in calls) is not fused


@pytest.mark.parametrize(("word", "fused"), [("cublasLt", False), ("gemv", True), ("generated", True)])
def test_a_forced_kernel_is_not_replaced_by_a_fused_one(tmp_path: Path, word: str, fused: bool) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(f"version: 1\nkernel:\n  rules:\n    - op: matmul\n      use: {word}\n")
    config = DecoderConfig.from_json({**SIZES, "num_hidden_layers": 1})
    graph = decoder_graph(config, length=1, capacity=256, dtype=DType.BFLOAT16)
    after: list[ir.Graph] = []
    with contextlib.suppress(KernelUnavailable):  # a library that is not here
        build_program(
            {DECODE: graph},
            target=cuda_host(),
            policy=xrt.load_policy(file),
            watch=lambda _, g: after.append(g),
        )
    ops = {n.op for n in after[-1].nodes}
    assert ("norm_linear" in ops) is fused
    assert ("rms_norm" in ops) is not fused
    assert "rope_attention" in ops


@pytest.mark.parametrize("threads", [1, 2])
def test_counters_of_split_attention_are_reset_between_runs(threads: int) -> None:
    """Two nodes share the counters, whose memory is not initialized before the first run."""
    b = ir.GraphBuilder("g")
    q = b.input("q", "bfloat16[1, 6, 1, 64]")
    k, v = (b.input(n, "bfloat16[1, 2, 500, 64]") for n in "kv")
    mask = b.input("m", "bool[1, 1, 1, 500]")
    b.output("y", b.attention(b.attention(q, k, v, mask), k, v, mask))
    graph = b.build()
    feeds = {
        s.name: rng.standard_normal(s.shape).astype(ml_dtypes.bfloat16)
        for s in graph.input_specs
        if s.name != "m"
    }
    feeds["m"] = np.arange(500).reshape(1, 1, 1, 500) < 333
    program = compile_native(graph, feeds, target=cuda_host())
    plan = program.entries[0].plans[0]
    assert [c.kernel for c in plan.calls] == [
        "create/fill",
        "attention/flash_decode",
        "attention/flash_decode",
    ]
    assert plan.calls[1].tasks > plan.calls[0].tasks > 0
    counters = plan.buffer(plan.calls[0].outputs[0])
    assert (counters.first, counters.last) == (0, 2)
    want = ir.interp.run(graph, feeds)["y"].astype(np.float64)
    with Executor(program, threads=threads) as executor:
        for _ in range(3):
            (got,) = executor.run_arrays([feeds[s.name] for s in graph.input_specs])
            assert abs(got.astype(np.float64) - want).max() <= 8e-3 * abs(want).max()
