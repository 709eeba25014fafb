"""Every pointwise op in every dtype that the IR gives it, against the interpreter."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.device_under_test import named
from support.narrow_chains import PAIRS, check_chains
from support.native import check, run_native

from xpuruntime import ir
from xpuruntime.codegen.expr.expression import POINTWISE, why_not
from xpuruntime.codegen.expr.terms import COMPUTED
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import IrError
from xpuruntime.types import DType, TensorSpec

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int32", "int64", "uint64")
ATTRS: dict[str, list[dict[str, Any]]] = {
    "cast": [{"dtype": d} for d in sorted(COMPUTED)],
    "bitcast": [{"dtype": d} for d in ("int16", "float16", "bfloat16", "int32", "float32", "uint8", "int8", "int64", "float64")],
    "div": [{}, {"rounding_mode": "trunc"}, {"rounding_mode": "floor"}],
    "round": [{}, {"decimals": 2}, {"decimals": -1}],
    "gelu": [{}, {"approximate": "tanh"}],
    "elu": [{}, {"alpha": 1.6, "scale": 1.05, "input_scale": 0.7}],
    "isinf": [{}, {"positive": False}, {"negative": False}, {"positive": False, "negative": False}],
    "softplus": [{}, {"beta": 2.0, "threshold": 20.0}],
    "leaky_relu": [{}, {"negative_slope": 0.3}],
    "hardsigmoid": [{}, {"alpha": 0.2, "beta": 0.4}],
}  # fmt: skip
SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.5, -3.5, 0.5, np.inf, -np.inf, np.nan, 1e-6, 30.0, -30.0, 7.0)
LEVELS = ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4")


def values(
    dtype: str, shape: tuple[int, ...], seed: int = 0, *, positive: bool = False
) -> np.ndarray[Any, Any]:
    """Small numbers with the special ones among them; for integers the ends of the range too."""
    rng, kind = np.random.default_rng(seed), DType.of(dtype)
    size = int(np.prod(shape))
    if kind is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if kind.is_float:
        flat = rng.normal(size=size) * 3
        flat[: min(size, len(SPECIAL))] = SPECIAL[: min(size, len(SPECIAL))]
        flat = rng.permutation(flat)
        return flat.reshape(shape).astype(kind.numpy)
    flat = rng.integers(1 if positive else (0 if not kind.is_signed else -9), 10, size)
    if not positive and size > 4:
        ends = np.iinfo(kind.numpy)
        out = flat.astype(kind.numpy)
        out[:2] = ends.min, ends.max
        return rng.permutation(out).reshape(shape)
    return flat.astype(kind.numpy).reshape(shape)


def operands_of(op: str) -> int:
    return len(ir.OPS[op].inputs)


def one_op(
    op: str, dtypes: tuple[str, ...], attrs: dict[str, Any], shapes: tuple[tuple[int, ...], ...]
) -> tuple[Any, dict[str, Any]] | None:
    """The graph of one op and its feeds; None where the IR has no such call."""
    b = ir.GraphBuilder(op)
    names = [
        b.input(f"x{i}", TensorSpec(s, DType.of(d)))
        for i, (d, s) in enumerate(zip(dtypes, shapes, strict=True))
    ]
    try:
        b.output("y", b.call(op, *names, **attrs))
        graph = b.build()
    except IrError:
        return None
    node = graph.nodes[0]
    if why_not(op, [DType.of(d) for d in dtypes], node.spec.dtype, node.attrs):
        return None
    whole = op in ("fmod", "remainder") or (op == "div" and attrs)
    feeds = {
        f"x{i}": values(d, s, seed=i + 1, positive=whole and i == 1 and not DType.of(d).is_float)
        for i, (d, s) in enumerate(zip(dtypes, shapes, strict=True))
    }
    return graph, feeds


def cases(op: str) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    count = operands_of(op)
    kinds: list[tuple[str, ...]] = []
    for d in (*FLOATS, *INTEGERS, "bool"):
        if op == "where":
            kinds.append(("bool", d, d))
        else:
            kinds.append((d,) * count)
    return list(itertools.product(kinds, ATTRS.get(op, [{}])))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("op", sorted(POINTWISE))
def test_every_dtype(op: str) -> None:
    """All dtypes of one op in one program, so that a compiler is started once."""
    if op == "bitcast" and named() is not None:
        pytest.skip("the bits of a NaN that a cast made are the device's own")
    b = ir.GraphBuilder(op)
    feeds: dict[str, Any] = {}
    done = 0
    for at, (dtypes, attrs) in enumerate(cases(op)):
        made = one_op(op, dtypes, attrs, ((37,),) * len(dtypes))
        if made is None:
            continue
        graph, given = made
        names = [b.input(f"c{at}_{v.name}", v.spec) for v in graph.inputs]
        feeds |= {f"c{at}_{k}": v for k, v in given.items()}
        b.output(f"y{at}", b.call(op, *names, **attrs))
        done += 1
    assert done, f"no dtype of {op} is computed"
    with np.errstate(all="ignore"):
        check_each(b.build(), feeds)


def check_each(graph: Any, feeds: dict[str, Any], **options: Any) -> None:
    """As ``check``; float16 and bfloat16 within one rounding."""
    from support.native import run_native

    from xpuruntime.ir import interp

    got = run_native(graph, feeds, passes="none", **options)
    want = interp.run(graph, feeds)
    for name, wanted in want.items():
        found = got[name]
        assert found.dtype == wanted.dtype, name
        assert found.shape == wanted.shape, name
        if DType.of(wanted.dtype).is_float:
            unit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 5e-7, "float64": 1e-13}[wanted.dtype.name]
            tiny = {"float16": 1e-7, "bfloat16": 1e-38, "float32": 1e-38, "float64": 1e-300}[
                wanted.dtype.name
            ]
            a, w = found.astype(np.float64), wanted.astype(np.float64)
            scale = np.abs(w[np.isfinite(w)]).max(initial=0) * unit * 1e-1
            assert np.allclose(a, w, rtol=unit, atol=max(tiny, scale), equal_nan=True), (
                name,
                *worst(graph, name, feeds, found, wanted),
            )
        else:
            assert np.array_equal(found, wanted), (name, *worst(graph, name, feeds, found, wanted))


def worst(graph: Any, name: str, feeds: dict[str, Any], found: Any, wanted: Any) -> tuple[Any, ...]:
    """The first places that differ, for the message."""
    node = graph.producer(next(o.value for o in graph.outputs if o.name == name))
    bad = np.flatnonzero((found != wanted) & ~((found != found) & (wanted != wanted)))[:4]
    given = [feeds[i].reshape(-1)[bad] if feeds[i].size == found.size else feeds[i] for i in node.values]
    return str(node), given, found.reshape(-1)[bad], wanted.reshape(-1)[bad]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", LEVELS)
def test_every_op_at_every_level(level: str) -> None:
    """float32 and float16, with a tail that fills no vector."""
    for dtype in ("float32", "float16"):
        b = ir.GraphBuilder("all")
        feeds: dict[str, Any] = {}
        for op in sorted(POINTWISE - {"cast", "bitcast"}):
            dtypes = ("bool", dtype, dtype) if op == "where" else (dtype,) * operands_of(op)
            made = one_op(op, dtypes, {}, ((2, 21),) * len(dtypes))
            if made is None:
                continue
            names = [b.input(f"{op}_{v.name}", v.spec) for v in made[0].inputs]
            feeds |= {f"{op}_{k}": v for k, v in made[1].items()}
            b.output(f"y_{op}", b.call(op, *names))
        with np.errstate(all="ignore"):
            check_each(b.build(), feeds, target=level)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", LEVELS)
def test_casts_between_all_types(level: str) -> None:
    b = ir.GraphBuilder("casts")
    feeds: dict[str, Any] = {}
    for source in sorted(COMPUTED):
        x = b.input(f"x_{source.value}", TensorSpec((45,), source))
        feeds[f"x_{source.value}"] = (
            values(source.value, (45,)) * np.array(1)[()].astype(source.numpy)
            if source is not DType.BOOL
            else values("bool", (45,))
        )
        for to in sorted(COMPUTED):
            b.output(f"{source.value}_{to.value}", b.cast(x, dtype=to))
    with np.errstate(all="ignore"):
        check_each(b.build(), feeds, target=level)


@pytest.mark.parametrize("level", [*LEVELS, "cpu:x86-64-v4+bf16"])
@pytest.mark.parametrize(("wide", "narrow"), PAIRS)
def test_values_of_16_bits_are_rounded_inside_a_chain(wide: str, narrow: str, level: str) -> None:
    check_chains(wide, narrow, level)


@pytest.mark.parametrize("level", [*LEVELS, "cpu:x86-64-v4+bf16"])
def test_every_float_of_16_bits_is_stored_as_it_is(level: str) -> None:
    """Subnormal numbers, too: the instruction that rounds to bfloat16 flushes them to zero."""
    b = ir.GraphBuilder("g")
    feeds = {d: np.arange(65536, dtype=np.uint16).view(DType(d).numpy) for d in ("float16", "bfloat16")}
    for dtype in feeds:
        b.output(f"y_{dtype}", b.neg(b.input(dtype, f"{dtype}[65536]")))
    results = run_native(b.build(), feeds, target=level)
    with np.errstate(all="ignore"):
        for dtype, x in feeds.items():
            got, number = results[f"y_{dtype}"], ~np.isnan(x)
            assert np.array_equal(got.view(np.uint16)[number], x.view(np.uint16)[number] ^ 0x8000)
            assert np.isnan(got[~number]).all()


def test_casts_of_large_floats_wrap_as_the_interpreter_s() -> None:
    b = ir.GraphBuilder("large")
    big = np.array([2.0**31, -(2.0**31), 2.0**31 + 4096, 3e9, -3e9, 2.0**33 + 2**12, 1e18, -1e18, 2.0**63, -(2.0**63), 1e30, np.nan, np.inf, 255.9, -0.9, 2.0**64, 1.5 * 2**63])  # fmt: skip
    feeds = {"f": big.astype(np.float32), "d": big}
    for name, dtype in (("f", "float32"), ("d", "float64")):
        x = b.input(name, TensorSpec(big.shape, DType.of(dtype)))
        for to in (*INTEGERS, "bool", "float16", "bfloat16"):
            b.output(f"{name}_{to}", b.cast(x, dtype=to))
    with np.errstate(all="ignore"):
        check_each(b.build(), feeds)


SHAPES = [
    ((2, 3, 5), (2, 3, 5)), ((2, 3, 5), (5,)), ((2, 3, 1), (1, 1, 40)), ((), (4, 4)), ((), ()), ((0, 3), (3,)), ((1,), (7, 1)),
    ((4, 8, 16, 16), (8, 1, 1)), ((4, 1, 33), (4, 7, 1)), ((3, 1, 2, 1, 5), (1, 4, 1, 6, 5)), ((17,), (1,)),
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("first", "second"), SHAPES)
def test_broadcasting(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    b = ir.GraphBuilder("broadcast")
    x, y = b.input("x", TensorSpec(first, DType.FLOAT32)), b.input("y", TensorSpec(second, DType.FLOAT32))
    b.output("sum", b.add(x, y))
    b.output("less", b.lt(b.mul(y, 2), x))
    rng = np.random.default_rng(1)
    feeds = {"x": rng.normal(size=first).astype("f"), "y": rng.normal(size=second).astype("f")}
    for split in (None, 3):
        check(b.build(), feeds, passes="none", split=split)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels", [2, 3, 7])
@pytest.mark.parametrize("space", [(4, 4), (1, 17), (13, 31), (40, 50)])
@pytest.mark.parametrize("images", [1, 3])
def test_channels_of_images_move_behind_their_pixels(
    images: int, space: tuple[int, int], channels: int, level: str
) -> None:
    """Fewer channels than a vector has lanes: vectors run along the pixels, and their results are interleaved."""
    b = ir.GraphBuilder("pixels")
    x = b.input("x", TensorSpec((images, channels, *space), DType.FLOAT32))
    scale = b.input("scale", TensorSpec((channels, 1, 1), DType.FLOAT32))
    for name, value in {
        "bfloat16": b.call("cast", x, dtype="bfloat16"),
        "bytes": b.call("cast", b.clamp(b.mul(x, 50.0), 0.0, 255.0), dtype="uint8"),
        "bits": b.gt(x, 0.1),
        "wide": b.call("cast", x, dtype="float64"),
        "scaled": b.relu(b.mul(x, scale)),
    }.items():
        b.output(name, b.call("clone", b.call("permute", value, dims=[0, 2, 3, 1])))
    rng = np.random.default_rng(2)
    feeds = {
        "x": rng.normal(size=(images, channels, *space)).astype("f"),
        "scale": rng.normal(size=(channels, 1, 1)).astype("f"),
    }
    for split in (None, 3):
        check(b.build(), feeds, target=level, split=split)


def test_vectors_run_along_pixels_if_an_operand_is_not_contiguous_along_channels() -> None:
    def source(order: tuple[int, ...]) -> str:
        b = ir.GraphBuilder("pixels")
        x = b.input("x", "float32[3, 40, 50]")
        b.output("y", b.call("clone", b.call("permute", b.relu(x), dims=list(order))))
        return str(compile_graph(b.build(), target="cpu:x86-64-v2").binaries[0].source)

    assert "; c < 3; ++c" in source((1, 2, 0))
    assert "++c" not in source((0, 1, 2))


def test_numbers_promote_as_the_ir_says() -> None:
    b = ir.GraphBuilder("numbers")
    feeds = {}
    for dtype in ("float16", "bfloat16", "float32", "float64", "int8", "int64", "bool"):
        x = b.input(dtype, TensorSpec((9,), DType.of(dtype)))
        feeds[dtype] = values(dtype, (9,), 5)
        for op, number in itertools.product(("add", "mul", "lt", "maximum", "div"), (2, 0.1, True)):
            b.output(f"{dtype}_{op}_{number}", b.call(op, x, number))
        b.output(f"{dtype}_where", b.where(b.gt(x, 0), x, 0.5))
        b.output(f"{dtype}_rsub", b.sub(1.5, x))
        b.output(f"{dtype}_clamp", b.clamp(x, 0, 3.7))
    with np.errstate(all="ignore"):
        check_each(b.build(), feeds)


def test_a_large_value_is_cut_into_tasks_and_any_split_gives_the_same_bits() -> None:
    b = ir.GraphBuilder("large")
    x, s = b.input("x", "float32[3, 70001]"), b.input("s", "float32[3, 1]")
    b.output("y", b.gelu(b.mul(x, s)))
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(3, 70001)).astype("f"), "s": rng.normal(size=(3, 1)).astype("f")}
    whole = check(b.build(), feeds)["y"]
    for split in (1, 2, 3):
        assert np.array_equal(check(b.build(), feeds, split=split)["y"], whole)


def test_nan_stays_in_activations() -> None:
    b = ir.GraphBuilder("nan")
    x = b.input("x", "float32[3]")
    for op in (
        "relu",
        "gelu",
        "silu",
        "sigmoid",
        "tanh",
        "hardswish",
        "hardsigmoid",
        "leaky_relu",
        "elu",
        "mish",
        "softplus",
    ):
        b.output(op, b.call(op, x))
    feeds = {"x": np.array([np.nan, np.nan, 1.0], "f")}
    for found in check(b.build(), feeds).values():
        assert np.isnan(found[:2]).all()
        assert np.isfinite(found[2])


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3", "cpu:x86-64-v2"])
@pytest.mark.parametrize("limits", [(0.0, 3.0), (-3.0, 0.0), (None, 0.0), (1.5, None), (2.0, 1.0), (np.nan, 1.0), (-1.0, np.nan)])  # fmt: skip
def test_a_clamp_keeps_nan_and_the_sign_of_zero(limits: tuple[Any, Any], target: str) -> None:
    b = ir.GraphBuilder("clamp")
    x = b.input("x", "float32[19]")
    b.output("y", b.clamp(x, *limits))
    feeds = {
        "x": np.array(
            [np.nan, -0.0, 0.0, np.inf, -np.inf, 1e-45, -1e-45, *np.linspace(-4, 4, 12)], np.float32
        )
    }
    got, want = run_native(b.build(), feeds, target=target)["y"], ir.interp.run(b.build(), feeds)["y"]
    assert np.array_equal(got, want, equal_nan=True)
    same = ~np.isnan(want)
    assert np.array_equal(np.signbit(got[same]), np.signbit(want[same]))


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3", "cpu:x86-64-v2"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_hardswish_of_the_largest_floats_is_finite(dtype: str, target: str) -> None:
    """PyTorch multiplies by clip(x + 3, 0, 6) before it divides by 6, which overflows above a sixth of the largest float."""
    kind = DType.of(dtype).numpy
    largest = float(ml_dtypes.finfo(kind).max)
    numbers = [largest, largest / 2, largest / 7, -largest, np.nan, np.inf, -np.inf, *np.linspace(-4, 4, 12)]
    feeds = {"x": np.array(numbers).astype(kind)}
    b = ir.GraphBuilder("hardswish")
    b.output("y", b.hardswish(b.input("x", f"{dtype}[19]")))
    with np.errstate(invalid="ignore"):
        want = ir.interp.run(b.build(), feeds)["y"].astype(np.float64)
        got = run_native(b.build(), feeds, target=target)["y"].astype(np.float64)
    assert got[:3].tolist() == feeds["x"][:3].astype(np.float64).tolist()
    np.testing.assert_allclose(got, want, rtol=float(ml_dtypes.finfo(kind).eps), atol=1e-7)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool"])
def test_channels_of_bytes(level: str, dtype: str) -> None:
    """Images whose channels are the innermost dim become channels first: each vector has every third byte."""
    b = ir.GraphBuilder("image")
    feeds: dict[str, Any] = {}
    for shape in ((2, 5, 16, 3), (1, 8, 8, 3), (1, 3, 17, 3), (2, 5, 16, 4)):
        name = b.input(f"x{len(feeds)}", TensorSpec(shape, DType.of(dtype)))
        feeds[name] = values(dtype, shape, seed=shape[2])
        b.output(f"y_{name}", b.mul(b.cast(b.permute(name, dims=[0, 3, 1, 2]), dtype="float32"), 0.5))
    check(b.build(), feeds, target=level)


FAR = (1e30, -3e38, 2.0**28, 2.0**28 + 32, -(2.0**52), 1e-45, -1e-40, 2.0**-126, 3.0, -7.0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_are_exact(level: str, dtype: str) -> None:
    """Small and huge quotients, multiples, subnormal numbers and what is not finite, in one vector and apart."""
    rng, kind = np.random.default_rng(3), DType.of(dtype).numpy
    near = rng.normal(size=(4, 4099)) * 100
    divisor = rng.normal(size=(4, 4099))
    near[1] = (divisor[1].astype(np.float32) * rng.integers(-(2**12), 2**12, 4099)).astype(kind)
    near[2] = divisor[2] * 2.0 ** rng.integers(-3, 60, 4099)
    odd = np.array(list(itertools.product((*SPECIAL, *FAR), repeat=2)))
    near[3, : len(odd)], divisor[3, : len(odd)] = odd[:, 0], odd[:, 1]
    x, y = near.astype(kind), divisor.astype(kind)
    b = ir.GraphBuilder("remainders")
    names = [b.input(n, TensorSpec(x.shape, DType.of(dtype))) for n in "xy"]
    for op in ("fmod", "remainder"):
        b.output(op, b.call(op, *names))
    b.output("floor", b.div(*names, rounding_mode="floor"))
    from xpuruntime.ir import interp

    graph, feeds = b.build(), {"x": x, "y": y}
    got = run_native(graph, feeds, target=level)
    with np.errstate(all="ignore"):
        want = interp.run(graph, feeds)
        np.testing.assert_array_equal(got["fmod"], np.fmod(x, y))
    for name, wanted in want.items():
        np.testing.assert_array_equal(got[name], wanted, err_msg=name)
        number = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(got[name])[number], np.signbit(wanted)[number], err_msg=name)


@pytest.mark.parametrize("level", LEVELS)
def test_powers_of_positive_numbers(level: str) -> None:
    """Whole vectors of positive numbers with fractions as exponents, up to overflow and underflow, and vectors that mix them with others."""
    rng = np.random.default_rng(5)
    for dtype, ends, unit in (("float32", 44, 2e-7), ("float64", 300, 1e-12)):
        kind = DType.of(dtype).numpy
        x = (10.0 ** rng.uniform(-ends, min(ends, 38 if ends < 99 else 300), (3, 517))).astype(kind)
        x[1, ::5], x[2, :14] = -x[1, ::5], SPECIAL
        y = rng.normal(size=x.shape).astype(kind)
        y[2, 7:21] = SPECIAL
        b = ir.GraphBuilder("powers")
        names = [b.input(n, TensorSpec(x.shape, DType.of(dtype))) for n in "xy"]
        b.output("z", b.pow(*names))
        b.output("constant", b.pow(names[0], 1.7))
        got = run_native(b.build(), {"x": x, "y": y}, target=level)
        with np.errstate(all="ignore"):
            wide = x.astype(np.longdouble)
            for name, by in (("z", y.astype(np.longdouble)), ("constant", kind.type(1.7))):
                np.testing.assert_allclose(
                    got[name], (wide**by).astype(kind), rtol=unit, atol=2e-45 if ends < 99 else 1e-320
                )


@pytest.mark.parametrize("level", LEVELS)
def test_integer_quotients_are_exact(level: str) -> None:
    """Quotients next to whole numbers, the ends of each type, and divisors of zero and -1."""
    b, feeds = ir.GraphBuilder("quotients"), dict[str, Any]()
    rng = np.random.default_rng(7)
    for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32"):
        info = np.iinfo(dtype)
        ends = [
            info.min,
            info.min + 1,
            info.max,
            info.max - 1,
            0,
            1,
            2,
            3,
            7,
            *([-1, -2, -7] if info.min else []),
        ]
        pairs = np.array(list(itertools.product(ends, repeat=2)), np.int64)
        divisor = rng.integers(1, max(2, min(info.max, 50000)), 700)
        multiple = (rng.integers(info.min, info.max, 700, endpoint=True) // divisor) * divisor
        near = np.clip(multiple + rng.integers(-1, 2, 700), info.min, info.max)
        x, y = np.concatenate([pairs[:, 0], near]), np.concatenate([pairs[:, 1], divisor])
        feeds |= {f"x_{dtype}": x.astype(dtype), f"y_{dtype}": y.astype(dtype)}
        names = [b.input(f"{n}_{dtype}", TensorSpec(x.shape, DType.of(dtype))) for n in "xy"]
        for op in ("fmod", "remainder"):
            b.output(f"{op}_{dtype}", b.call(op, *names))
        for mode in ("floor", "trunc"):
            b.output(f"{mode}_{dtype}", b.div(*names, rounding_mode=mode))
    got = run_native(b.build(), feeds, target=level)
    for name, y in got.items():
        op, dtype = name.split("_")
        for at, (n, d) in enumerate(
            zip(feeds[f"x_{dtype}"].tolist(), feeds[f"y_{dtype}"].tolist(), strict=True)
        ):
            trunc = 0 if d == 0 else (abs(n) // abs(d)) * (-1 if (n < 0) != (d < 0) else 1)
            floor = 0 if d == 0 else n // d
            exact = {
                "floor": floor,
                "trunc": trunc,
                "fmod": n - trunc * d if d else 0,
                "remainder": n - floor * d if d else 0,
            }
            assert y[at] == np.array(exact[op], object).astype(np.int64).astype(dtype), (name, n, d)


@pytest.mark.parametrize("level", LEVELS)
def test_angles_of_two_coordinates(level: str) -> None:
    """Every quadrant, axes, zeros of either sign, infinities and NaN: three units in the last place, and the signs of C99."""
    rng = np.random.default_rng(9)
    odd = np.array(
        list(itertools.product((0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -3e38, 2.5), repeat=2))
    )
    for dtype in ("float32", "float64"):
        y, x = (
            np.concatenate([odd[:, i], rng.normal(size=2000) * 10.0 ** rng.uniform(-6, 6, 2000)])
            for i in (0, 1)
        )
        y, x = y.astype(dtype), x.astype(dtype)
        b = ir.GraphBuilder("angles")
        b.output("z", b.atan2(*(b.input(n, TensorSpec(x.shape, DType.of(dtype))) for n in "yx")))
        z = run_native(b.build(), {"y": y, "x": x}, target=level)["z"]
        exact = np.arctan2(y.astype(np.longdouble), x.astype(np.longdouble))
        number = ~np.isnan(exact)
        assert np.array_equal(np.isnan(z), ~number)
        assert np.array_equal(np.signbit(z)[number], np.signbit(exact)[number])
        spacing = np.spacing(np.abs(exact[number]).astype(dtype))
        assert (np.abs(z[number] - exact[number]) / spacing).max() <= 3
