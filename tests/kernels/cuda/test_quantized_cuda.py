"""Linear layers with weights in int8, fp8 and int4 on CUDA: the kernels' own text, run on a CPU by the emulator, next to what codes and scales say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cuda_kernels import call_of, one_node

from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.decisions import Reason
from xpuruntime.kernels.cuda.matmul import quantized, quantized_rows
from xpuruntime.kernels.cuda.matmul.quantized import KERNELS, quantized_config, quantized_stage
from xpuruntime.kernels.cuda.matmul.quantized_rows import RowsConfig, rows_lowered
from xpuruntime.kernels.cuda.matmul.quantized_tiles import QuantizedConfig, QuantizedTiles
from xpuruntime.kernels.kernel import LoweredCall
from xpuruntime.kernels.spec.channel_codes import FP8
from xpuruntime.kernels.spec.linear import LinearLayer
from xpuruntime.policies import KernelPolicy
from xpuruntime.policies.vocabulary import WEIGHT_KERNELS
from xpuruntime.runtime.weights.int4 import int4_groups, int4_values
from xpuruntime.testing.emulation.launches import emulate
from xpuruntime.types import DType

WORDS = {
    k.name.partition("/")[2]: k for k in KERNELS if not k.stored
}  # tests/kernels/test_weights_in_blocks.py has the other
TARGET = cuda_target("cuda:sm_90")
LIMITS = {"float32": 2e-5, "bfloat16": 1 / 128, "float16": 1 / 1024}


def group_of(kernel: Any) -> int:
    return kernel.form.group if kernel.form else 0


def exact(w: Any, kernel: Any) -> Any:
    """What is left of a weight, in float64."""
    group = group_of(kernel)
    if group and w.shape[1]:
        wide = np.pad(w.astype(np.float32), ((0, 0), (0, -w.shape[1] % group)))
        return int4_values(int4_groups(wide, group), group)[:, : w.shape[1]].astype(np.float64)
    wide = w.astype(np.float64)
    largest = abs(wide).max(1, keepdims=True, initial=0)
    if kernel.codes is FP8:
        scale = (largest / 448).astype(np.float32)
        scale[scale == 0] = 1
        codes = np.clip(w.astype(np.float32) / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        return codes.astype(np.float64) * scale
    scale = (largest / 127).astype(np.float32).astype(np.float64)
    scale[scale == 0] = 1
    return np.clip(np.rint(wide / scale), -127, 127) * scale


def layer(m: int, n: int, k: int, dtype: str, *, gated: bool = False, norm: bool = False, extras: bool = True) -> list[Any]:  # fmt: skip
    """The operands of a layer: x, weight, bias, residual, scale of the norm."""
    draw, own = np.random.default_rng(m + n + k), np.dtype(getattr(ml_dtypes, dtype, dtype))
    rows = n * (1 + gated)
    weight = draw.standard_normal((rows, k)) * draw.uniform(0.1, 4, (rows, 1)) * max(k, 1) ** -0.5
    weight[:1] = 0
    arrays = [draw.standard_normal((m, k)), weight, draw.standard_normal(rows) if extras else None,
              draw.standard_normal((m, n)) if extras and not gated else None, draw.standard_normal(k) if norm else None]  # fmt: skip
    return [None if a is None else a.astype(own) for a in arrays]


def wanted(
    arrays: list[Any], kernel: Any, *, act: str = "none", gated: bool = False, eps: float = 0.0
) -> Any:
    """The layer in float64."""
    x, _, bias, residual, scale = (None if a is None else a.astype(np.float64) for a in arrays)
    if scale is not None:
        x = x / np.sqrt((x * x).mean(1, keepdims=True) + eps) * scale
    y = x @ exact(arrays[1], kernel).T
    y = y if bias is None else y + bias
    y = y if residual is None else y + residual
    n = y.shape[1] // (1 + gated)
    first = y[:, :n]
    first = first / (1 + np.exp(-first)) if act == "silu" else first
    return first * y[:, n:] if gated else first


def results(
    kernel: Any, arrays: list[Any], shift: int = 0, target: Any = TARGET, weights: str = "124", **attrs: Any
) -> Any:
    op = "norm_linear" if "gated" in attrs else "fused_linear"
    operands = arrays if op == "norm_linear" else arrays[:4]
    graph, feeds, known = one_node(op, operands, weights if op == "norm_linear" else "12", **attrs)
    call = call_of(graph, known)
    said = kernel.supports(call, target)
    assert said, said.reason
    (got,) = emulate(kernel.lower(call, target), call, target, feeds | known, shift)
    return got.astype(np.float64)


def compared(kernel: Any, arrays: list[Any], shift: int = 0, target: Any = TARGET, **attrs: Any) -> None:
    got = results(kernel, arrays, shift, target, **attrs)
    want = wanted(arrays, kernel, **attrs)
    limit = LIMITS[arrays[0].dtype.name] * abs(want).max(initial=0)
    assert got.shape == want.shape
    assert (abs(got - want) <= limit * (2 if attrs.get("gated") else 1)).all(), abs(got - want).max() / limit


@pytest.mark.sampled(4)
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(("m", "n", "k", "dtype"), [
    (1, 70, 264, "bfloat16"), (2, 33, 1001, "float16"), (8, 40, 128, "bfloat16"), (9, 16, 520, "bfloat16"), (16, 50, 96, "float16"),
    (1, 3, 8, "bfloat16"), (5, 20, 301, "float32"), (3, 40, 264, "float32"),
])  # fmt: skip
def test_few_rows_are_what_codes_and_scales_say(word: str, m: int, n: int, k: int, dtype: str) -> None:
    kernel = WORDS[word]
    compared(kernel, layer(m, n, k, dtype), act="silu")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(("m", "n", "k", "dtype"), [(17, 70, 264, "bfloat16"), (40, 33, 100, "float16"), (20, 40, 12, "float32"), (70, 24, 130, "float32")])  # fmt: skip
def test_many_rows_without_wgmma_multiply_the_weight_as_floats(
    word: str, m: int, n: int, k: int, dtype: str
) -> None:
    compared(WORDS[word], layer(m, n, k, dtype), act="silu", target=cuda_target("cuda:sm_80"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(("m", "n", "k", "dtype", "shift"), [
    (17, 70, 264, "bfloat16", 0), (40, 33, 100, "float16", 0), (64, 130, 40, "bfloat16", 1), (18, 24, 1100, "bfloat16", 0), (70, 24, 2100, "float16", 0),
    (130, 9, 200, "bfloat16", 1),
])  # fmt: skip
def test_many_rows_by_wgmma(word: str, m: int, n: int, k: int, dtype: str, shift: int) -> None:
    kernel = WORDS[word].batch_invariant_form()
    compared(kernel, layer(m, n, k, dtype), shift, act="silu")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("config", [RowsConfig(64, 1), RowsConfig(64, 2, 5), RowsConfig(128, 1, 3, 3), RowsConfig(128, 2, 2, 5)], ids=str)  # fmt: skip
@pytest.mark.parametrize("word", ["int8_weights", "fp8_weights", "int4_weights", "int4_weights_128"])
def test_every_config_of_many_rows_gives_the_same(config: RowsConfig, word: str) -> None:
    kernel = WORDS[word]

    class Chosen:
        form, codes = kernel.form, kernel.codes

        def supports(self, call: Any, target: Any) -> Any:
            return kernel.supports(call, target)

        def lower(self, call: Any, target: Any) -> LoweredCall:
            lowered = kernel.lower(call, target)
            tiles = QuantizedTiles(LinearLayer.of(call), kernel.form, codes=kernel.codes)
            rows = rows_lowered(call, tiles, config)
            return replace(rows, weights=lowered.weights, extra_weights=lowered.extra_weights)

    compared(Chosen(), layer(70, 140, 600, "bfloat16"), act="silu")


def test_where_many_rows_use_wgmma() -> None:
    def parts(m: int, dtype: str, target: str, kernel: Any) -> set[str]:
        graph, _, known = one_node("linear", [np.zeros((m, 64), getattr(ml_dtypes, dtype, dtype)), np.zeros((8, 64), getattr(ml_dtypes, dtype, dtype))], "1")  # fmt: skip
        lowered = kernel.lower(call_of(graph, known), cuda_target(target))
        return {p for stage in lowered.stages for p in stage.parts}

    own = WORDS["fp8_weights"].batch_invariant_form()
    assert "quantized_rows" in parts(17, "bfloat16", "cuda:sm_90", own)
    assert "quantized_rows" in parts(1024, "float16", "cuda:sm_90", own)
    assert "quantized_rows" in parts(64, "bfloat16", "cuda:sm_90", WORDS["fp8_weights"])
    others = [
        (16, "bfloat16", "sm_90"),
        (1025, "bfloat16", "sm_90"),
        (40, "float32", "sm_90"),
        (40, "bfloat16", "sm_80"),
    ]
    for m, dtype, level in others:
        assert "quantized_rows" not in parts(m, dtype, f"cuda:{level}", own), (m, dtype, level)


@pytest.mark.parametrize("steps", [1, 2, 7, 24, 140])
def test_no_block_is_without_inputs(steps: int) -> None:
    for asked in range(-1, 10):
        split = quantized_rows.whole_split(steps, asked)
        assert 1 <= split <= max(1, asked)
        assert (split - 1) * -(-steps // split) < steps


@pytest.mark.sampled(4)
@pytest.mark.parametrize("word", ["int8_weights", "fp8_weights", "int4_weights", "int4_weights_128"])
@pytest.mark.parametrize(("m", "n", "k", "dtype"), [(1, 40, 264, "bfloat16"), (11, 21, 136, "float16"), (6, 17, 65, "float32")])  # fmt: skip
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_a_norm_and_the_layer_after_it(word: str, m: int, n: int, k: int, dtype: str, gated: bool) -> None:
    kernel = WORDS[word]
    compared(
        kernel,
        layer(m, n, k, dtype, gated=gated, norm=True),
        act="silu",
        gated=gated,
        eps=0.25,
    )


def test_rows_at_any_address_give_the_same() -> None:
    arrays = layer(3, 24, 136, "bfloat16", norm=True)
    aligned, shifted = (results(WORDS["int4_weights"], arrays, s, gated=False, eps=0.5) for s in (0, 1))
    assert np.array_equal(aligned, shifted)


@pytest.mark.parametrize("word", WORDS)
def test_layers_without_inputs_rows_or_outputs(word: str) -> None:
    kernel = WORDS[word]
    compared(kernel, layer(2, 5, 0, "bfloat16"))
    for m, n in ((0, 5), (3, 0)):
        arrays = layer(m, n, 40, "float32")
        graph, _, known = one_node("fused_linear", arrays[:4], "12")
        assert kernel.lower(call_of(graph, known), TARGET).stages == ()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("word", ["int8_weights", "fp8_weights", "int4_weights_64"])
@pytest.mark.parametrize("m", [4, 18])
def test_numbers_that_are_not_finite_stay_in_their_row(word: str, dtype: str, m: int) -> None:
    arrays = layer(m, 24, 150, dtype)
    want = results(WORDS[word], arrays)
    arrays[0][1, 7], arrays[0][2, 149] = np.nan, np.inf
    got = results(WORDS[word], arrays)
    weight = exact(arrays[1], WORDS[word])
    assert np.isnan(got[1]).all()
    assert not np.isfinite(got[2][weight[:, 149] != 0]).any()
    others = [r for r in range(m) if r not in (1, 2)]
    assert np.array_equal(got[others], want[others])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("config", [QuantizedConfig(1, 1, 2), QuantizedConfig(2, 3, 2, 3), QuantizedConfig(4, 8, 5, 2), QuantizedConfig(3, 2, 4, 9)], ids=str)  # fmt: skip
@pytest.mark.parametrize("word", ["int8_weights", "fp8_weights", "int4_weights", "int4_weights_64"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_cut_gives_the_same(config: QuantizedConfig, word: str, dtype: str) -> None:
    kernel = WORDS[word]

    class Cut:
        form, codes = kernel.form, kernel.codes

        def supports(self, call: Any, target: Any) -> Any:
            return kernel.supports(call, target)

        def lower(self, call: Any, target: Any) -> LoweredCall:
            lowered = kernel.lower(call, target)
            stage = quantized_stage(call, kernel.form, config, kernel.codes)
            return LoweredCall((stage,), weights=lowered.weights, extra_weights=lowered.extra_weights)

    compared(Cut(), layer(5, 120, 600, dtype), act="silu")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("m", [9, 20])
def test_every_code_of_fp8_is_read_as_ml_dtypes_reads_it(dtype: str, m: int) -> None:
    """Each finite number of the type, subnormal ones included: outputs are rows of the identity times them, and scales are 1."""
    numbers = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    numbers = numbers[np.isfinite(numbers)]
    own = np.dtype(getattr(ml_dtypes, dtype, dtype))
    weight = np.zeros((254, 254), np.float32)
    for i, number in enumerate(numbers):
        weight[i, i], weight[i, (i + 1) % 254] = number, 448
    ones = np.ones((m, 254))
    ones[::2, ::2] = ones[1::2, 1::2] = 0  # each output has one product: with its number, or with 448
    got = results(WORDS["fp8_weights"], [ones.astype(own), weight.astype(own), None, None])
    assert np.array_equal(got, np.where(ones == 1, numbers, 448))


def test_an_output_of_fp8_whose_weight_is_not_finite_is_nan() -> None:
    arrays = layer(3, 24, 150, "bfloat16")
    want = results(WORDS["fp8_weights"], arrays)
    arrays[1][5, 3], arrays[1][20, 149] = np.nan, np.inf
    got = results(WORDS["fp8_weights"], arrays)
    assert np.isnan(got[:, [5, 20]]).all()
    others = [i for i in range(24) if i not in (5, 20)]
    assert np.array_equal(got[:, others], want[:, others])


def test_a_row_has_the_same_bits_in_any_batch() -> None:
    """Of one program: the other rows do not change it."""
    for m in (7, 16, 30):
        arrays = layer(m, 40, 264, "bfloat16")
        want = results(WORDS["int4_weights"], arrays)
        order = np.random.default_rng(0).permutation(m)
        arrays[0], arrays[3] = arrays[0][order], arrays[3][order]
        assert np.array_equal(results(WORDS["int4_weights"], arrays), want[order])


def test_configs_fit_in_shared_memory_and_long_rows_are_refused() -> None:
    def of(m: int, k: int, group: int, dtype: str = "bfloat16") -> Any:
        arrays = [np.zeros((m, k), getattr(ml_dtypes, dtype, dtype)), np.zeros((4, k), getattr(ml_dtypes, dtype, dtype))]  # fmt: skip
        graph, _, known = one_node("norm_linear", [*arrays, None, None, None], "1")
        return call_of(graph, known)

    limit = TARGET.config.smem_per_block
    rows = [c.rows for c in (quantized_config(LinearLayer.of(of(16, k, 32)), WORDS["int4_weights"].form, limit) for k in (1536, 8960, 40000)) if c]  # fmt: skip
    assert rows == [16, 8, 2]
    said = WORDS["int4_weights"].supports(of(1, 200_000, 32), TARGET)
    assert said.code is Reason.SHAPE_UNSUPPORTED
    assert "200000 inputs" in said.reason
    many = WORDS["int4_weights"].supports(of(quantized.MAX_ROWS + 1, 64, 32), TARGET)
    assert "at most 16 rows" in many.reason
    assert not WORDS["int8_weights"].supports(of(1, 64, 0, "float64"), TARGET)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("words", ["int8", "fp8", "int4", "int4_128"])
def test_a_decoder_says_what_it_says_on_a_processor(words: str) -> None:
    """Emulated: a prompt of many rows, then tokens one by one, next to the same policy's program for CPUs, whose codes are the same."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from xpuruntime.llm import Generator, open_checkpoint
    from xpuruntime.llm.build import build_program, decoder_graphs
    from xpuruntime.llm.steps import Steps
    from xpuruntime.runtime import load_weights
    from xpuruntime.testing.conformance.seeded.decoders import prompt, reference
    from xpuruntime.testing.emulation.cuda_host import cuda_host

    model, tokens = reference("qwen2"), prompt(26)
    found, policy = open_checkpoint(model), KernelPolicy(weights=words)
    program = build_program(
        decoder_graphs(found.config, capacity=32, buckets=(32,)), target=cuda_host(), policy=policy
    )
    assert {c.kernel for c in program.entry("decode").plans[0].calls if c.kernel.startswith("matmul/")} == {
        f"matmul/{WEIGHT_KERNELS[words]}"
    }
    steps = Steps(
        program, load_weights(found.arrays, program, "cpu"), batch=1, vocab=97, dtype=found.config.dtype
    )
    got = [
        steps.read([tokens[:20]])[0].copy(),
        *(steps.step([t], [20 + i])[0].copy() for i, t in enumerate(tokens[20:])),
    ]
    steps.close()
    with Generator(
        model, capacity=32, buckets=(32,), policy={"version": 1, "kernel": {"weights": words}}
    ) as ours:
        want = [
            ours.read(tokens[:20])[0].copy(),
            *(ours.step(t, 20 + i)[0].copy() for i, t in enumerate(tokens[20:])),
        ]
    assert abs(np.array(got) - np.array(want)).max() < 1e-4 * abs(np.array(want)).max()


