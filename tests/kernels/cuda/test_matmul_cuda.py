"""Matrix products on CUDA: the kernels' own text, run on a CPU by the emulator, against the interpreter."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cuda_kernels import call_of, judge, one_node

from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.compiler.demands import Demands
from xpuruntime.compiler.lower import lower
from xpuruntime.ir import GraphBuilder
from xpuruntime.kernels import offers
from xpuruntime.kernels.cuda.matmul.gemv import Gemv, GemvTileConfig, NormLinear, gemv_stage, gemv_tile_config
from xpuruntime.kernels.cuda.matmul.gemv_mma import MmaTileConfig, mma_leads, mma_stage, mma_tile_config
from xpuruntime.kernels.cuda.matmul.gemv_problem import problem_of_layer, problem_of_product
from xpuruntime.kernels.cuda.matmul.generated import TILES, Generated, product_tile, tensor_stage
from xpuruntime.kernels.cuda.matmul.text import matrices_of
from xpuruntime.kernels.kernel import LoweredCall
from xpuruntime.kernels.spec.matmul import product_of
from xpuruntime.passes import PASSES, laid_out, run_passes
from xpuruntime.policies.policy import from_document
from xpuruntime.types import DType

rng = np.random.default_rng(11)


def array(shape: tuple[int, ...], dtype: str = "bfloat16") -> np.ndarray[Any, Any]:
    own = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if "int" in dtype:
        info = np.iinfo(own)
        return rng.integers(info.min, info.max, shape, dtype=own, endpoint=True)
    return rng.standard_normal(shape).astype(own)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_tensor_cores_take_both_orders_of_the_right_side(dtype: str) -> None:
    judge(Generated(), "mm", array((65, 80), dtype), array((80, 72), dtype))
    judge(Generated(), "linear", array((65, 80), dtype), array((72, 80), dtype), array((72,), dtype))


def test_tensor_cores_read_rows_that_are_no_whole_chunks() -> None:
    judge(Generated(), "mm", array((33, 37)), array((37, 41)))
    judge(Generated(), "linear", array((33, 64)), array((40, 64)), shift=1)  # nothing starts at 16 bytes


def test_batches_epilogues_and_factors() -> None:
    judge(Generated(), "bmm", array((3, 40, 64)), array((3, 64, 24)))
    judge(Generated(), "matmul", array((2, 1, 20, 24)), array((3, 24, 16)))
    judge(
        Generated(),
        "fused_linear",
        array((2, 33, 64)),
        array((70, 64)),
        array((70,)),
        array((2, 33, 70)),
        act="gelu",
    )
    judge(Generated(), "addmm", array((24,)), array((20, 32)), array((32, 24)), alpha=0.5, beta=2.0)
    judge(Generated(), "addmm", array((24,)), array((20, 32)), array((32, 24)), beta=np.inf)


@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t.rows}x{t.columns}")
def test_every_tile_gives_the_same(tile: Any) -> None:
    class GemvTileConfig:
        name = "matmul/generated"

        def supports(self, call: Any, target: Any) -> Any:
            return Generated().supports(call, target)

        def lower(self, call: Any, target: Any) -> LoweredCall:
            p = product_of(call).flat()
            sides = matrices_of(p, call.outputs[0].dtype)
            assert sides is not None
            return LoweredCall((tensor_stage(call, p, sides, target, tile),))

    judge(GemvTileConfig(), "linear", array((tile.rows + 3, 328)), array((tile.columns + 9, 328)))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint32", "int64"])
def test_plain_arithmetic_takes_every_dtype(dtype: str) -> None:
    judge(Generated(), "bmm", array((2, 70, 33), dtype), array((2, 33, 90), dtype))
    judge(Generated(), "linear", array((5, 33), dtype), array((9, 33), dtype), array((9,), dtype))


@pytest.mark.parametrize(("m", "n", "k", "dtype"), [
    (1, 70, 264, "bfloat16"), (3, 33, 1000, "float16"), (4, 20, 300, "float32"), (2, 40, 301, "bfloat16"), (1, 3, 8960, "bfloat16"),
    (1, 5000, 520, "float16"),
])  # fmt: skip
def test_few_rows_stream_the_weight(m: int, n: int, k: int, dtype: str) -> None:
    judge(
        Gemv(),
        "fused_linear",
        array((m, k), dtype),
        array((n, k), dtype),
        array((n,), dtype),
        array((m, n), dtype),
        act="silu",
        weights="12",
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "config", [GemvTileConfig(4, 1, 8, 2, 2, 1), GemvTileConfig(2, 5, 1, 1, 3, 1), GemvTileConfig(1, 8, 1, 1, 5), GemvTileConfig(8, 1, 4, 1), GemvTileConfig(2, 1, 1, 3, 40, 2)], ids=str
)  # fmt: skip
@pytest.mark.parametrize("weights", ["1", ""], ids=["weight", "product"])
def test_every_cut_of_a_streamed_weight_gives_the_same(config: GemvTileConfig, weights: str) -> None:
    class Streamed:
        name = "matmul/gemv"

        def supports(self, call: Any, target: Any) -> Any:
            return Gemv().supports(call, target)

        def lower(self, call: Any, target: Any) -> LoweredCall:
            return LoweredCall((gemv_stage(call, config, problem_of_product(call)),))

    judge(Streamed(), "linear", array((2, 520)), array((37, 520)), shift=config.columns == 1, weights=weights)  # type: ignore[arg-type]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("m", "n", "k", "dtype"), [
    (1, 64, 96, "bfloat16"), (3, 96, 65, "float32"), (8, 50, 520, "float64"), (5, 21, 1544, "bfloat16"), (16, 22, 1536, "float16"),
    (1, 4500, 264, "bfloat16"), (2, 7, 5000, "float32"),
])  # fmt: skip
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_a_norm_and_the_layer_after_it(m: int, n: int, k: int, dtype: str, gated: bool) -> None:
    rows = n * (1 + gated)
    x, weight, bias, scale = (
        array((1, m, k), dtype),
        array((rows, k), dtype),
        array((rows,), dtype),
        array((k,), dtype),
    )
    residual = None if gated else array((1, m, n), dtype)
    judge(
        NormLinear("matmul/gemv"),
        "norm_linear",
        x,
        weight,
        bias,
        residual,
        scale,
        act="silu",
        eps=0.25,
        gated=gated,
        weights="124",
    )
    judge(NormLinear("matmul/gemv"), "norm_linear", x, weight, act="silu", gated=gated, weights="1", shift=1)


class OnTensorCores:
    """``matmul/gemv`` of tensor cores with a config, or its own."""

    name = "matmul/gemv"

    def __init__(self, config: MmaTileConfig | None = None) -> None:
        self.config = config

    def supports(self, call: Any, target: Any) -> Any:
        return (NormLinear(self.name) if call.op == "norm_linear" else Gemv()).supports(call, target)

    def lower(self, call: Any, target: Any) -> LoweredCall:
        s = problem_of_layer(call) if call.op == "norm_linear" else problem_of_product(call)
        config = self.config or mma_tile_config(s, target)
        assert config is not None
        return LoweredCall((mma_stage(call, config, s),))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("m", "n", "k", "dtype"), [
    (1, 70, 264, "bfloat16"), (3, 33, 1000, "float16"), (8, 17, 64, "bfloat16"), (16, 40, 301, "bfloat16"), (9, 3, 2056, "float16"),
    (5, 2500, 72, "bfloat16"), (2, 16, 8, "float16"), (7, 50, 3, "bfloat16"), (16, 20, 1100, "bfloat16"),
])  # fmt: skip
def test_few_rows_of_16_bit_floats_run_on_tensor_cores(m: int, n: int, k: int, dtype: str) -> None:
    x, weight, bias, scale = (
        array((m, k), dtype),
        array((n, k), dtype),
        array((n,), dtype),
        array((k,), dtype),
    )
    kernel: Any = OnTensorCores()
    judge(kernel, "fused_linear", x, weight, bias, array((m, n), dtype), act="silu", weights="12")
    judge(
        kernel,
        "norm_linear",
        x,
        weight,
        bias,
        array((m, n), dtype),
        scale,
        act="none",
        eps=1e-6,
        gated=False,
        weights="124",
    )
    if n % 2 == 0:
        judge(
            kernel,
            "norm_linear",
            x,
            weight,
            bias,
            None,
            scale,
            act="silu",
            eps=0.25,
            gated=True,
            weights="124",
        )
        judge(kernel, "norm_linear", x, weight, act="silu", gated=True, weights="1", shift=1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("config", [
    MmaTileConfig(1, 2, 1), MmaTileConfig(9, 2, 3), MmaTileConfig(4, 7, 2), MmaTileConfig(2, 3, 1), MmaTileConfig(8, 3, 3, 2),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("weights", ["1", ""], ids=["weight", "product"])
def test_every_cut_on_tensor_cores_gives_the_same(config: MmaTileConfig, weights: str) -> None:
    x, weight = array((10, 520), "bfloat16"), array((37, 520), "bfloat16")
    kernel: Any = OnTensorCores(config)
    usual, shifted = (judge(kernel, "linear", x, weight, weights=weights, shift=shift) for shift in (0, 1))
    assert usual.tobytes() == shifted.tobytes()


def test_a_row_on_tensor_cores_has_the_same_bits_wherever_it_is() -> None:
    x, weight = array((16, 200), "bfloat16"), array((24, 200), "bfloat16")
    kernel: Any = OnTensorCores(MmaTileConfig(3, 2, 1))
    whole, mixed = (judge(kernel, "linear", rows, weight, weights="1") for rows in (x, x[::-1].copy()))
    assert whole.tobytes() == mixed[::-1].tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_row_and_column(bad: float) -> None:
    """Also beyond the ends: k is no multiple of a step, n of a tile, and m of the columns of a product."""
    x, weight, scale = array((9, 70), "bfloat16"), array((19, 70), "bfloat16"), array((70,), "bfloat16")
    x[4, 69], weight[18, 3] = bad, bad
    kernel: Any = OnTensorCores()
    judge(kernel, "linear", x, weight, weights="1")
    judge(kernel, "norm_linear", x, weight, None, None, scale, eps=1e-6, weights="14")


def test_rows_that_leave_no_room_for_the_weight() -> None:
    """Sixteen rows of 16,384 inputs take half a MiB. A GEMM multiplies them, and a norm stays a node of its own, but one that a graph has runs by FMAs."""
    target = cuda_target("cuda:sm_90")
    wide = np.broadcast_to(np.zeros((), "bfloat16"), (16, 16384))
    graph, _, known = one_node("linear", (wide, wide), "1")
    assert "16 rows of 16384 inputs leave too little" in str(
        Gemv().supports(call_of(graph, known), target).reason
    )  # type: ignore[attr-defined]
    graph, _, known = one_node("norm_linear", (wide, wide), "1")
    kernel, call = NormLinear("matmul/gemv"), call_of(graph, known)
    assert kernel.supports(call, target)
    assert not kernel.repays_fusion(call, target)
    assert "gemv::run" in kernel.lower(call, target).stages[0].source


@given(
    m=st.integers(1, 16), n=st.integers(0, 40000), k=st.integers(0, 20000), gated=st.booleans(),
    target=st.sampled_from(["cuda:sm_80", "cuda:sm_86", "cuda:sm_90", "cuda:h100-sxm"]),
)  # fmt: skip
def test_rings_fit_in_shared_memory(m: int, n: int, k: int, gated: bool, target: str) -> None:
    to = cuda_target(target)
    wide = np.broadcast_to(np.zeros((), "bfloat16"), (max(m, n * 2), k))
    graph, _, known = one_node("norm_linear", (wide[:m], wide[: n * (1 + gated)]), "1", gated=gated)
    s = problem_of_layer(call_of(graph, known))
    config = mma_tile_config(s, to)
    if config is None:
        assert (
            m * k * 2 > to.config.smem_per_block / 4 or k <= 512 or not n
        )  # the rows take much of it, or steps are few
        return
    assert config.shared(s) * config.per_sm <= to.config.smem_per_block
    steps, tiles = -(-k // 64), -(-n // (8 if gated else 16))
    assert 1 <= config.split <= steps
    assert 2 <= config.stages <= 16
    assert config.blocks <= tiles
    needed = -(-steps // config.split) * -(-tiles // config.blocks) + 1
    assert config.stages == needed or config.split * (config.stages - 1) * 2048 * config.per_sm >= 48 * 1024
    large = (
        n * (1 + gated) * k * 2 >= 13 << 20 and k >= 1024 and 100 * tiles >= 70 * (to.config.num_sms or 132)
    )
    assert mma_leads(s, to) is (m > 1 or large)


@pytest.mark.parametrize(("target", "m", "k", "fused"), [
    ("cuda:sm_90", 16, 8192, False), ("cuda:sm_90", 16, 4096, True), ("cuda:sm_89", 16, 4096, False), ("cuda:sm_89", 4, 8192, True),
    ("cuda:sm_90", 17, 64, False), ("cuda:sm_90", 8, 16384, False),
])  # fmt: skip
@pytest.mark.parametrize("gate", [False, True], ids=["norm", "gate"])
def test_what_is_fused_has_a_kernel(target: str, m: int, k: int, fused: bool, gate: bool) -> None:
    """A norm or a gate becomes part of a layer only where that is faster, and the policy leaves a kernel for it."""
    b = GraphBuilder("layer")
    x = b.input("x", f"bfloat16[1, {m}, {k}]")
    if gate:
        both = b.linear(x, b.weight("w", f"bfloat16[4096, {k}]"))
        b.output("y", b.silu_mul(*b.split(both, sizes=[2048, 2048], dim=2)))
    else:
        x = b.rms_norm(x, b.weight("s", f"bfloat16[{k}]"), normalized_shape=[k], eps=1e-6)
        b.output("y", b.linear(x, b.weight("w", f"bfloat16[2048, {k}]")))
    for rules, allowed in (
        ({}, True),
        ({"rules": [{"op": "matmul", "forbid": ["gemv", "generated"]}]}, False),
    ):
        policy = from_document({"version": 1, "kernel": rules})
        graph, to = b.build(), cuda_target(target)
        after = run_passes(
            graph,
            [p.name for p in PASSES if not p.physical],
            context=Demands(policy, [to], "inference").context(),
        )
        assert ("norm_linear" in {n.op for n in after.nodes}) is (fused and allowed)
        if allowed:
            laid, layouts = laid_out(after, to.config.channel_alignment_bytes, to.any_layout)
            assert lower(laid, layouts, to, policy.kernel, offers)


def test_a_decoder_s_products_are_cut_so_that_memory_is_busy() -> None:
    """More blocks of at most 256 threads than multiprocessors, each with one item of columns unless there are very many; a short row is one warp's."""
    for n, k, gated in (
        (2048, 1536, False),
        (1536, 1536, False),
        (8960, 1536, True),
        (1536, 8960, False),
        (151936, 1536, False),
    ):
        config = gemv_tile_config(1, n, k, DType.BFLOAT16, gated)
        blocks = config.blocks(-(-n * (1 + gated) // config.columns))
        assert 132 <= blocks <= 9 * 132
        assert config.items_per_group == 1 or n > 10**5
        assert config.threads <= 256
        assert (config.split == 1) is (k == 1536)
        each = -(-k // (256 * config.split))
        assert -each % config.stages <= 1  # at most one idle step
        assert config.columns * config.stages * 16 * config.threads * blocks / 132 > 34 * 1024 * min(
            1, n * k * 2 / 132 / 50e3
        )


@given(
    n=st.integers(1, 40000),
    k=st.integers(1, 20000),
    gated=st.booleans(),
    dtype=st.sampled_from([DType.BFLOAT16, DType.FLOAT32]),
)
def test_loads_under_way_fit_into_the_registers_that_a_launch_allows(
    n: int, k: int, gated: bool, dtype: DType
) -> None:
    """Four registers a load; the rest of a thread takes 30. What does not fit is spilled, which made a token 41% slower where k is 3,072."""
    config = gemv_tile_config(1, n, k, dtype, gated)
    assert 4 * config.columns * config.stages + 30 <= 65536 // (config.min_blocks_per_sm * config.threads)


def test_what_is_refused_has_a_reason() -> None:
    target = cuda_target("cuda:sm_80")

    def said(kernel: Any, op: str, *operands: Any, **attrs: Any) -> str:
        graph, _, known = one_node(op, operands, **attrs)
        return str(kernel.supports(call_of(graph, known), target).reason)

    assert said(Gemv(), "mm", array((1, 8)), array((8, 8))) == "k must be the weight's contiguous dim"
    rows = array((9, 8), "float32"), array((8, 8), "float32")
    assert said(Gemv(), "linear", *rows) == "at most 4 rows are supported, got 9"
    rows = array((17, 8), "float16"), array((8, 8), "float16")
    assert said(Gemv(), "linear", *rows) == "at most 16 rows are supported, got 17"
    assert (
        said(Gemv(), "linear", array((1, 8), "int8"), array((8, 8), "int8"))
        == "floats of 16 and 32 bits are supported, not int8"
    )
    assert (
        said(Gemv(), "bmm", array((2, 1, 8)), array((2, 8, 8)))
        == "one weight is supported, not one per batch"
    )


@pytest.mark.parametrize(
    ("rows", "k", "act", "leads"),
    [(4096, 192, "gelu", True), (4096, 192, "gelu_tanh", False), (4096, 256, "gelu", False), (64, 96, "gelu", False), (4096, 100, "silu", False)],
)  # fmt: skip
def test_our_gemm_leads_where_results_are_the_most_traffic(rows: int, k: int, act: str, leads: bool) -> None:
    b = GraphBuilder("layer")
    operands = [
        b.input("x", f"float16[{rows}, {k}]"),
        b.weight("w", f"float16[768, {k}]"),
        b.weight("bias", "float16[768]"),
    ]
    b.output("y", b.call("fused_linear", *operands, act=act))
    assert Generated().leads(call_of(b.build(), {"w": 0, "bias": 0}), cuda_target("cuda:sm_80")) is leads


def test_tiles_of_a_short_k_are_small() -> None:
    target = cuda_target("cuda:sm_90")

    def tile(m: int, n: int, k: int) -> tuple[int, int]:
        b = GraphBuilder("product")
        b.output("y", b.mm(b.input("x", f"float16[{m}, {k}]"), b.input("w", f"float16[{k}, {n}]")))
        chosen = product_tile(product_of(call_of(b.build(), {})).flat(), target)
        return chosen.rows, chosen.columns

    assert tile(12544, 768, 192) == (64, 64)
    assert tile(784, 768, 192) == (32, 64)
    assert tile(4096, 4096, 4096) == (128, 128)
