"""Reductions, softmax and norms over any dims, in any layout and dtype, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.native import check

from xpuruntime import ir
from xpuruntime.types import DType, TensorSpec

FLOATS = ("float16", "bfloat16", "float32", "float64")
REDUCTIONS = ("sum", "mean", "amax", "amin", "prod", "any", "all", "var", "logsumexp", "vector_norm")
LEVELS = ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4")
AXES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((5, 37), (1,)), ((5, 37), (0,)), ((5, 37), (0, 1)), ((2, 3, 4, 33), (1, 3)), ((2, 3, 4, 33), (0, 2)), ((2, 35, 6, 7), (2, 3)),
    ((7,), (0,)), ((3, 1, 16), (1,)), ((2, 3, 5), (0, 1, 2)), ((4, 0), (1,)), ((0, 4), (1,)), ((), ()), ((3, 20000), (1,)), ((700, 33), (0,)),
]  # fmt: skip


def everywhere(dtypes: tuple[str, ...]) -> list[tuple[str, str]]:
    """Every dtype on this processor's own level, one of each kind on every level."""
    return [(d, "cpu") for d in dtypes] + [
        (d, level) for level in LEVELS for d in ("float16", "float32", "int64") if d in dtypes
    ]


def values(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    rng, kind = np.random.default_rng(seed), DType.of(dtype)
    if kind is DType.BOOL:
        return np.asarray(rng.integers(0, 8, shape) > 0)
    if kind.is_float:
        return np.asarray(rng.normal(size=shape) + 0.3).astype(kind.numpy)
    low = -9 if kind.is_signed else 0
    return np.asarray(rng.integers(low, 10, shape)).astype(kind.numpy)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("shape", "dim"), AXES)
def test_every_reduction(shape: tuple[int, ...], dim: tuple[int, ...]) -> None:
    b = ir.GraphBuilder("reduce")
    x = b.input("x", TensorSpec(shape, DType.FLOAT32))
    for op in REDUCTIONS:
        for keepdim in (False, True):
            b.output(f"{op}_{keepdim}", b.call(op, x, dim=list(dim) or None, keepdim=keepdim))
    with np.errstate(all="ignore"):
        for split in (None, 2):
            check(b.build(), {"x": values(shape, "float32")}, passes="none", split=split)


@pytest.mark.parametrize("level", ["cpu", *LEVELS])
def test_many_short_rows(level: str) -> None:
    """Lanes have a row each; more rows than lanes, and a rest. NaN, infinities and the last element reach their own row only."""
    b, feeds = ir.GraphBuilder("short"), dict[str, Any]()
    for dtype in ("float32", "float64", "bfloat16", "float16", "int16", "uint8", "int64", "bool"):
        for length in (2, 3, 4):
            name = f"{dtype}_{length}"
            data = values((39, length), dtype)
            if DType.of(dtype).is_float:
                data[5, 0], data[20, 1], data[38, length - 1] = np.nan, np.inf, -np.inf
            x, feeds[name] = b.input(name, f"{dtype}[39, {length}]"), data
            for op in ("sum", "amax", "argmax", "any"):
                b.output(f"{op}_{name}", b.call(op, x, dim=1 if op == "argmax" else [1]))
            if DType.of(dtype).is_float:
                b.output(f"softmax_{name}", b.softmax(x, dim=1))
                b.output(f"norm_{name}", b.layer_norm(x, normalized_shape=[length]))
    with np.errstate(all="ignore"):
        check(b.build(), feeds, passes="none", target=level, split=3)