def test_tiles_of_a_warp_are_copied_ahead_where_all_blocks_run_at_once() -> None:
    form, limit = WORDS["int4_weights"].form, TARGET.config.smem_per_block

    def stages(m: int, n: int, k: int, *, alone: bool = True) -> int:
        layer = LinearLayer(m, n, k, 1, "none", 0.0, DType.BFLOAT16, None, None, None)
        config = quantized_config(layer, form, limit, alone=alone)
        assert config is not None
        tiles = QuantizedTiles(layer, form)
        blocks = -(-tiles.tiles // config.tiles_per_block // 132)
        assert config.stages == 3 or blocks * tiles.shared(config, True) <= limit
        return config.stages

    assert stages(1, 1536, 8960) == 7
    assert stages(1, 1536, 1536) == 3  # a warp has one tile
    assert stages(1, 151_936, 1536) == 3  # more blocks than an SM runs at once
    assert stages(1, 1536, 8960, alone=False) == 3
    assert stages(16, 1536, 8960) == 3  # two groups of rows


def test_a_computed_scale_of_the_norm_is_not_read_ahead() -> None:
    """The emulator refuses a read before ``griddep_wait`` of what another launch may write."""
    arrays = layer(1, 32, 264, "bfloat16", norm=True)
    kernel, attrs = WORDS["int4_weights"], {"gated": False, "eps": 1e-5}
    got, want = (results(kernel, arrays, weights=w, **attrs) for w in ("12", "124"))
    assert np.array_equal(got, want)
