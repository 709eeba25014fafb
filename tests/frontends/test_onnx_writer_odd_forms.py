"""Ops that ONNX has in another form only, or that ONNX Runtime computes in a wrong way: ONNX Runtime's result is the interpreter's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from xpuruntime import ir  # noqa: E402
from xpuruntime.frontends.onnx import import_onnx  # noqa: E402
from xpuruntime.frontends.onnx_writer import to_onnx  # noqa: E402
from xpuruntime.ir import interp  # noqa: E402
from xpuruntime.types import dim  # noqa: E402

R = np.random.default_rng(4)
ODD = np.array([0.0, -0.0, 1, -1, math.inf, -math.inf, math.nan, 3], np.float32)
LESS = -math.inf


def values(*shape: int) -> Any:
    return R.standard_normal(shape, np.float32)


def on_both(op: str, *operands: Any, outputs: int = 1, **attrs: Any) -> list[Any]:
    """Compare ONNX Runtime with the interpreter, and return ONNX Runtime's results."""
    b = ir.GraphBuilder("g")
    names = [b.input(f"x{i}", f"{v.dtype}{[*v.shape]}") for i, v in enumerate(operands)]
    results = b.call(op, *names, outputs=outputs, **attrs)
    for i, name in enumerate([results] if isinstance(results, str) else results):
        b.output(f"y{i}", name)
    graph, feeds = b.build(), {f"x{i}": v for i, v in enumerate(operands)}
    proto = to_onnx(graph).SerializeToString()
    session = ort.InferenceSession(proto, providers=["CPUExecutionProvider"])
    results = session.run(None, feeds)
    for got, want in zip(results, interp.run(graph, feeds).values(), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
    return list(results)


def test_atan2_of_signed_zeros_infinities_and_nan() -> None:
    y, x = (a.ravel().copy() for a in np.meshgrid(ODD, ODD))
    (angle,) = on_both("atan2", y, x)
    numbers = ~np.isnan(angle)
    assert np.array_equal(np.signbit(angle[numbers]), np.signbit(np.arctan2(y, x)[numbers]))
    on_both("atan2", values(3, 4), values(4))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_short_integers(dtype: str) -> None:
    """ONNX has products, powers and reductions of longer integers only; an overflow keeps the lowest bits."""
    x = R.integers(0, 100, (3, 4)).astype(dtype)
    for op in ("amax", "amin"):
        on_both(op, x, dim=[0])
        on_both(op, x, dim=[], keepdim=True)
    on_both("matmul", x, x.T.copy())
    on_both("mm", x, x.T.copy())
    on_both("bmm", x[None], x.T.copy()[None])
    on_both("pow", x, np.array([2, 0, 1, 3], dtype))
    if dtype != "int16":  # ONNX Runtime has no kernel
        on_both("relu", x - np.array(50, dtype))
    if dtype.endswith("8"):  # nor one for places of extremes of 16-bit integers
        on_both("max", x, outputs=2, dim=1)


@pytest.mark.parametrize("direction", ["left", "right"])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_shifts_of_signed_integers(direction: str, dtype: str) -> None:
    bits = np.iinfo(dtype).bits
    x = np.array([-5, 7, 1, -1, np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    on_both(f"bitwise_{direction}_shift", x, np.array([1, 3, bits - 2, bits - 1, 1, 2], dtype))


def test_logsumexp_of_infinities() -> None:
    """ReduceLogSumExp of ONNX Runtime gives -inf for a row whose first element is -inf."""
    rows = [[LESS, -386, LESS], [LESS, LESS, LESS], [math.inf, 1, 2], [math.nan, 1, LESS], [1, 2, 3]]
    (y,) = on_both("logsumexp", np.array(rows, np.float32), dim=[1])
    assert y[0] == -386
    on_both("logsumexp", values(3, 4, 5), dim=[0, 2], keepdim=True)
    on_both("logsumexp", values(), dim=[])


def test_norm_of_order_0() -> None:
    on_both("vector_norm", np.array([[0, 1, math.nan], [0, 0, 2]], np.float32), ord=0.0, dim=[1])


@pytest.mark.parametrize(("op", "attrs"), [("sort", {"dim": 0}), ("topk", {"k": 1, "dim": 0})])
def test_order_of_a_scalar(op: str, attrs: dict[str, Any]) -> None:
    on_both(op, values(), outputs=2, **attrs)


def test_pixel_unshuffle() -> None:
    on_both("space_to_depth", values(2, 3, 6, 4), block_size=2)


def test_indices_of_maxima_within_a_plane() -> None:
    window = {"kernel_size": [3, 2], "stride": [2, 2], "padding": [1, 0], "dilation": [1, 1]}
    on_both("max_pool", values(2, 3, 7, 8), outputs=2, **window)
    window = {k: [v[1]] * 3 for k, v in window.items()}
    on_both("max_pool", values(2, 3, 6, 7, 5), outputs=2, **window)
    index = np.array([[0, 3], [9, 14]])[None, None].repeat(2, 0).repeat(3, 1)
    on_both("max_unpool", values(2, 3, 2, 2), index, output_size=[4, 5])


def test_unpooled_maxima_are_read_back_as_they_were() -> None:
    b = ir.GraphBuilder("g")
    b.input("x", "float32[2, 3, 2, 2]"), b.input("i", "int64[2, 3, 2, 2]")
    b.output("y", b.max_unpool("x", "i", output_size=[4, 5]))
    graph = b.build()
    again, weights = import_onnx(to_onnx(graph).SerializeToString())
    feeds = {
        "x": values(2, 3, 2, 2),
        "i": R.permuted(np.arange(4), axis=0).reshape(2, 2) * np.ones((2, 3, 1, 1), np.int64),
    }
    want = interp.run(graph, feeds)["y"]
    np.testing.assert_array_equal(interp.run(again, feeds, weights=weights)["y"], want)


@pytest.mark.parametrize("op", ["adaptive_avg_pool", "adaptive_max_pool"])
@pytest.mark.parametrize("size", [[4, 5], [7, 3], [2, 4], [9, 8]])
def test_adaptive_pools_with_windows_of_unequal_size(op: str, size: list[int]) -> None:
    x = values(2, 3, 7, 8)
    x[0, 1, 2, 3] = math.inf
    on_both(op, x, output_size=size)
    on_both(op, values(2, 3, 7), output_size=size[:1])


def test_remainders_of_large_integers() -> None:
    """ONNX Runtime computes Mod with fmod=1 in float64."""
    x = np.array([2**62 + 12345, -(2**62) - 12345, 7, -7])
    on_both("fmod", x, np.array([1000003, 1000003, 2, 2]))


def test_unsigned_integers_are_negated() -> None:
    on_both("neg", np.array([0, 1, 255], np.uint8))


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "cumsum"])
def test_ops_of_a_scalar(op: str) -> None:
    on_both(op, values(), dim=0)


@pytest.mark.parametrize(
    "op", ["sum", "mean", "amax", "prod", "var", "logsumexp", "vector_norm", "any", "all"]
)
def test_reductions_of_a_scalar_over_its_last_dim(op: str) -> None:
    x = np.array(True) if op in ("any", "all") else values()
    on_both(op, x, dim=[0], keepdim=True, **({"correction": 0} if op == "var" else {}))


def test_elements_of_a_scalar() -> None:
    on_both("argmax", values(), dim=0)
    on_both("min", values(), dim=0, outputs=2)
    on_both("gather", values(), np.array(0), dim=0)
    on_both("gather", values(1), np.array(0), dim=0)
    on_both("index_select", values(), np.array([0]), dim=0)


@pytest.mark.parametrize("op", ["any", "all"])
def test_truth_of_no_elements(op: str) -> None:
    on_both(op, np.zeros((3, 0), bool), dim=[1])
    on_both(op, np.array([[True, False], [True, True], [False, False]]), dim=[1])


def test_decimals_in_16_bits() -> None:
    on_both("round", values(200).astype(np.float16), decimals=1)


def test_average_with_a_divisor_of_its_own() -> None:
    window = {"kernel_size": [3, 2], "stride": [2, 1], "padding": [1, 0], "dilation": [1, 1], "divisor": 5}
    on_both("avg_pool", values(2, 3, 6, 7), **window)


def test_results_without_elements() -> None:
    """ONNX Runtime expands a dim of 1 to 0 as 1."""
    on_both("expand", np.zeros((2, 3, 1), np.int64), size=[2, 3, 0])
    on_both("sum", np.zeros((2, 0), np.float32), dim=[0])


@pytest.mark.parametrize("zero", [np.int32, np.float32])
def test_fake_quantize(zero: type) -> None:
    x = values(3, 4, 5) * 10
    x[0, 0, :4] = 0.5, 1.5, math.nan, 1e9
    limits = {"quant_min": -8, "quant_max": 100}
    on_both(
        "fake_quantize", x, np.float32([0.5, 1, 0.25, 2]), np.array([1, 0, 3, -5], zero), axis=1, **limits
    )
    on_both("fake_quantize", x, np.array(0.5, np.float32), np.array(1, zero), **limits)


@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (0, 0), (1, 2), (3, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_mean_and_variance_of_few_rows(shape: tuple[int, int], dtype: str) -> None:
    """ReduceMean of ONNX Runtime 1.31 gives 0 for no row."""
    x = values(*shape).astype(dtype)
    for axes in ([0], [0, 1]):
        (y,) = on_both("mean", x, dim=axes)
        assert np.isnan(y).any() == (y.size > 0 and 0 in [shape[d] for d in axes])
        for correction in (0.0, 1.0, 2.0):
            if dtype != "float16":
                on_both("var", x, dim=axes, correction=correction, keepdim=True)


@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (1, 3), (4, 3), (2, 0)])
def test_mean_and_variance_of_symbolic_sizes(rows: int, columns: int) -> None:
    b = ir.GraphBuilder("g")
    x = b.input("x", "float32[rows, columns]")
    for i, axes in enumerate(([0], [1], [0, 1])):
        b.output(f"mean{i}", b.mean(x, dim=axes))
        b.output(f"var{i}", b.var(x, dim=axes, correction=1.0, keepdim=True))
    graph, feeds = b.build(), {"x": values(rows, columns)}
    session = ort.InferenceSession(to_onnx(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    for got, want in zip(session.run(None, feeds), interp.run(graph, feeds).values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


def test_mean_of_more_halves_than_the_type_can_count() -> None:
    b = ir.GraphBuilder("g")
    b.output("y", b.mean(b.input("x", "float16[rows]"), dim=[0]))
    session = ort.InferenceSession(to_onnx(b.build()).SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.full(70_000, 0.5, np.float16)})
    assert y == 0.5


@pytest.mark.parametrize("batch", [(2, 3), (3,)])
@pytest.mark.parametrize("sizes", [((7,), (4,)), ((5, 7), (2, 3)), ((6, 6), (2, 3)), ((4, 3, 5), (3, 1, 2))])
def test_places_of_adaptive_maxima(
    batch: tuple[int, ...], sizes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    space, out = sizes
    x = values(*batch, *space)
    on_both("adaptive_max_pool", x, outputs=2, output_size=list(out))
    x[x < -0.7], x[x > 0.7] = LESS, math.nan
    on_both("adaptive_max_pool", x, outputs=2, output_size=list(out))
    on_both("adaptive_max_pool", np.full_like(x, LESS), outputs=2, output_size=list(out))


@pytest.mark.parametrize("op", ["max_pool", "avg_pool"])
def test_pools_of_one_image(op: str) -> None:
    window = {"kernel_size": [3, 2], "stride": [2, 2], "padding": [1, 0], "dilation": [1, 1]}
    on_both(op, values(3, 7, 6), outputs=2 if op == "max_pool" else 1, **window)
    on_both("adaptive_avg_pool", values(3, 7, 6), output_size=[2, 4])


@pytest.mark.parametrize("repeats", [[2, 0, 3], [0, 0], [], [1]])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_indices_of_repeats(repeats: list[int], dtype: str) -> None:
    b = ir.GraphBuilder("g")
    b.output("y", b.repeat_interleave(b.input("x", f"{dtype}[{len(repeats)}]"), count=dim("n")))
    graph, feeds = b.build(), {"x": np.array(repeats, dtype)}
    session = ort.InferenceSession(to_onnx(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    (got,), want = session.run(None, feeds), interp.run(graph, feeds)["y"]
    assert (got.dtype, got.tolist()) == (want.dtype, want.tolist())
    if len(repeats) > 1:
        with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match="out of data bounds"):
            session.run(None, {"x": np.array([-1, *repeats[1:]], dtype)})