@pytest.mark.parametrize("level", ["cpu", *LEVELS])
def test_rows_shorter_than_vectors(level: str) -> None:
    b, feeds = ir.GraphBuilder("short"), dict[str, Any]()
    for dtype in ("float32", "float64", "bfloat16", "uint8", "int64", "bool"):
        for length in (1, 2, 3, 5, 9):
            name = f"{dtype}_{length}"
            x, feeds[name] = b.input(name, f"{dtype}[7, {length}]"), values((7, length), dtype)
            for op in ("sum", "amax", "argmax", "any"):
                b.output(f"{op}_{name}", b.call(op, x, dim=1 if op == "argmax" else [1]))
            if dtype == "float32":
                b.output(f"softmax_{name}", b.softmax(x, dim=1))
    check(b.build(), feeds, passes="none", target=level)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("dtype", "level"), everywhere((*FLOATS, "int8", "uint8", "int32", "int64", "uint64", "bool"))
)
def test_every_dtype(dtype: str, level: str) -> None:
    b = ir.GraphBuilder("dtypes")
    x = b.input("x", TensorSpec((3, 45), DType.of(dtype)))
    for op in REDUCTIONS:
        if dtype == "bool" and op in ("logsumexp", "vector_norm", "var"):
            continue
        for dim in (0, 1):
            b.output(f"{op}_{dim}", b.call(op, x, dim=[dim]))
    b.output("sum_float64", b.sum(x, dtype="float64"))
    b.output("sum_int32", b.sum(x, dtype="int32"))
    b.output("mean_float32", b.mean(x, dim=[1], dtype="float32"))
    with np.errstate(all="ignore"):
        check(b.build(), {"x": values((3, 45), dtype)}, passes="none", target=level)


@pytest.mark.parametrize("order", [0.0, 1.0, 2.0, 3.0, 0.5, np.inf, -np.inf])
def test_norm_of_any_order(order: float) -> None:
    b = ir.GraphBuilder("norms")
    x = b.input("x", "float32[6, 50]")
    for dim in (0, 1):
        b.output(f"y{dim}", b.vector_norm(x, ord=order, dim=[dim]))
    check(b.build(), {"x": values((6, 50), "float32")}, passes="none")


@pytest.mark.parametrize("correction", [0.0, 1.0, 2.5, 60.0])
def test_variance_by_correction(correction: float) -> None:
    b = ir.GraphBuilder("variance")
    x = b.input("x", "float32[6, 50]")
    b.output("y", b.var(x, dim=[1], correction=correction))
    with np.errstate(all="ignore"):
        check(b.build(), {"x": values((6, 50), "float32") * 3 + 100}, passes="none", tolerance=2e-5)


def test_nan_and_infinities_in_extremes() -> None:
    b = ir.GraphBuilder("extremes")
    x = b.input("x", "float32[5, 40]")
    for op in ("amax", "amin", "sum", "logsumexp", "any", "all"):
        for dim in (0, 1):
            b.output(f"{op}{dim}", b.call(op, x, dim=[dim]))
    data = values((5, 40), "float32")
    data[0, 39] = np.nan
    data[1, 3], data[2, 0], data[2, 1], data[3] = np.inf, np.inf, -np.inf, -np.inf
    with np.errstate(all="ignore"):
        check(b.build(), {"x": data}, passes="none")


def test_long_sums_stay_exact_enough() -> None:
    """A million float32 of one sign: a running float32 sum would lose digits."""
    b = ir.GraphBuilder("long")
    x = b.input("x", "float32[1000003]")
    y = b.input("y", "float32[100001, 8]")
    b.output("sum", b.sum(x))
    b.output("columns", b.sum(y, dim=[0]))
    rng = np.random.default_rng(0)
    feeds = {"x": rng.uniform(size=1000003).astype("f"), "y": rng.uniform(size=(100001, 8)).astype("f")}
    check(b.build(), feeds, passes="none", tolerance=1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("dtype", "level"), everywhere(FLOATS))
