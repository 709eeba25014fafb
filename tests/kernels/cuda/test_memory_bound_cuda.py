"""Kernels that memory bounds, on the emulator: every way in which they share out their work, with rests and from odd places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support.native import check, compile_native
from support.speed_graphs import speed_graphs

from xpuruntime import ir
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.program.program import CompiledProgram
from xpuruntime.runtime import Executor
from xpuruntime.testing.emulation.cuda_host import cuda_host
from xpuruntime.types import DType

TARGET = cuda_host()
rng = np.random.default_rng(7)
Array = np.ndarray[Any, Any]


def values(shape: tuple[int, ...], dtype: str = "float32") -> Array:
    if DType(dtype).is_integer:
        return rng.integers(0 if dtype.startswith("u") else -9, 9, shape).astype(DType(dtype).numpy)
    return rng.standard_normal(shape).astype(DType(dtype).numpy)


def judged(build: Callable[..., Any], *feeds: Array, **options: Any) -> CompiledProgram:
    """Compare with the interpreter; the program that ran."""
    b = ir.GraphBuilder("g")
    names = {f"x{i}": x for i, x in enumerate(feeds)}
    made = build(b, *(b.input(n, f"{DType.of(x.dtype).value}{list(x.shape)}") for n, x in names.items()))
    for i, value in enumerate(made if isinstance(made, tuple) else (made,)):
        b.output(f"y{i}", value)
    graph = b.build()
    check(graph, names, target=TARGET, **options)
    return compile_native(graph, names, target=TARGET)


def text_of(program: CompiledProgram) -> str:
    return str(program.binaries[0].source).partition("// launch")[2]


def kernels_of(program: CompiledProgram) -> list[str]:
    return [c.kernel for c in program.entries[0].plans[0].calls]


# ── columns ──


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(4000, 96), (4111, 70), (5000, 3), (3, 2000, 40), (2048, 33)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_blocks_that_share_columns(shape: tuple[int, ...], dtype: str) -> None:
    """Whole parts and such with a rest, columns that no warp fits, several sums of one pass."""
    dim = len(shape) - 2
    build: Callable[..., Any] = lambda b, x: (b.sum(x, dim=[dim]), b.amax(x, dim=[dim]))  # noqa: E731
    program = judged(build, values(shape, dtype), threads=2)
    assert "is_last_block(counters + group" in text_of(program)


def test_places_in_columns_that_blocks_share() -> None:
    """The first or last of equal values, and NaN, whichever block has it."""
    x = rng.integers(-9, 9, (4000, 40)).astype(np.float32)
    x[3000:, 1] = 9
    x[[700, 3700], 2] = np.nan
    x[:, 3] = -np.inf
    program = judged(
        lambda b, x: (
            b.argmax(x, dim=0),
            b.argmin(x, dim=0),
            b.argmax(x, dim=0, last=True),
            *b.max(x, dim=0),
        ),
        x,
    )
    assert "is_last_block(counters + group" in text_of(program)


def test_columns_of_which_there_are_enough() -> None:
    """Blocks are independent; what is written at every element keeps them alone too."""
    program = judged(lambda b, x: b.sum(x, dim=[0]), values((300, 6000)))
    assert kernels_of(program) == ["reduce/generated"]
    assert "column_reduce<32, 32>" in text_of(program)
    program = judged(lambda b, x: b.sum(x, dim=[0]), values((300, 6000), "bfloat16"))
    assert kernels_of(program) == ["reduce/generated"]
    assert "column_reduce_n<32, 16>" in text_of(program)
    program = judged(lambda b, x: b.softmax(x, dim=0), values((3000, 40)))
    assert "is_last_block" not in text_of(program)


def test_columns_of_a_thread() -> None:
    """Two of 16 bits: formulas with operands of a row, of a column line and of one value; from an odd place."""

    def build(b: Any, x: Any, y: Any, z: Any) -> Any:
        return b.mean(b.mul(b.mul(x, y), z), dim=[0]), b.amax(x, dim=[0])

    shapes = (700, 134), (700, 1), (1,)
    program = judged(build, *(values(s, "float16") for s in shapes))
    assert "column_reduce_n" in text_of(program)
    flat = values((1 + 700 * 64,), "bfloat16")
    judged(
        lambda b, x: b.sum(b.view(b.slice(x, dim=0, start=1, end=44801, step=1), size=[700, 64]), dim=[0]),
        flat,
    )
    program = judged(lambda b, x: b.sum(x, dim=[1]), values((5, 3000, 34), "bfloat16"))
    assert "column_reduce_n<32" in text_of(program)
    assert "is_last_block" in text_of(program)


def test_equal_columns_give_equal_bits() -> None:
    x = values((4000, 1)).repeat(70, 1)
    program = judged(lambda b, x: b.sum(x, dim=[0]), x)
    with Executor(program) as executor:
        first, again = (executor.run_arrays([x])[0] for _ in range(2))
    assert len(set(first.tolist())) == 1
    assert np.array_equal(first, again)


# ── rows of a table ──


@pytest.mark.parametrize("width", [128, 64, 32, 24, 16, 10, 8])
def test_short_rows_of_a_table_go_by_packs(width: int) -> None:
    """Four, two or one pack a thread, by what a row is a multiple of; a thread may have a whole row."""
    rows = 4 * 8 * (1 << 15) // width
    index = rng.integers(-50, 50, rows)
    program = judged(lambda b, t, i: b.embedding(t, i), values((50, width), "bfloat16"), index)
    apart = {128: "copy_packs<8, 4>", 64: "copy_packs<8, 4>", 32: "copy_packs<8, 4>", 16: "copy_packs<8, 2>"}
    assert apart.get(width, "copy_pack<8>") in text_of(program)


@pytest.mark.parametrize(
    ("dtype", "width", "block"),
    [("bfloat16", 256, 256), ("bfloat16", 1536, 192), ("float32", 768, 192), ("uint8", 1536, 192), ("bfloat16", 2560, 160), ("float32", 9000, 256), ("float32", 8996, 256)],
)  # fmt: skip
def test_long_rows_of_a_table_have_blocks(dtype: str, width: int, block: int) -> None:
    """One or several rows a block, or an equal part of one; where no part is equal, blocks span rows."""
    index = rng.integers(-50, 50, (3, 7))
    program = judged(lambda b, t, i: b.embedding(t, i), values((50, width), dtype), index)
    assert f", block {block} 1 1," in text_of(program)
    assert "copy_pack<" in text_of(program)


def test_long_rows_along_any_dim() -> None:
    """Selected, gathered by several lookups, of a part of a row; next to another move there are no blocks of their own."""
    x = values((6, 20, 512))
    index = rng.integers(-20, 20, 13)
    program = judged(lambda b, x, i: b.index_select(x, i, dim=1), x, index)
    assert ", block 256 1 1," in text_of(program)
    program = judged(
        lambda b, x, i: b.gather_nd(x, i), x, np.stack([rng.integers(0, n, 9) for n in (6, 20)], -1)
    )
    assert ", block 256 1 1," in text_of(program)
    judged(
        lambda b, x, i: b.embedding(b.slice(x, dim=1, start=3, end=387, step=1), i), values((20, 515)), index
    )


def test_rows_of_a_table_that_begins_anywhere() -> None:
    """A view that no pack fits."""
    flat, index = values((1 + 50 * 64,)), rng.integers(0, 50, 16384)
    program = judged(
        lambda b, t, i: b.embedding(b.view(b.slice(t, dim=0, start=1, end=3201, step=1), size=[50, 64]), i),
        flat,
        index,
    )
    assert "copy_packs" in text_of(program)


def test_pointwise_work_from_odd_places() -> None:
    """Packs that no address fits, in place too."""

    def build(b: Any, x: Any) -> Any:
        part = b.slice(x, dim=0, start=1, end=1 + (1 << 20), step=1)
        return b.gelu(b.add(part, part))

    program = judged(build, values((2 + (1 << 20),), "bfloat16"))
    assert "unroll 1" in text_of(program)


# ── pools ──

WINDOWS: dict[str, dict[str, Any]] = {
    "3x3": {"kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1], "dilation": [1, 1]},
    "2x2": {"kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0], "dilation": [1, 1]},
    "dilated": {"kernel_size": [3, 2], "stride": [1, 2], "padding": [2, 1], "dilation": [2, 3]},
    "uneven": {"kernel_size": [4, 3], "stride": [3, 2], "padding": [1, 0, 2, 2], "dilation": [1, 1]},
    "cropped": {"kernel_size": [3, 3], "stride": [1, 1], "padding": [-1, 1, 1, -2], "dilation": [1, 1]},
    "ceiling": {"kernel_size": [3, 3], "stride": [2, 2], "padding": [0, 1], "dilation": [1, 1], "ceil_mode": True},
    "large": {"kernel_size": [9, 9], "stride": [4, 4], "padding": [4, 4], "dilation": [1, 1]},
}  # fmt: skip


KINDS = {"float32": "float", "bfloat16": "bf16", "float16": "f16"}


def last(build: Callable[..., Any]) -> Callable[..., Any]:
    """The same with channels-last images."""
    return lambda b, x: b.permute(build(b, b.permute(x, dims=[0, 3, 1, 2])), dims=[0, 2, 3, 1])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, d) for n in WINDOWS for d in ("float32", "bfloat16")]
    + [("uneven", d) for d in ("float16", "float64", "int8")],
)
def test_windows(name: str, dtype: str) -> None:
    """Maxima and means, what counts in them, in both layouts."""
    window, numbers = WINDOWS[name], DType(dtype).is_integer

    def build(b: Any, x: Any) -> Any:
        made = [
            b.max_pool(x, **window),
            b.avg_pool(x, **window),
            b.avg_pool(x, **window, count_include_pad=False),
        ]
        if not numbers:
            made += [
                b.avg_pool(x, **window, divisor=5),
                b.lp_pool(x, **window, p=2.0),
                b.lp_pool(x, **window, p=3.0),
            ]
        return tuple(made)

    program = judged(build, values((2, 5, 17, 14), dtype))
    assert "pool::window<" in text_of(program)
    for op in ("max_pool", "avg_pool"):
        one = lambda b, x, op=op: getattr(b, op)(x, **window)  # noqa: E731
        program = judged(last(one), values((2, 17, 14, 8), dtype))
        assert "along = 8;" in text_of(program)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_windows_below_each_other(dtype: str) -> None:
    """Lines in groups of four and two, with a rest; rows of the input that no window has."""
    x = values((2, 32, 67, 65), dtype)
    for name, lines in (("3x3", 4), ("2x2", 2)):
        sliding = WINDOWS[name] | {"stride": [1, 1] if name == "3x3" else [2, 1]}
        program = judged(
            lambda b, x, s=sliding: (b.max_pool(x, **s), b.avg_pool(x, **s, count_include_pad=False)), x
        )
        assert f", 1, {lines}, " in text_of(program)
    apart = WINDOWS["2x2"] | {"stride": [3, 1], "padding": [1, 0]}
    program = judged(lambda b, x: b.max_pool(x, **apart), values((2, 32, 131, 65), dtype))
    assert ", 1, 2, " in text_of(program)


def test_windows_over_packs_of_channels() -> None:
    """Enough of them that packs are taken: of 4 and of 8, NaN and infinity among them."""
    for dtype, pack in (("float32", 4), ("bfloat16", 8), ("float16", 8)):
        x = values((4, 96, 96, 32), dtype)
        x[0, 5, 6, 7], x[1, 7, 8, 9], x[2, :8, :8, 3] = np.nan, np.inf, -np.inf
        program = judged(last(lambda b, x: b.max_pool(x, **WINDOWS["3x3"] | {"stride": [1, 1]})), x)
        assert f"pool::window<pool::Max, {KINDS[dtype]}, {pack}, " in text_of(program)
        program = judged(last(lambda b, x: b.avg_pool(x, **WINDOWS["2x2"] | {"stride": [1, 1]})), x)
        assert f"pool::window<pool::FloatMean, {KINDS[dtype]}, {pack}, " in text_of(program)


def test_windows_of_a_line_and_equal_parts() -> None:
    one: dict[str, Any] = {"kernel_size": [3], "stride": [2], "padding": [1], "dilation": [1]}
    judged(lambda b, x: (b.max_pool(x, **one), b.avg_pool(x, **one)), values((2, 5, 31)))
    program = judged(
        lambda b, x: (b.adaptive_avg_pool(x, output_size=[2, 3]), b.adaptive_avg_pool(x, output_size=[1, 1])),
        values((2, 5, 8, 9)),
    )
    assert "pool::window<" in text_of(program)
    assert "pool::point<" not in text_of(program)
    program = judged(lambda b, x: b.adaptive_avg_pool(x, output_size=[3, 2]), values((2, 5, 8, 9)))
    assert "pool::point<" in text_of(program)


def test_pools_take_values_as_they_lie() -> None:
    """Alone they turn nothing; after a convolution they have its layout."""
    window = WINDOWS["3x3"]
    assert kernels_of(judged(lambda b, x: b.max_pool(x, **window), values((2, 8, 9, 9)))) == [
        "pool/generated"
    ]
    weight = values((8, 4, 1, 1))

    def build(b: Any, x: Any, w: Any) -> Any:
        c = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
        h = b.max_pool(b.convolution(x, w, None, **c), **window)
        return b.convolution(h, b.permute(w, dims=[1, 0, 2, 3]), None, **c)

    program = judged(build, values((2, 4, 9, 9)), weight)
    turned, conv = "movement/strided", "conv/implicit_gemm"
    assert kernels_of(program) == [turned, conv, "pool/generated", conv, turned]


# ── what is measured on a device ──


def test_the_graphs_that_are_measured_compile(part: Callable[[Sequence[str], int], list[str]]) -> None:
    """Every one is one kernel of ours, but for a counter to zero and a copy into the result."""
    graphs = list(speed_graphs())
    names = [name for name, _ in graphs]
    assert len(names) == len(set(names))
    drawn = part(names, len(names) // 4)
    assert drawn
    for name, graph in graphs:
        if name not in drawn:
            continue
        calls = compile_graph(graph, target=TARGET).entries[0].plans[0].calls
        beside = {"create/fill", "movement/strided"}
        assert len([c for c in calls if c.kernel not in beside]) <= 1, (name, [c.kernel for c in calls])
        assert len(calls) <= 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        (33_001, "bfloat16"),
        (40_008, "bfloat16"),
        (17_000, "float32"),
        (50_304, "float32"),
        (60_000, "float32"),
    ],
)
def test_long_rows_of_several_passes_stay_in_shared_memory(size: int, dtype: str) -> None:
    """Odd sizes, rows of which two or one fit an SM's memory, and rows that no block holds, next to the interpreter."""
    rng = np.random.default_rng(size)
    feeds = {"x": (3 * rng.standard_normal((133, size))).astype(DType(dtype).numpy)}
    feeds["x"][7, size - 1], feeds["x"][8, 3] = np.nan, np.inf
    b = ir.GraphBuilder("g")
    b.output("y", b.softmax(b.input("x", f"{dtype}[133, {size}]"), dim=1))
    graph = b.build()
    outputs = check(graph, feeds, target=TARGET)
    assert np.isnan(outputs["y"][[7, 8]].astype(np.float32)).any(1).all()
    program = compile_native(graph, feeds, target=TARGET)
    shared = [c.options["shared"] for c in program.entries[0].plans[0].calls]
    held = size * DType(dtype).bits // 8
    assert shared == [0] if held > TARGET.config.smem_per_block else held <= shared[0] < held * 1.3


