"""Fused layers of decoders against the interpreter: norms before products, gates after them, rotations with the cache."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.native import check, compile_native, run_native

from xpuruntime.errors import KernelUnavailable, RunError
from xpuruntime.ir import Graph, GraphBuilder, interp

LEVELS = ("cpu", "cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64-v2")
rng = np.random.default_rng(11)


def kind(dtype: str) -> Any:
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def drawn(shape: tuple[int, ...], dtype: str, factor: float = 1.0) -> np.ndarray[Any, Any]:
    return (factor * rng.standard_normal(shape)).astype(kind(dtype))


# ── norm_linear ──


Layer = tuple[int, int, int, str, bool, bool, bool, bool]
"""Rows, outputs, inputs, activation, and whether there are a norm, a bias, a residual, a gate."""
LAYERS: tuple[Layer, ...] = (
    (1, 64, 96, "none", True, True, False, False),
    (1, 40, 33, "silu", True, False, False, True),
    (3, 130, 65, "silu", True, True, False, True),
    (8, 7, 5, "gelu", True, True, True, False),
    (16, 64, 48, "none", True, False, True, False),
    (2, 96, 130, "silu", False, True, False, True),
    (5, 1, 1, "relu", True, True, False, False),
    (1, 24, 256, "sigmoid", False, False, False, True),
)


def layers(dtype: str) -> tuple[Graph, dict[str, Any], dict[str, Any]]:
    """Every layer as one program: compiling takes longer than running."""
    b, feeds, known = GraphBuilder("layers"), {}, {}

    def given(name: str, array: Any, weight: bool) -> str:
        (known if weight else feeds)[name] = array
        spec = f"{dtype}[{', '.join(map(str, array.shape))}]"
        return b.weight(name, spec) if weight else b.input(name, spec)

    for i, (m, n, k, act, norm, bias, residual, gated) in enumerate(LAYERS):
        rows = 2 * n if gated else n
        x = given(f"x{i}", drawn((1, m, k), dtype), False)
        w = given(f"w{i}", drawn((rows, k), dtype, k**-0.5), True)
        rest = [
            given(f"b{i}", drawn((rows,), dtype), True) if bias else None,
            given(f"r{i}", drawn((1, m, n), dtype), False) if residual else None,
            given(f"s{i}", drawn((k,), dtype), True) if norm else None,
        ]
        y = b.norm_linear(x, w, *rest, act=act, eps=1e-5, gated=gated)
        b.output(f"y{i}", y)
    return b.build(), feeds, known


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("target", LEVELS)
def test_layers_with_norms_and_gates(dtype: str, target: str) -> None:
    graph, feeds, known = layers(dtype)
    limit = 2e-2 if dtype == "bfloat16" else 2e-3 if dtype == "float16" else None
    check(graph, feeds, weights=known, target=target, tolerance=limit)


def test_the_same_bits_however_the_work_is_spread() -> None:
    graph, feeds, known = layers("bfloat16")
    one = run_native(graph, feeds, weights=known)
    several = run_native(graph, feeds, weights=known, split=7)
    assert all(one[n].tobytes() == several[n].tobytes() for n in one)


def test_weights_in_int8_serve_normed_and_gated_layers() -> None:
    graph, feeds, known = layers("float32")
    got = run_native(graph, feeds, weights=known, kernels={"matmul": "int8_weights"})
    rounded = {}
    for name, w in known.items():
        scale = abs(w).max(1, keepdims=True) / np.float32(127) if w.ndim == 2 else 1
        rounded[name] = (np.rint(w / scale) * scale).astype(np.float32) if w.ndim == 2 else w
    want = interp.run(graph, feeds, weights=rounded)
    assert all(abs(got[n] - want[n]).max() <= 2e-5 * abs(want[n]).max() for n in want)


def test_nan_and_infinity_spread_as_the_norm_says() -> None:
    graph, feeds, known = layers("float32")
    feeds["x0"][0, 0, 3] = np.nan
    feeds["x1"][0, 0, 0] = np.inf
    with np.errstate(invalid="ignore"):
        check(graph, feeds, weights=known)


def test_many_rows_are_refused_with_the_reason() -> None:
    b = GraphBuilder("many")
    x, w, s = b.input("x", "float32[40, 8]"), b.weight("w", "float32[8, 8]"), b.weight("s", "float32[8]")
    b.output("y", b.norm_linear(x, w, None, None, s))
    with pytest.raises(KernelUnavailable, match="at most 16 rows are supported, got 40"):
        compile_native(b.build(), {"x": drawn((40, 8), "float32")})


# ── rope_append ──


def cache(
    batch: int, heads: int, kv: int, length: int, d: int, dtype: str, *, own: bool, table: int, size: int = 0
) -> tuple[Graph, dict[str, Any], dict[str, Any]]:
    """Rotated queries, and two states that new rows enter; ``own``: each sample has places of its own. table: positions of the tables."""
    b, capacity = GraphBuilder("cache"), 24
    feeds = {
        "q": drawn((batch, length, heads, d), dtype), "k": drawn((batch, length, kv, d), dtype), "v": drawn((batch, length, kv, d), dtype),
    }  # fmt: skip
    parts = {n: b.permute(b.input(n, f"{dtype}{list(a.shape)}"), dims=[0, 2, 1, 3]) for n, a in feeds.items()}
    half = (size or d) // 2
    angles = rng.uniform(0, 6, (table, half))
    feeds |= {"cos": np.cos(angles).astype(kind(dtype)), "sin": np.sin(angles).astype(kind(dtype))}
    tables = [b.input(n, f"{dtype}[{table}, {half}]") for n in ("cos", "sin")]
    places = np.stack([rng.permutation(capacity)[:length] for _ in range(batch if own else 1)])
    feeds["places"] = places if own else places[0]
    at = b.input("places", f"int64{list(feeds['places'].shape)}")
    positions = None
    if table != length:
        feeds["positions"] = rng.integers(0, table, (batch, length))
        positions = b.input("positions", f"int64[{batch}, {length}]")
    start = {n: drawn((batch, kv, capacity, d), dtype) for n in ("keys", "values")}
    old = [b.state(n, f"{dtype}{list(a.shape)}") for n, a in start.items()]
    y, *new = b.rope_append(parts["q"], parts["k"], parts["v"], *tables, *old, at, positions, size=size)
    for state, value in zip(old, new, strict=True):
        b.set_state(state, value)
    b.output("y", y)
    return b.build(), feeds, start


CACHES: tuple[dict[str, Any], ...] = (
    {"batch": 1, "heads": 6, "kv": 2, "length": 1, "d": 16, "own": False, "table": 40},
    {"batch": 1, "heads": 4, "kv": 4, "length": 7, "d": 10, "own": False, "table": 7},
    {"batch": 3, "heads": 4, "kv": 1, "length": 5, "d": 64, "own": True, "table": 40},
    {"batch": 2, "heads": 2, "kv": 2, "length": 3, "d": 24, "own": True, "table": 9, "size": 12},
)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("case", range(len(CACHES)))
def test_rotations_and_caches(case: int, dtype: str) -> None:
    graph, feeds, start = cache(dtype=dtype, **CACHES[case])
    check(graph, feeds, states=start)


@pytest.mark.parametrize("target", LEVELS[1:])
def test_rotations_and_caches_on_other_levels(target: str) -> None:
    graph, feeds, start = cache(dtype="float32", **CACHES[2])
    check(graph, feeds, states=start, target=target, split=3)


def test_states_are_written_where_they_lie_and_nothing_is_copied() -> None:
    graph, feeds, _ = cache(dtype="float32", **CACHES[0])
    plan = compile_native(graph, feeds).entries[0].plans[0]
    roots = {b.name: b.root for b in plan.buffers}
    (call,) = [c for c in plan.calls if "rope_append" in c.ops]
    assert [roots[o] for o in call.outputs[1:]] == ["keys", "values"]
    assert not any(i in ("keys", "values") for c in plan.calls for i in c.inputs)


def test_old_contents_that_are_read_later_stay() -> None:
    b = GraphBuilder("old")
    rows = [b.input(n, "float32[1, 2, 1, 4]") for n in "qkv"]
    tables = [b.input(n, "float32[1, 2]") for n in ("cos", "sin")]
    places = b.input("places", "int64[1]")
    old = [b.state(n, "float32[1, 2, 6, 4]") for n in ("keys", "values")]
    y, *new = b.rope_append(*rows, *tables, *old, places)
    for state, value in zip(old, new, strict=True):
        b.set_state(state, value)
    b.output("y", y)
    b.output("change", b.sub(new[0], old[0]))
    feeds = {n: drawn((1, 2, 1, 4), "float32") for n in "qkv"}
    feeds |= {"cos": drawn((1, 2), "float32"), "sin": drawn((1, 2), "float32"), "places": np.array([2])}
    check(b.build(), feeds, states={n: drawn((1, 2, 6, 4), "float32") for n in ("keys", "values")})


def test_a_place_outside_the_cache_is_an_error() -> None:
    graph, feeds, start = cache(dtype="float32", **CACHES[0])
    feeds["places"] = np.array([24])
    with pytest.raises(RunError, match="24"):
        run_native(graph, feeds, states=start)
