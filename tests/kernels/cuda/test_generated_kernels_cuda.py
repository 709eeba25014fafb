"""Generated CUDA kernels, whole programs: compiler, plan and executor are the real ones, the kernels' texts run on a CPU.

``check`` compares with the interpreter. Shapes are odd on purpose: packs that do not fill up, rows that no warp fits, tiles with rests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support.narrow_chains import PAIRS, check_chains
from support.native import check, compile_native

from xpuruntime import ir
from xpuruntime.errors import RunError
from xpuruntime.runtime import Executor
from xpuruntime.testing.emulation.cuda_host import cuda_host
from xpuruntime.types import DType

TARGET = cuda_host()
FLOATS = ("float32", "bfloat16", "float16", "float64")
rng = np.random.default_rng(5)

Shapes = Sequence[tuple[int, ...]]


def values(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    own = DType(dtype).numpy
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if DType(dtype).is_integer:
        return rng.integers(0 if dtype.startswith("u") else -100, 100, shape).astype(own)
    return rng.standard_normal(shape).astype(own)


def judge(
    build: Callable[..., Any], shapes: Shapes, dtypes: str | Sequence[str] = "float32", **options: Any
) -> None:
    """One graph over operands of these shapes, on the emulator and by the interpreter."""
    kinds = [dtypes] * len(shapes) if isinstance(dtypes, str) else dtypes
    b = ir.GraphBuilder("g")
    names = [f"x{i}" for i in range(len(shapes))]
    operands = [
        b.input(n, f"{k}[{', '.join(map(str, s))}]") for n, k, s in zip(names, kinds, shapes, strict=True)
    ]
    made = build(b, *operands)
    for i, value in enumerate(made if isinstance(made, tuple) else (made,)):
        b.output(f"y{i}", value)
    feeds = {n: values(s, k) for n, k, s in zip(names, kinds, shapes, strict=True)}
    check(b.build(), feeds, target=TARGET, **options)


# ── pointwise ──


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_of_floats(dtype: str) -> None:
    def build(b: Any, x: Any, y: Any) -> tuple[Any, ...]:
        one = b.add(b.gelu(x), b.mul(b.sigmoid(y), b.tanh(x)))
        two = b.sub(b.exp(b.neg(b.abs(x))), b.sqrt(b.abs(y)))
        return one, b.silu(two), b.gt(x, y)

    judge(build, [(7, 33), (33,)], dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gelu_of_every_value_of_sixteen_bits(dtype: str) -> None:
    """Within the rounding to 16 bits and a little, of its own size: far below zero, too."""
    b = ir.GraphBuilder("g")
    b.output("y", b.gelu(b.input("x", f"{dtype}[65536]")))
    x = np.arange(65536, dtype=np.uint16).view(DType(dtype).numpy)
    program = compile_native(b.build(), {"x": x}, target=TARGET)
    with Executor(program) as executor, np.errstate(all="ignore"):
        (got,) = executor.run_arrays([x])
        wide = x.astype(np.float64)
        want = wide * np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in wide.tolist()])
        found = got.astype(np.float64)
    assert (np.isnan(found) == np.isnan(want)).all()
    assert (found[wide == np.inf] == np.inf).all()
    least = 1e-36 if dtype == "bfloat16" else 6.2e-5  # below, numbers have fewer bits
    normal = np.isfinite(wide) & (abs(want) > least)
    far = abs(found[normal] - want[normal]) / abs(want[normal])
    assert far.max() <= (2**-8 if dtype == "bfloat16" else 2**-11) + 1e-5
    tiny = np.isfinite(wide) & (abs(want) <= least)
    assert (abs(found[tiny] - want[tiny]) <= (1e-36 if dtype == "bfloat16" else 6.1e-8)).all()


@pytest.mark.parametrize(("wide", "narrow"), PAIRS)
def test_values_of_16_bits_are_rounded_inside_a_chain(wide: str, narrow: str) -> None:
    check_chains(wide, narrow, TARGET)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool"])
def test_whole_numbers(dtype: str) -> None:
    judge(lambda b, x, y: (b.maximum(x, y), b.eq(x, y), b.cast(x, dtype="float32")), [(5, 9), (5, 9)], dtype)


def test_packs_broadcasts_and_strides() -> None:
    """Enough elements that packs of 16 bytes are taken; a row, a column, a scalar next to them."""
    judge(lambda b, x, y, z: b.add(b.mul(x, y), z), [(520, 512), (512,), (520, 1)], passes="none")
    judge(
        lambda b, x, y: b.cast(b.add(x, y), dtype="float32"),
        [(1040, 512), (1040, 512)],
        "bfloat16",
        passes="none",
    )
    judge(lambda b, x: b.add(b.permute(x, dims=[1, 0]), 1.0), [(70, 45)])


def test_nan_infinity_and_nothing() -> None:
    b = ir.GraphBuilder("g")
    x, y = b.input("x", "float32[8]"), b.input("y", "float32[8]")
    b.output("max", b.maximum(x, y))
    b.output("relu", b.relu(x))
    b.output("peak", b.amax(b.view(x, size=[2, 4]), dim=[1]))
    b.output("soft", b.softmax(b.view(y, size=[2, 4]), dim=1))
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3.4e38, -1.0], np.float32)
    check(b.build(), {"x": special, "y": special[::-1].copy()}, target=TARGET)
    judge(lambda b, x: (b.exp(x), b.sum(x, dim=[1]), b.softmax(x, dim=1)), [(3, 0)])


# ── rows ──


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", FLOATS)
def test_norms_and_softmax_along_rows(dtype: str) -> None:
    def build(b: Any, x: Any, w: Any, c: Any) -> tuple[Any, ...]:
        norm = b.layer_norm(x, w, c, normalized_shape=[96], eps=1e-5)
        return norm, b.rms_norm(x, w, normalized_shape=[96]), b.softmax(x, dim=-1)

    judge(build, [(5, 9, 96), (96,), (96,)], dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("length", [1, 3, 31, 32, 257, 1024, 5000])
def test_rows_of_every_length(length: int) -> None:
    judge(lambda b, x: (b.softmax(x, dim=1), b.argmax(x, dim=1), b.var(x, dim=[1])), [(6, length)])


def test_across_rows_and_over_everything() -> None:
    judge(lambda b, x: (b.sum(x, dim=[0]), b.amax(x, dim=[0, 1]), b.mean(x, dim=[2])), [(50, 33, 7)])
    judge(lambda b, x: (b.softmax(x, dim=1), b.argmin(x, dim=1), b.log_softmax(x, dim=0)), [(7, 33, 5)])
    b = ir.GraphBuilder("g")
    b.output("y", b.sum(b.input("x", "float32[37, 1001]"), dim=None))
    # Whole numbers, whose sum is exact: that of random floats may be near 0, where rounding errors are large beside it.
    check(b.build(), {"x": rng.integers(-9, 9, (37, 1001)).astype(np.float32)}, target=TARGET, threads=2)


def test_blocks_that_share_a_long_row() -> None:
    """Few long rows: parts with a rest, several results of one row, places among equal values and behind NaNs."""

    def build(b: Any, x: Any) -> tuple[Any, ...]:
        return b.sum(x, dim=[1]), b.mean(x, dim=[1]), b.amin(x, dim=[1]), b.vector_norm(x, dim=[1])

    judge(build, [(3, 20011)])
    judge(build, [(2, 16384)], "bfloat16")
    judge(lambda b, x: (b.sum(x, dim=None), b.argmin(x, dim=0), b.amax(x, dim=None)), [(20000,)], "int32")
    b = ir.GraphBuilder("g")
    x = b.input("x", "float32[4, 20003]")
    top, at = b.max(x, dim=1)
    for i, value in enumerate(
        (b.argmax(x, dim=1), b.argmin(x, dim=1), b.argmax(x, dim=1, last=True), top, at)
    ):
        b.output(f"y{i}", value)
    graph = b.build()
    equal = rng.integers(-9, 9, (4, 20003)).astype(np.float32)
    equal[1, 15000:] = 9
    equal[2, [7000, 17000]] = np.nan
    equal[3] = np.where(np.arange(20003) == 20002, 10, -np.inf)
    check(graph, {"x": equal}, target=TARGET, threads=2)
    program = compile_native(graph, {"x": equal}, target=TARGET)
    assert [c.kernel for c in program.entries[0].plans[0].calls][:2] == ["create/fill", "reduce/generated"]
    assert all(c.tasks > 4 for c in program.entries[0].plans[0].calls[1:])


@pytest.mark.parametrize("dtype", ["int32", "int64", "bool", "uint8"])
def test_reductions_of_whole_numbers(dtype: str) -> None:
    judge(lambda b, x: (b.sum(x, dim=[1]), b.any(x, dim=[0]), b.amax(x, dim=[1])), [(40, 65)], dtype)


def test_group_and_batch_norm_channels_last() -> None:
    def build(b: Any, x: Any, w: Any, c: Any) -> Any:
        h = b.max_pool(x, kernel_size=[1, 1], stride=[1, 1], padding=[0, 0], dilation=[1, 1])
        return b.group_norm(h, w, c, groups=3, eps=1e-5)

    judge(build, [(2, 12, 5, 7), (12,), (12,)])


def test_fused_bodies_with_reductions() -> None:
    judge(lambda b, x, y: b.softmax(b.add(b.mul(x, 0.125), y), dim=-1), [(6, 40, 50), (40, 50)])


# ── movement ──


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8", "float64"])
def test_moves(dtype: str) -> None:
    def build(b: Any, x: Any) -> tuple[Any, ...]:
        turned = b.permute(x, dims=[0, 2, 1])
        padded = b.pad(x, pads=[0, 1, 2, 0, 3, 0], value=1.0)
        return (
            turned,
            padded,
            b.slice(x, dim=2, start=3, end=40, step=3),
            b.flip(x, dims=[1]),
            b.cat(x, x, dim=1),
        )

    judge(build, [(3, 37, 45)], dtype, passes="none")


def test_large_moves_go_in_packs() -> None:
    judge(lambda b, x, y: b.cat(x, y, dim=1), [(64, 700), (64, 203)], passes="none")
    judge(lambda b, x: b.pad(x, pads=[0, 0, 1, 1, 0, 0, 1, 1], value=0.0), [(2, 16, 56, 56)], passes="none")
    judge(lambda b, x: b.expand(x, size=[300, 400]), [(300, 1)], passes="none")


def test_many_rows_of_one_pack() -> None:
    """The rows of a part are as long as the pack of a thread."""

    def swapped(b: Any, x: Any) -> Any:
        left, right = (b.slice(x, dim=1, start=i, end=i + 4, step=1) for i in (0, 4))
        return b.cat(right, left, dim=1)

    judge(swapped, [(40000, 8)], passes="none")


def test_pools_in_both_layouts() -> None:
    def build(b: Any, x: Any) -> tuple[Any, ...]:
        window = {"kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1], "dilation": [1, 1]}
        return (
            b.max_pool(x, **window),
            b.avg_pool(x, **window),
            b.adaptive_avg_pool(x, output_size=[1, 1]),
        )

    judge(build, [(2, 16, 13, 13)])
    judge(build, [(2, 16, 13, 13)], "float16", passes="none")


# ── places that tensors name ──


def test_gathers_and_embedding() -> None:
    b = ir.GraphBuilder("g")
    table, at = b.input("t", "bfloat16[50, 24]"), b.input("i", "int64[3, 7]")
    b.output("y", b.embedding(table, at))
    b.output("z", b.index_select(table, b.view(at, size=[21]), dim=0))
    feeds = {"t": values((50, 24), "bfloat16"), "i": rng.integers(-50, 50, (3, 7))}
    check(b.build(), feeds, target=TARGET)


@pytest.mark.parametrize("places", [[3, 4, 5], [5, 3, 3], [-1, 0, 2]])
def test_copies_to_places_that_rise_or_meet(places: list[int]) -> None:
    """Where places meet the last value wins, whatever runs at once."""
    b = ir.GraphBuilder("g")
    x, at, y = b.input("x", "float32[2, 9, 6]"), b.input("at", "int64[3]"), b.input("y", "float32[2, 3, 6]")
    b.output("z", b.index_copy(x, at, y, dim=1))
    feeds = {"x": values((2, 9, 6), "float32"), "at": np.array(places), "y": values((2, 3, 6), "float32")}
    check(b.build(), feeds, target=TARGET)


def test_scatters_that_add_up() -> None:
    b = ir.GraphBuilder("g")
    x, at, y = b.input("x", "float32[6, 5]"), b.input("at", "int64[9, 5]"), b.input("y", "float32[9, 5]")
    b.output("z", b.scatter(x, at, y, dim=0, reduce="add"))
    feeds = {"x": values((6, 5), "float32"), "at": rng.integers(0, 6, (9, 5)), "y": values((9, 5), "float32")}
    check(b.build(), feeds, target=TARGET)


@pytest.mark.parametrize(("rows", "repeated"), [(9, True), (300, True), (300, False), (9, False)])
def test_rows_that_add_up_at_positions_that_repeat(rows: int, repeated: bool) -> None:
    """The gradient of an embedding: a block adds all rows of one position, in their order."""
    b = ir.GraphBuilder("g")
    x, at = b.input("x", "float32[400, 5]"), b.input("at", f"int64[{rows}]")
    b.output("z", b.index_put(x, b.input("y", f"float32[{rows}, 5]"), at, accumulate=True))
    places = rng.integers(-3, 4, rows) if repeated else rng.permutation(400)[:rows] - 200
    feeds = {"x": values((400, 5), "float32"), "at": places, "y": values((rows, 5), "float32")}
    check(b.build(), feeds, target=TARGET)


def test_rows_that_add_up_at_positions_in_two_dims() -> None:
    b = ir.GraphBuilder("g")
    x, y = b.input("x", "int64[5, 4, 3]"), b.input("y", "int64[6, 7, 3]")
    at = [b.input("p", "int64[6, 1]"), b.input("q", "int64[7]")]
    b.output("z", b.index_put(x, y, *at, accumulate=True))
    feeds = {"x": rng.integers(0, 9, (5, 4, 3)), "y": rng.integers(0, 9, (6, 7, 3))}
    feeds |= {"p": rng.integers(0, 5, (6, 1)), "q": rng.integers(-4, 4, 7)}
    check(b.build(), feeds, target=TARGET)


def test_an_index_outside_fails_the_run() -> None:
    b = ir.GraphBuilder("g")
    x, at = b.input("x", "float32[3, 4]"), b.input("at", "int64[5]")
    b.output("y", b.index_select(x, at, dim=0))
    rows = values((3, 4), "float32")
    program = compile_native(b.build(), {"x": rows, "at": np.zeros(5, np.int64)}, target=TARGET)
    with Executor(program) as executor:
        with pytest.raises(RunError, match="index 7 is outside a dim of 3"):
            executor.run_arrays([rows, np.array([0, 1, 7, 1, 0])])
        (y,) = executor.run_arrays([rows, np.array([0, 1, 2, 1, 0])])
        assert np.array_equal(y, rows[[0, 1, 2, 1, 0]])


# ── the rest of the op table: a thread per task ──


def test_lines_and_tables() -> None:
    def build(b: Any, x: Any) -> tuple[Any, ...]:
        top, places = b.topk(x, k=4, dim=1)
        packed = [b.cast(x, dtype=dtype) for dtype in ("int4", "uint2", "float4_e2m1fn")]
        return (
            *(top, places, b.cumsum(x, dim=1), b.tril(x), b.resize(x, size=[10, 37], mode="linear")),
            *packed,  # two or four elements in a byte, which one thread writes
            *(b.cast(value, dtype="float32") for value in packed),
        )

    judge(build, [(5, 37)])


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embedding(interleaved: bool) -> None:
    def build(b: Any, x: Any, c: Any, s: Any) -> tuple[Any, ...]:
        return b.rope(x, c, s, interleaved=interleaved), b.rope(x, c, s, interleaved=interleaved, size=12)

    judge(lambda b, x, c, s: b.rope(x, c, s, interleaved=interleaved), [(2, 3, 7, 16), (7, 8), (7, 8)])
    judge(
        lambda b, x, c, s: b.rope(x, c, s, interleaved=interleaved, size=12), [(2, 3, 7, 16), (7, 6), (7, 6)]
    )