@pytest.mark.parametrize(
    ("rows", "size", "dtype"), [(133, 17_000, "bfloat16"), (2, 150_016, "float16"), (133, 9_001, "bfloat16")]
)
def test_softmax_of_long_rows_in_one_pass_for_maximum_and_sum(rows: int, size: int, dtype: str) -> None:
    """Rows in shared memory, rows that no block holds, and odd ones; with operations before the softmax, NaN, infinities and whole rows of -inf."""

    def build(b: Any, x: Any, y: Any) -> Any:
        z = b.add(x, y)
        return b.softmax(z, dim=1), b.log_softmax(x, dim=1)

    x, y = 9 * values((rows, size), "float32"), values((size,), dtype)
    x[0, :4000], x[0, 5000], x[1] = -np.inf, 60, -40 + x[1] / 9
    if rows > 9:
        x[5, 7], x[6, size - 1], x[7], x[8, 9:] = np.nan, np.inf, -np.inf, -np.inf
    with np.errstate(all="ignore"):
        program = judged(build, x.astype(y.dtype), y)
    assert (
        sum(
            "softmax_join<" in line
            for binary in program.binaries
            for line in binary.source.partition("// launch")[2].splitlines()
        )
        == 2
    )


def test_exponentials_of_float32_stay_exact() -> None:
    """Rows whose elements have 32 bits keep both passes, and so do rows that registers hold."""
    for shape, dtype in (((133, 20_000), "float32"), ((300, 1024), "bfloat16")):
        program = judged(lambda b, x: b.softmax(x, dim=1), values(shape, dtype))
        assert "softmax_join<" not in text_of(program)
    program = judged(
        lambda b, x: b.softmax(b.cast(x, dtype="float32"), dim=1),
        values((133, 20_000), "bfloat16"),
    )
    assert "softmax_join<" not in text_of(program)