def test_softmax_and_norms_in_every_dtype(dtype: str, level: str) -> None:
    b = ir.GraphBuilder("rows")
    spec = TensorSpec((2, 6, 5, 37), DType.of(dtype))
    x, w, c = (
        b.input("x", spec),
        b.input("w", TensorSpec((37,), spec.dtype)),
        b.input("c", TensorSpec((6,), spec.dtype)),
    )
    for dim in range(4):
        b.output(f"softmax{dim}", b.softmax(x, dim=dim))
        b.output(f"log_softmax{dim}", b.log_softmax(x, dim=dim))
    y, mean, rstd = b.layer_norm(x, w, w, normalized_shape=[37], outputs=3)
    b.output("layer", y), b.output("mean", mean), b.output("rstd", rstd)
    z, r = b.rms_norm(x, w, normalized_shape=[37], outputs=2)
    b.output("rms", z), b.output("rms_rstd", r)
    b.output("layer2", b.layer_norm(x, normalized_shape=[5, 37], eps=1e-3))
    g, gm, gr = b.group_norm(x, c, c, groups=3, outputs=3)
    b.output("group", g), b.output("group_mean", gm), b.output("group_rstd", gr)
    b.output("instance", b.instance_norm(x, c, c))
    b.output("instance_plain", b.instance_norm(x))
    b.output("batch", b.batch_norm(x, c, None, c, b.abs(c)))
    for i, name in enumerate(b.batch_norm_train(x, c, c, c, b.abs(c), momentum=0.2, outputs=5)):
        b.output(f"train{i}", name)
    b.output("train", b.batch_norm_train(x, outputs=1))
    b.output("response", b.local_response_norm(x, size=3, alpha=0.1, beta=0.75, k=2.0))
    feeds = {"x": values(spec.shape, dtype), "w": values((37,), dtype, 1), "c": values((6,), dtype, 2)}  # type: ignore[arg-type]
    check(b.build(), feeds, passes="none", target=level)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (0, 4), (4, 0), (2, 1000), (1, 40000), (130, 3)])
def test_softmax_of_any_shape(shape: tuple[int, ...]) -> None:
    b = ir.GraphBuilder("softmax")
    x = b.input("x", TensorSpec(shape, DType.FLOAT32))
    for dim in range(max(len(shape), 1)):
        b.output(f"y{dim}", b.softmax(x, dim=dim))
        b.output(f"z{dim}", b.log_softmax(x, dim=dim))
    check(b.build(), {"x": values(shape, "float32") * 20}, passes="none")


def test_softmax_of_rows_without_a_finite_value() -> None:
    b = ir.GraphBuilder("softmax")
    x = b.input("x", "float32[4, 20]")
    b.output("y", b.softmax(x, dim=1))
    data = values((4, 20), "float32")
    data[0], data[1, 1:], data[2, 5] = -np.inf, -np.inf, np.nan
    with np.errstate(all="ignore"):
        found = check(b.build(), {"x": data}, passes="none")["y"]
    assert np.isnan(found[0]).all()
    assert found[1, 0] == 1


def test_softmax_to_another_dtype() -> None:
    b = ir.GraphBuilder("softmax")
    x = b.input("x", "float16[4, 20]")
    b.output("y", b.softmax(x, dim=1, dtype="float32"))
    b.output("z", b.log_softmax(b.cast(x, dtype="int32"), dim=1))
    check(b.build(), {"x": values((4, 20), "float16")}, passes="none")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("dtype", "level"), everywhere((*FLOATS, "int8", "uint8", "int64", "bool")))
def test_places_of_extremes(dtype: str, level: str) -> None:
    """Many ties, so that first and last differ; NaN in floats."""
    b = ir.GraphBuilder("places")
    x = b.input("x", TensorSpec((3, 5, 35), DType.of(dtype)))
    for op in ("argmax", "argmin"):
        for dim in (0, 1, 2, None):
            for last in (False, True):
                b.output(f"{op}_{dim}_{last}", b.call(op, x, dim=dim, last=last, keepdim=last))
    for op in ("max", "min"):
        for dim in (1, 2):
            value, place = b.call(op, x, dim=dim, keepdim=dim == 1)
            b.output(f"{op}{dim}_value", value)
            b.output(f"{op}{dim}_place", place)
    for dim in range(3):
        b.output(f"hardmax{dim}", b.hardmax(x, dim=dim))
    data = np.random.default_rng(0).integers(0, 4, (3, 5, 35)).astype(DType.of(dtype).numpy)
    if DType.of(dtype).is_float:
        data[0, 1, 3] = data[0, 1, 9] = data[2, 0, 34] = np.nan
    check(b.build(), {"x": data}, passes="none", target=level)


