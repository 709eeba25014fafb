"""Products of many rows by wgmma and TMA on the emulator, next to the interpreter, and where they are chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cuda_kernels import call_of, judge, one_node
from support.native import check, run_native

import xpuruntime as xrt
from xpuruntime import _core
from xpuruntime.codegen.cuda.sm import LEVELS
from xpuruntime.codegen.cuda.target import CudaTarget, cuda_target
from xpuruntime.ir import Graph, GraphBuilder
from xpuruntime.kernels.cuda.matmul import hopper_gemm
from xpuruntime.kernels.cuda.matmul.gemv import NormLinear
from xpuruntime.kernels.cuda.matmul.generated import Generated
from xpuruntime.kernels.cuda.matmul.hopper_gemm import HOPPER_TILES, HopperTile, hopper_tile
from xpuruntime.kernels.cuda.matmul.text import matrices_of
from xpuruntime.kernels.kernel import LoweredCall
from xpuruntime.kernels.spec.matmul import product_of
from xpuruntime.kernels.spec.product import Product
from xpuruntime.targets import TargetConfig
from xpuruntime.testing.emulation.cuda_host import cuda_host
from xpuruntime.types import DType

BF16, F16 = ml_dtypes.bfloat16, np.float16
H200 = cuda_target("cuda:h200")


def random(*shape: int, dtype: Any = BF16, scale: float = 1.0) -> Any:
    rng = np.random.default_rng(sum(shape))
    return (rng.standard_normal(shape) * scale).astype(dtype)


def sized(**fields: int) -> CudaTarget:
    return CudaTarget(LEVELS["sm_90"], replace(TargetConfig.named("h200"), **fields))


class Tiled(Generated):
    """Our GEMM with one tile, for products of any size."""

    def __init__(self, tile: HopperTile) -> None:
        super().__init__()
        self.tile = tile

    def lower(self, call: Any, target: Any) -> LoweredCall:
        p = product_of(call).flat()
        sides = matrices_of(p, call.outputs[0].dtype)
        assert sides is not None
        assert hopper_gemm.multiplies(p, sides, call.outputs[0].dtype, target)
        return LoweredCall((hopper_gemm.hopper_stage(call, p, sides, target, self.tile),))


SMALL = HopperTile(64, 3)


def gated_with(tile: HopperTile = SMALL) -> NormLinear:
    """Gated layers with one tile."""

    class Gated(NormLinear):
        def lower(self, call: Any, target: Any) -> LoweredCall:
            return hopper_gemm.gated_call(call, target, tile)

    return Gated("matmul/generated")


@pytest.mark.parametrize("tile", HOPPER_TILES, ids=lambda t: str(t.columns))
def test_every_tile_multiplies(tile: HopperTile) -> None:
    """Rows, columns and k end within a tile, and a block has several tiles one after the other."""
    n = 2 * tile.columns + 24
    assert tile.waves(270, n, 1, num_sms=3) == 6
    x, w, bias = random(270, 136), random(n, 136, scale=0.1), random(n)
    judge(Tiled(tile), "fused_linear", x, w, bias, weights="12", target=sized(num_sms=3), act="silu")


@pytest.mark.parametrize("k", [8, 64, 136, 328])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_phases_of_several_tiles(k: int, stages: int) -> None:
    """A tile has fewer steps than there are stages, as many, or more."""
    tile, few = HopperTile(64, stages), sized(num_sms=3)
    judge(Tiled(tile), "linear", random(400, k), random(150, k, scale=0.2), weights="1", target=few)
    judge(
        gated_with(tile),
        "norm_linear",
        random(300, k),
        random(140, k, scale=0.2),
        weights="1",
        target=few,
        gated=True,
        act="silu",
    )


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 8, 8), (128, 64, 64), (129, 65, 72), (257, 31, 520), (300, 7, 640)]
)
def test_sizes_that_fill_no_tile(m: int, n: int, k: int, dtype: Any) -> None:
    judge(
        Tiled(HopperTile(64, 4)),
        "linear",
        random(m, k, dtype=dtype),
        random(n, k, dtype=dtype, scale=k**-0.5),
        weights="1",
    )


def test_terms_are_the_epilogue() -> None:
    x, w, bias, residual = random(140, 72), random(80, 72, scale=0.1), random(80), random(140, 80)
    judge(Tiled(HopperTile(64, 2)), "fused_linear", x, w, bias, residual, weights="12", act="gelu")


@pytest.mark.parametrize("shift", [1, 4])
def test_addresses_that_tma_cannot_copy(shift: int) -> None:
    judge(
        Tiled(HopperTile(64, 2)),
        "linear",
        random(130, 200),
        random(70, 200, scale=0.1),
        weights="1",
        shift=shift,
    )
    judge(
        gated_with(),
        "norm_linear",
        random(130, 72),
        random(80, 72, scale=0.1),
        weights="1",
        shift=shift,
        gated=True,
        act="silu",
    )


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(("m", "n", "k"), [(17, 8, 8), (200, 40, 136), (100, 31, 72), (300, 96, 64)])
def test_gated_layers(m: int, n: int, k: int, dtype: Any) -> None:
    x, w = random(m, k, dtype=dtype), random(2 * n, k, dtype=dtype, scale=k**-0.5)
    judge(gated_with(), "norm_linear", x, w, weights="1", gated=True, act="silu")


@pytest.mark.parametrize("act", ["none", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh"])
def test_other_gates(act: str) -> None:
    judge(
        gated_with(),
        "norm_linear",
        random(40, 64),
        random(64, 64, scale=0.2),
        weights="1",
        gated=True,
        act=act,
    )


def test_rows_of_nan_and_infinity_stay_alone() -> None:
    x, w = random(260, 72, dtype=F16), random(96, 72, dtype=F16, scale=0.1)
    x[3], x[200, 5], x[259, 71] = np.nan, np.inf, -np.inf
    got = judge(Tiled(HopperTile(96, 2)), "linear", x, w, weights="1")
    finite = np.isfinite(got.astype(np.float32)).all(1)
    assert np.flatnonzero(~finite).tolist() == [3, 200, 259]


# ── where it is chosen ──


def product(
    m: int, n: int, k: int, act: str = "none", dtype: str = "bfloat16"
) -> tuple[Any, Product, Any, DType]:
    x, w = (np.broadcast_to(np.zeros((), getattr(ml_dtypes, dtype, dtype)), s) for s in ((m, k), (n, k)))
    graph, _, known = one_node("fused_linear", (x, w), "1", act=act)
    call = call_of(graph, known)
    p, own = product_of(call).flat(), call.outputs[0].dtype
    return call, p, matrices_of(p, own), own


@pytest.mark.parametrize(
    ("size", "epilogue", "columns"),
    [((4096, 4096, 4096), "none", 256), ((1024, 1536, 8960), "none", 96), ((512, 8960, 1536), "gated", 192), ((1024, 4096, 1024), "act", 128),
     ((256, 3072, 768), "act", 64)],
)  # fmt: skip
def test_tiles_of_measured_products(size: tuple[int, int, int], epilogue: str, columns: int) -> None:
    tile = hopper_tile(*size, H200, epilogue)
    assert tile is not None
    assert tile.columns == columns


def test_fewer_sms_have_larger_tiles() -> None:
    assert hopper_tile(1024, 1536, 8960, sized(num_sms=16)) == HopperTile(256, 4)


@pytest.mark.parametrize(
    ("target", "why"), [("cuda:sm_80", "no wgmma"), ("cuda:sm_100", "no wgmma"), ("cuda:sm_120", "no wgmma")]
)
def test_other_architectures_have_other_tiles(target: str, why: str) -> None:
    call, *_ = product(4096, 4096, 4096)
    (stage,) = Generated().lower(call, cuda_target(target)).stages
    assert "tensor_maps" not in stage.options, why
    assert hopper_tile(4096, 4096, 4096, cuda_target(target)) is None


def test_smaller_targets_have_no_tile() -> None:
    assert hopper_tile(4096, 4096, 4096, sized(max_cluster_size=1)) is None
    assert hopper_tile(4096, 4096, 4096, sized(smem_per_block=48 * 1024)) is None


@pytest.mark.parametrize(
    ("size", "chosen"), [((4096, 4096, 4096), True), ((1024, 768, 3072), True), ((300, 4096, 4096), False), ((64, 8192, 8192), False),
                         ((1024, 1024, 100), False), ((4096, 4096, 4100), False)],
)  # fmt: skip
def test_products_that_generated_gives_to_it(size: tuple[int, int, int], chosen: bool) -> None:
    call, *_ = product(*size)
    (stage,) = Generated().lower(call, H200).stages
    assert ("tensor_maps" in stage.options) == chosen


@pytest.mark.parametrize(
    ("size", "act", "target", "chosen"),
    [((1024, 3072, 768), "gelu", "cuda:h200", True), ((200, 3072, 768), "silu", "cuda:sm_90", True), ((25088, 384, 96), "gelu", "cuda:h200", True),
     ((1024, 3072, 768), "relu", "cuda:h200", False), ((1024, 3072, 768), "none", "cuda:h200", False), ((128, 3072, 768), "gelu", "cuda:h200", False),
     ((300, 3072, 768), "gelu", "cuda:h200", False), ((256, 256, 256), "gelu", "cuda:h200", False), ((196, 3072, 768), "gelu", "cuda:h200", False),
     ((65536, 256, 128), "silu", "cuda:sm_90", True), ((262144, 320, 32), "silu", "cuda:h200", True), ((1048576, 8, 256), "silu", "cuda:h200", False), ((1024, 3072, 768), "gelu", "cuda:sm_80", False)],
)  # fmt: skip
def test_activations_that_cublaslt_lacks(
    size: tuple[int, int, int], act: str, target: str, chosen: bool
) -> None:
    call, *_ = product(*size, act=act)
    assert Generated().leads(call, cuda_target(target)) == chosen
    assert not Generated(by_hopper=False).leads(call, cuda_target(target)) or size[2] <= 192
    if chosen:
        (stage,) = Generated().lower(call, cuda_target(target)).stages
        assert ("tensor_maps" in stage.options) == (min(size) >= 64)


def test_a_residual_before_the_activation_stays_with_cublaslt() -> None:
    x, w, residual = random(1024, 768), random(3072, 768), random(1024, 3072)
    graph, _, known = one_node("fused_linear", (x, w, None, residual), "1", act="gelu")
    assert not Generated().leads(call_of(graph, known), H200)


def gated(m: int, dtype: str = "bfloat16", n: int = 96, k: int = 64) -> Graph:
    """A layer whose first half gates its second, as models have it."""
    b = GraphBuilder("gated")
    x, w = b.input("x", f"{dtype}[{m},{k}]"), b.weight("w", f"{dtype}[{2 * n},{k}]")
    gate, up = b.split(b.linear(x, w), sizes=[n, n], dim=1)
    b.output("y", b.silu_mul(gate, up))
    return b.build()


def kernels_of(graph: Graph, target: Any = "cuda:h200", **options: Any) -> list[str]:
    program = xrt.compile(graph, target=target, **options)
    return [c.symbol.rpartition("_")[0].partition("_")[0] for c in program.entries[0].plans[0].calls]


@pytest.mark.parametrize(
    ("graph", "target", "calls"),
    [(gated(256), "cuda:h200", ["gated"]), (gated(512, "float16"), "cuda:sm_90", ["gated"]), (gated(512, "float32"), "cuda:h200", ["matmul", "silu"]),
     (gated(300), "cuda:h200", ["matmul", "silu"]), (gated(128), "cuda:h200", ["matmul", "silu"]), (gated(256), "cuda:sm_80", ["matmul", "silu"]),
     (gated(256, k=60), "cuda:h200", ["matmul", "silu"])],
)  # fmt: skip
def test_layers_that_are_gated_in_one_launch(graph: Graph, target: str, calls: list[str]) -> None:
    assert kernels_of(graph, target) == calls


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_precision_that_casts_the_halves_keeps_the_launch(dtype: str) -> None:
    """Only where both halves come from the narrow product, and the result is narrowed to its dtype."""
    graph = gated(256, "float32")
    policy = xrt.Policy(execution=xrt.ExecutionPolicy(precision=dtype))
    calls = kernels_of(graph, policy=policy)
    assert "gated" in calls
    assert "matmul" not in calls
    feeds = {"x": random(256, 64, dtype=np.float32), "w": random(192, 64, dtype=np.float32, scale=0.1)}
    got = run_native(graph, {"x": feeds["x"]}, weights={"w": feeds["w"]}, target=cuda_host(), policy=policy)[
        "y"
    ]
    narrow = {n: v.astype(DType.of(dtype).numpy).astype(np.float64) for n, v in feeds.items()}
    gate, up = np.split(narrow["x"] @ narrow["w"].T, 2, axis=1)
    want = gate / (1 + np.exp(-gate)) * up
    assert np.abs(got - want).max() <= 2.0**-8 * np.abs(want).max()


def test_a_policy_that_names_another_kernel_keeps_the_product() -> None:
    assert kernels_of(gated(256), policy=xrt.KernelPolicy(matmul="generated")) == ["gated"]
    assert kernels_of(gated(256), policy=xrt.KernelPolicy(matmul="cublasLt"))[-1] == "silu"


@pytest.mark.parametrize(
    "policy",
    [*(xrt.KernelPolicy(weights=w) for w in ("int8", "fp8", "int4")), xrt.KernelPolicy(matmul="int8_weights"),
     xrt.KernelPolicy(rules=[{"op": "matmul", "weights": "int8"}])],
)  # fmt: skip
def test_a_policy_of_narrower_weights_keeps_them(policy: Any) -> None:
    calls = kernels_of(gated(256), policy=policy)
    assert "gated" not in calls
    assert calls[-1] == "silu"


def test_batch_invariance_has_one_order_of_sums() -> None:
    """For few and for many rows."""
    policy = xrt.KernelPolicy(batch_invariant=True)
    assert kernels_of(gated(256), policy=policy) == ["matmul", "silu"]
    call, *_ = product(4096, 4096, 4096)
    (stage,) = Generated().batch_invariant_form().lower(call, H200).stages
    assert "tensor_maps" not in stage.options


def test_casts_that_narrow_the_halves_stay() -> None:
    b = GraphBuilder("narrowed")
    x, w = b.input("x", "bfloat16[256,64]"), b.weight("w", "bfloat16[192,64]")
    gate, up = (b.cast(h, dtype=DType.FLOAT16) for h in b.split(b.linear(x, w), sizes=[96, 96], dim=1))
    b.output("y", b.cast(b.silu_mul(gate, up), dtype=DType.BFLOAT16))
    assert "gated" not in kernels_of(b.build())


def test_more_rows_than_an_int_counts_have_no_tile() -> None:
    assert hopper_tile(2**31 - 200, 8, 8, H200) is None
    assert hopper_tile(256, 2**30, 8, H200, "gated") is None


def test_a_runtime_without_tensor_maps_refuses_the_program() -> None:
    program = xrt.compile(gated(256), target="cuda:h200")
    assert program.binaries[0].requires == ("cuda:sm_90", "cuda:tensor-maps")
    assert xrt.compile(gated(300), target="cuda:h200").binaries[0].requires == ("cuda:sm_90",)
    assert _core.missing_requirements(["cuda:tensor-maps"]) == ["cuda:tensor-maps"]


def test_a_program_with_tensor_maps_runs_on_the_emulator() -> None:
    graph = gated(256, n=40)
    assert kernels_of(graph, cuda_host()) == ["gated"]
    check(graph, {"x": random(256, 64)}, weights={"w": random(80, 64, scale=0.1)}, target=cuda_host())
