"""Products and convolutions by tiles against the interpreter: in tiles of plain C++ on any machine with AVX512_BF16, in real ones where
the machine has them.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.emulated_amx import EmulatedTiles
from support.native import check, compile_native, run_native
from support.one_kernel import Weight, channels_last, check_kernel

from xpuruntime import _core
from xpuruntime.codegen.cpp.target import CppTarget, cpu_target
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import XpuError
from xpuruntime.ir import Graph, GraphBuilder
from xpuruntime.kernels.cpu.conv.generated import GeneratedConv
from xpuruntime.kernels.cpu.conv.tiling import tiling
from xpuruntime.kernels.spec.conv_shape import ConvShape
from xpuruntime.runtime import Executor
from xpuruntime.types import DType

BF16 = np.dtype(ml_dtypes.bfloat16)
LEVEL = "cpu:x86-64-v4+amx"
LACKS_TILES = _core.missing_requirements(["amx-tile", "amx-bf16"])

pytestmark = pytest.mark.level("x86-64-v4+bf16")
TARGETS = [
    pytest.param(EmulatedTiles(), id="emulated"),
    pytest.param(cpu_target(LEVEL), id="amx", marks=pytest.mark.level("x86-64-v4+amx")),
]
OWN = EmulatedTiles() if LACKS_TILES else cpu_target(LEVEL)
"""The real tiles where they are there."""


def draw(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32).astype(BF16)


def linear(
    m: int, n: int, k: int, weight: bool = True, act: str = "", lead: tuple[int, ...] = ()
) -> tuple[Graph, Any, Any]:
    b = GraphBuilder("product")
    known = b.weight if weight else b.input
    x, w = b.input("x", f"bfloat16{[*lead, m, k]}"), known("w", f"bfloat16[{n}, {k}]")
    bias, arrays = b.weight("b", f"bfloat16[{n}]"), {"w": draw(2, n, k), "b": draw(3, n)}
    if act:
        residual = b.input("r", f"bfloat16{[*lead, m, n]}")
        b.output("y", b.fused_linear(x, w, bias, residual, act=act))
    else:
        b.output("y", b.linear(x, w, bias))
    feeds = {"x": draw(1, *lead, m, k)} | ({"r": draw(4, *lead, m, n)} if act else {})
    if not weight:
        feeds["w"] = arrays.pop("w")
    return b.build(), feeds, arrays


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("weight", [True, False], ids=["weight", "activation"])
@pytest.mark.parametrize(
    "shape",
    [
        (128, 96, 768),
        (330, 40, 4100),
        (5, 7, 3),
        (33, 33, 33),
        (17, 31, 64),
        (197, 100, 70),
        (70, 96, 24),
        (45, 40, 80),
        (40, 64, 1100),
        (600, 10, 40),
        (64, 48, 0),
    ],
    ids=str,
)
def test_products_of_any_shape(target: CppTarget, weight: bool, shape: tuple[int, int, int]) -> None:
    """Rows, columns and depth that are no whole tiles, several blocks of k, and none at all."""
    graph, feeds, weights = linear(*shape, weight)
    check(graph, feeds, weights=weights, target=target, passes="none", split=3)


@settings(max_examples=10, deadline=None)
@given(m=st.integers(1, 70), n=st.integers(1, 70), k=st.integers(1, 140), weight=st.booleans())
def test_products_drawn_at_random(m: int, n: int, k: int, weight: bool) -> None:
    graph, feeds, weights = linear(m, n, k, weight)
    check(graph, feeds, weights=weights, target=OWN, passes="none")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("act", ["none", "relu", "gelu", "silu"])
def test_products_end_in_bias_residual_and_activation(target: CppTarget, act: str) -> None:
    graph, feeds, weights = linear(19, 45, 100, act=act, lead=(2, 3))
    check(graph, feeds, weights=weights, target=target, passes="none")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", ["int4_weights", "int4_weights_128", "int8_weights", "fp8_weights"])
@pytest.mark.parametrize("shape", [(9, 70, 96), (33, 64, 33), (211, 130, 1100)])
def test_weights_of_codes_become_operands_of_tiles(
    target: CppTarget, kernel: str, shape: tuple[int, int, int]
) -> None:
    """Next to the same codes without tiles, which have tests of their own."""
    graph, feeds, weights = linear(*shape, act="silu")
    policy = {"matmul": kernel}
    got, want = (
        run_native(graph, feeds, weights=weights, kernels=policy, target=t)["y"].astype(np.float32)
        for t in (target, "cpu:x86-64-v4+bf16")
    )
    assert np.isfinite(want).all()
    assert abs(got - want).max() <= abs(want).max() / 256
    assert (
        "gemm_block_tiles<" in compile_native(graph, feeds, kernels=policy, target=target).binaries[0].source
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", ["int4_weights_64", "int4_weights_128"])
@pytest.mark.parametrize("k", [544, 1056])
def test_blocks_of_k_begin_with_a_group(target: CppTarget, kernel: str, k: int) -> None:
    """Equal blocks of these lengths are no multiple of a group."""
    graph, feeds, weights = linear(40, 33, k)
    got, want = (
        run_native(graph, feeds, weights=weights, kernels={"matmul": kernel}, target=t)["y"].astype(
            np.float32
        )
        for t in (target, "cpu:x86-64-v4+bf16")
    )
    assert abs(got - want).max() <= abs(want).max() / 256


@pytest.mark.parametrize("target", TARGETS)
def test_a_norm_of_long_rows_before_codes_is_one_task_for_all_rows(target: CppTarget) -> None:
    """Without a norm, 40 rows of this length are two tasks, because they exceed the L2 cache."""
    b, m, n, k = GraphBuilder("layer"), 40, 33, 10304
    x, w = b.input("x", f"bfloat16[{m}, {k}]"), b.weight("w", f"bfloat16[{n}, {k}]")
    b.output("y", b.norm_linear(x, w, None, None, b.weight("s", f"bfloat16[{k}]"), eps=1e-6))
    weights = {"w": draw(2, n, k), "s": draw(3, k)}
    got, want = (
        run_native(
            b.build(), {"x": draw(1, m, k)}, weights=weights, kernels={"matmul": "int4_weights"}, target=t
        )["y"].astype(np.float32)
        for t in (target, "cpu:x86-64-v4+bf16")
    )
    assert abs(got - want).max() <= abs(want).max() / 128


def test_rows_of_few_and_many_share_codes() -> None:
    for kernel in ("int4_weights", "int8_weights"):
        packed = []
        for m in (1, 200):
            graph, feeds, _ = linear(m, 70, 96)
            packed.append(compile_native(graph, feeds, kernels={"matmul": kernel}, target=OWN).recipes[0])
        assert packed[0].steps == packed[1].steps
        assert packed[0].spec == packed[1].spec


@pytest.mark.parametrize("target", TARGETS)
def test_batches_and_sides_that_lie_across(target: CppTarget) -> None:
    b = GraphBuilder("products")
    specs = {"q": (2, 3, 37, 40), "k": (2, 3, 50, 40), "v": (1, 3, 50, 33), "t": (40, 37)}
    q, k, v, t = (b.input(n, f"bfloat16{list(s)}") for n, s in specs.items())
    scores = b.matmul(q, b.permute(k, dims=[0, 1, 3, 2]))
    b.output("scores", scores)
    b.output("y", b.matmul(b.softmax(scores, dim=3), v))
    b.output("across", b.matmul(b.permute(t, dims=[1, 0]), t))
    feeds = {n: draw(i, *s) for i, (n, s) in enumerate(specs.items())}
    check(b.build(), feeds, target=target, passes="none")
    check(b.build(), feeds, target=target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("weight", [True, False], ids=["weight", "activation"])
def test_what_is_no_number_stays_in_its_row_and_column(target: CppTarget, weight: bool) -> None:
    graph, feeds, weights = linear(40, 70, 45, weight)
    feeds["x"][3, 44] = feeds["x"][35, 0] = np.nan
    (weights if weight else feeds)["w"][64, 2] = np.inf
    y = check(graph, feeds, weights=weights, target=target, passes="none")["y"].astype(np.float32)
    assert np.isnan(y[[3, 35]]).all()
    assert not np.isfinite(y[:, 64]).any()
    assert np.isfinite(np.delete(np.delete(y, [3, 35], 0), 64, 1)).all()


@pytest.mark.parametrize("target", TARGETS)
def test_any_split_gives_the_same_bits(target: CppTarget) -> None:
    graph, feeds, weights = linear(150, 100, 1200)
    program = compile_graph(graph, target=target, passes=0)
    results = []
    for threads in (1, 2, 5):
        executor = Executor(program, threads=threads)
        executor.bind(weights)
        results.append(executor.run_arrays(list(feeds.values()))[0].view(np.uint16))
        executor.close()
    assert (results[0] == results[1]).all()
    assert (results[0] == results[2]).all()


def source(graph: Graph) -> str:
    return compile_graph(graph, target=OWN, passes=0).binaries[0].source


def test_few_rows_stream_the_weight_without_tiles() -> None:
    assert "gemm_block_tiles<" not in source(linear(4, 64, 64)[0])
    assert "gemm_block_tiles<" in source(linear(5, 64, 64)[0])


# ── convolutions ──


def conv(
    target: CppTarget, n: int = 1, c: int = 40, o: int = 45, size: tuple[int, ...] = (9, 8), kernel: tuple[int, ...] = (3, 3), *,
    known: bool = True, residual: Any = False, act: str = "none", last: bool = True, groups: int = 1, pad_to: int = 1, split: int = 3,
    transposed: bool = False, bad: Any = None, **attrs: Any,
) -> Any:  # fmt: skip
    """Check one convolution; the result's size is the interpreter's own."""
    d = len(size)
    attrs = {
        "stride": [1] * d,
        "padding": [0] * d,
        "dilation": [1] * d,
        "groups": groups,
        "transposed": transposed,
    } | attrs
    shape = (c, o // groups, *kernel) if transposed else (o, c // groups, *kernel)
    x, w = draw(1, n, c, *size), draw(2, *shape)
    if bad is not None:
        x[0, 3, 0, 5] = x[0, c - 1, 4, 0] = bad
    b = GraphBuilder("shape")
    names = [b.input(name, f"bfloat16{list(a.shape)}") for name, a in (("x", x), ("w", w))]
    b.call("convolution", *names, None, **attrs)
    out = tuple(int(v) for v in b.spec(b.nodes[0].outputs[0].name).shape)  # type: ignore[arg-type]
    r = draw(4, *(out if residual is True else residual)) if residual else None
    layouts = {0: channels_last(x.shape, pad_to)} if last else {}
    if last and r is not None and r.shape == out:
        layouts[3] = channels_last(out, pad_to)
    operands = [x, Weight(w) if known else w, Weight(draw(3, o)), r]
    outs = {0: channels_last(out, pad_to)} if last else {}
    return check_kernel(
        GeneratedConv(), "fused_convolution", operands, target=target, layouts=layouts, out_layouts=outs, act=act, split=split, **attrs
    )  # fmt: skip


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "one tap": {"kernel": (1, 1), "residual": True, "act": "relu"},
    "one tap, padded channels": {"kernel": (1, 1), "pad_to": 16, "residual": True},
    "one tap, a residual per channel": {"kernel": (1, 1), "n": 2, "residual": (45, 1, 1), "act": "gelu"},
    "one tap, channels apart": {"kernel": (1, 1), "last": False, "residual": True},
    "one tap, step": {"kernel": (1, 1), "stride": [2, 2], "n": 2},
    "one tap, padding": {"kernel": (1, 1), "padding": [1, 1]},
    "one tap, computed filters": {"kernel": (1, 1), "known": False},
    "one tap of a line": {"kernel": (1,), "size": (19,), "n": 3},
    "three": {"padding": [1, 1], "residual": True, "act": "relu"},
    "three, step": {"padding": [1, 1], "stride": [2, 2], "size": (15, 13), "act": "silu"},
    "three, dilated": {"padding": [2, 4], "dilation": [2, 3], "size": (9, 11)},
    "three, computed filters": {"padding": [1, 1], "known": False},
    "channels apart": {"padding": [1, 1], "last": False},
    "several chunks": {"c": 150, "o": 70, "padding": [1, 1], "size": (8, 8), "residual": True},
    "several blocks": {"c": 20, "o": 33, "padding": [1, 1], "size": (30, 31), "n": 2},
    "first layer": {"c": 3, "o": 64, "size": (20, 21), "kernel": (7, 7), "stride": [2, 2], "padding": [3, 3], "act": "relu"},
    "cropping": {"padding": [-1, 1, 0, -2]},
    "groups": {"c": 60, "o": 72, "groups": 3, "padding": [1, 1]},
    "line": {"size": (31,), "kernel": (4,), "stride": [3], "padding": [2]},
    "volume": {"c": 20, "o": 9, "size": (4, 5, 6), "kernel": (2, 3, 3), "padding": [1, 0, 1], "stride": [1, 2, 1]},
    "transposed": {"transposed": True, "stride": [2, 3], "padding": [1, 1], "size": (4, 5), "kernel": (4, 3)},
    "lines": {"c": 32, "size": (20, 21), "padding": [1, 1], "residual": True, "act": "relu", "n": 2},
    "lines, no padding": {"c": 64, "size": (17, 31), "residual": True, "pad_to": 128},
    "lines, two by two": {"c": 64, "size": (27, 29), "padding": [1, 1], "stride": [2, 2], "act": "silu"},
    "lines, one tap by steps": {"c": 96, "o": 70, "kernel": (1, 1), "size": (21, 40), "stride": [2, 2]},
    "lines, chunks and blocks": {"c": 160, "o": 70, "size": (30, 12), "padding": [1, 1], "residual": True},
    "lines, dilated": {"c": 32, "size": (20, 23), "padding": [3, 5], "dilation": [2, 3]},
    "lines, cropping": {"c": 32, "size": (14, 18), "padding": [-1, 1, 0, -2]},
    "lines, groups": {"c": 96, "o": 102, "size": (11, 12), "groups": 3, "padding": [1, 1], "pad_to": 64},
    "lines, far apart": {"c": 512, "o": 40, "size": (12, 12), "padding": [1, 1]},
    "lines of one dim": {"c": 64, "size": (700,), "kernel": (3,), "padding": [1]},
    "lines of volumes": {"c": 32, "o": 33, "size": (5, 6, 13), "kernel": (3, 3, 3), "padding": [1, 1, 1], "stride": [2, 1, 1]},
    "lines, computed filters": {"c": 32, "size": (12, 13), "padding": [1, 1], "known": False},
    "transposed, groups": {"transposed": True, "groups": 3, "c": 60, "o": 72, "stride": [2, 2], "known": False},
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(target: CppTarget, name: str) -> None:
    conv(target, **CONVOLUTIONS[name])


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_stays_where_it_belongs(kernel: tuple[int, int], value: float) -> None:
    conv(OWN, kernel=kernel, padding=[kernel[0] // 2] * 2, bad=value)
    conv(OWN, c=32, size=(9, 14), kernel=kernel, padding=[kernel[0] // 2] * 2, bad=value)


@settings(max_examples=12, deadline=None)
@given(
    data=st.data(), channels=st.sampled_from([32, 64, 96]), groups=st.integers(1, 2), images=st.integers(1, 2)
)
def test_convolutions_by_lines_drawn_at_random(
    data: st.DataObject, channels: int, groups: int, images: int
) -> None:
    def both(low: int, high: int) -> tuple[int, int]:
        return data.draw(st.integers(low, high)), data.draw(st.integers(low, high))

    kernel, stride, dilation, padding = both(1, 3), both(1, 3), both(1, 2), both(0, 3)
    size = data.draw(st.integers(7, 20)), data.draw(st.integers(12, 45))
    filters = data.draw(st.integers(1, 70)) * groups
    conv(
        OWN, images, channels * groups, filters, size, kernel, groups=groups, stride=[*stride], dilation=[*dilation], padding=[*padding],
        residual=data.draw(st.booleans()), pad_to=data.draw(st.sampled_from([1, 64, 128])),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("channels", "width", "padding", "lines"),
    [
        (64, 56, 1, "copied"),
        (64, 56, 0, "in place"),
        (64, 7, 1, "none"),
        (48, 56, 1, "none"),
        (4096, 256, 1, "none"),
    ],
)
def test_lines_are_read_where_channels_are_whole_steps_and_rows_are_long(
    channels: int, width: int, padding: int, lines: str
) -> None:
    out, strides = width + 2 * padding - 2, (0, 1, 0, width * channels, channels)
    shape = ConvShape(
        1, 1, channels, 64, (1, width, width), (1, out, out), (1, 3, 3), (1, 1, 1), (1, 1, 1),
        (0, padding, padding), strides, strides,
    )  # fmt: skip
    by_lines = tiling(shape, DType.BFLOAT16, OWN).windows
    assert ("none" if not by_lines else "copied" if by_lines[0] else "in place") == lines


@pytest.mark.parametrize(("c", "w"), [(80, 8), (96, 14)])
def test_any_split_of_a_convolution_gives_the_same_bits(c: int, w: int) -> None:
    first, *others = (
        conv(OWN, c=c, o=100, size=(9, w), padding=[1, 1], split=seed)[0].view(np.uint16) for seed in range(3)
    )
    for other in others:
        assert (first == other).all()


# ── attention ──


def attend(
    target: Any,
    q: tuple[int, ...],
    k: tuple[int, ...],
    dv: int,
    mask: Any = None,
    bad: bool = False,
    **attrs: Any,
) -> Any:
    b = GraphBuilder("attention")
    feeds = {"q": draw(1, *q), "k": draw(2, *k), "v": draw(3, *k[:3], dv)}
    if bad:
        feeds["k"][0, 0, k[2] // 2, 0] = np.nan  # all of head 0
        feeds["v"][0, 1, 0, 3] = np.inf  # one element of head 1
    if mask is not None:
        feeds["mask"] = mask
    names = [b.input(n, f"{a.dtype.name}{list(a.shape)}") for n, a in feeds.items()]
    b.output("y", b.attention(*names, **attrs))
    return check(b.build(), feeds, target=target, passes="none", split=3, kernels={"attention": "flash"})["y"]


ATTENTION: dict[str, dict[str, Any]] = {
    "whole tiles": {"q": (1, 2, 64, 64), "k": (1, 2, 128, 64), "dv": 64},
    "nothing fits": {"q": (2, 3, 37, 20), "k": (2, 3, 101, 20), "dv": 45},
    "odd depth": {"q": (1, 2, 19, 33), "k": (1, 2, 33, 33), "dv": 7},
    "causal": {"q": (1, 2, 150, 40), "k": (1, 2, 290, 40), "dv": 32, "causal": True, "causal_offset": 140},
    "keys in parts": {"q": (1, 2, 40, 32), "k": (1, 2, 1100, 32), "dv": 33},
    "grouped, softcap": {"q": (2, 6, 33, 16), "k": (2, 2, 150, 16), "dv": 24, "softcap": 2.0, "scale": 0.3},
    "some see nothing": {"q": (1, 2, 12, 8), "k": (1, 2, 5, 8), "dv": 8, "causal": True, "causal_offset": -4},
    "a mask of keys": {
        "q": (2, 4, 37, 20),
        "k": (2, 4, 140, 20),
        "dv": 20,
        "mask": np.random.default_rng(5).random((2, 1, 1, 140)) < 0.5,
    },
    "a mask of both": {"q": (2, 4, 37, 20), "k": (2, 2, 140, 20), "dv": 20, "mask": draw(9, 4, 37, 140)},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(target: CppTarget, name: str) -> None:
    attend(target, **ATTENTION[name])


@pytest.mark.parametrize("keys", [70, 700])
def test_in_attention_too(keys: int) -> None:
    y = attend(OWN, (1, 2, 9, 8), (1, 2, keys, 8), 8, bad=True).astype(np.float32)
    assert np.isnan(y[0, 0]).all()
    assert np.isinf(y[0, 1, :, 3]).all()
    assert np.isfinite(y[0, 1, :, :3]).all()


@pytest.mark.parametrize("keys", [101, 1100])
def test_attention_in_training_has_the_same_bits(keys: int) -> None:
    q, k = (1, 2, 37, 20), (1, 2, keys, 20)
    b = GraphBuilder("training")
    feeds = {"q": draw(1, *q), "k": draw(2, *k), "v": draw(3, *k[:3], 24)}
    results = b.attention_train(*(b.input(n, f"bfloat16{list(a.shape)}") for n, a in feeds.items()))
    for name, value in zip(("y", "lse"), results, strict=True):
        b.output(name, value)
    y = check(b.build(), feeds, target=OWN, passes="none", kernels={"attention": "flash"})["y"]
    assert y.tobytes() == attend(OWN, q, k, 24).tobytes()


def test_attention_takes_the_tiles() -> None:
    b = GraphBuilder("attention")
    b.output("y", b.attention(*(b.input(n, "bfloat16[1, 2, 64, 32]") for n in "qkv")))
    assert "attention_block_tiles<" in source(b.build())


# ── what a machine must have ──


@pytest.mark.skipif(not LACKS_TILES, reason="this machine has tiles")
def test_a_machine_without_tiles_says_so_before_anything_runs() -> None:
    program = compile_graph(linear(64, 64, 64)[0], target=LEVEL, passes=0)
    with pytest.raises(XpuError, match=r"cpu:x86-64-v4\+amx: this machine lacks amx-"):
        Executor(program)


@pytest.mark.level("x86-64-v4+amx")
def test_a_machine_with_tiles_takes_them() -> None:
    assert cpu_target().name == LEVEL