@pytest.mark.parametrize("shape", [(8, 1), (3, 1, 2), (8, 1, 3, 9), (1,)])
def test_places_in_rows_of_one_element(shape: tuple[int, ...]) -> None:
    b = ir.GraphBuilder("one")
    x = b.input("x", TensorSpec(shape, DType.FLOAT32))
    dim = shape.index(1)
    b.output("argmax", b.argmax(x, dim=dim))
    b.output("argmin", b.argmin(b.exp(x), dim=dim, keepdim=True))
    value, place = b.max(x, dim=dim)
    b.output("max", value)
    b.output("place", place)
    check(b.build(), {"x": values(shape, "float32")}, passes="none")


def fused(build: Any, specs: dict[str, str]) -> ir.Graph:
    """A graph of one fused node whose body ``build`` writes."""
    inner = ir.GraphBuilder("body")
    build(inner, *[inner.input(n, s) for n, s in specs.items()])
    body = inner.build()
    b = ir.GraphBuilder("outer")
    made = b.call("fused", *[b.input(n, s) for n, s in specs.items()], body=body)
    for i, value in enumerate(made if isinstance(made, tuple) else (made,)):
        b.output(f"y{i}", value)
    return b.build()


def random(graph: ir.Graph) -> dict[str, Any]:
    return {
        s.name: values(tuple(int(d) for d in s.shape), s.dtype.value, i)
        for i, s in enumerate(graph.input_specs)
    }  # type: ignore[arg-type]


def masked_softmax(b: Any, x: str, mask: str) -> None:
    scaled = b.add(b.mul(x, 0.125), b.where(mask, 0.0, -1e9))
    b.output("y", b.softmax(scaled, dim=3))


def pre_norm(b: Any, x: str, residual: str, w: str, bias: str) -> None:
    total = b.add(x, residual)
    b.output("sum", total)
    b.output("y", b.layer_norm(total, w, bias, normalized_shape=[50]))


def written_out_norm(b: Any, x: str, w: str) -> None:
    mean = b.mean(b.mul(x, x), dim=[2], keepdim=True)
    b.output("y", b.mul(b.mul(x, b.rsqrt(b.add(mean, 1e-6))), w))


def gated_mean(b: Any, x: str, gate: str) -> None:
    b.output("y", b.sigmoid(b.mean(b.mul(x, b.silu(gate)), dim=[2, 3])))


def scaled_outputs(b: Any, x: str, s: str) -> None:
    y = b.mul(x, b.unsqueeze(b.unsqueeze(s, dims=[1]), dims=[2]))
    b.output("y", b.relu(y))
    b.output("z", b.cast(b.gt(y, 0.5), dtype="int8"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("build", "specs"),
    [
        (masked_softmax, {"x": "{t}[2, 3, 4, 50]", "mask": "bool[2, 1, 1, 50]"}),
        (pre_norm, {"x": "{t}[2, 3, 50]", "r": "{t}[2, 3, 50]", "w": "{t}[50]", "b": "{t}[50]"}),
        (written_out_norm, {"x": "{t}[2, 3, 50]", "w": "{t}[50]"}),
        (gated_mean, {"x": "{t}[2, 20, 5, 7]", "gate": "{t}[2, 20, 5, 7]"}),
        (scaled_outputs, {"x": "{t}[6, 5, 7]", "s": "{t}[6]"}),
    ],
)
def test_fused_bodies(build: Any, specs: dict[str, str], dtype: str) -> None:
    graph = fused(build, {n: s.format(t=dtype) for n, s in specs.items()})
    check(graph, random(graph), passes="none", split=2)
