"""Attention that turns its queries and writes the cache on CUDA: the kernel's own text on a CPU, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cuda_kernels import call_of
from support.native import check, compile_native, run_native

from xpuruntime.codegen.cuda.nvrtc import nvrtc_toolchain
from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.errors import BuildError, RunError
from xpuruntime.ir import Graph, GraphBuilder, interp
from xpuruntime.kernels.cuda.attention import decode, decode_append
from xpuruntime.kernels.cuda.attention.decode_append import RopeAttention
from xpuruntime.kernels.kernel import NodeCall
from xpuruntime.numerics import compare, tolerance_for
from xpuruntime.testing.emulation.cuda_host import cuda_host
from xpuruntime.testing.emulation.launches import emulate
from xpuruntime.types import DType

Feeds = dict[str, Any]


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    return rng.standard_normal(shape).astype(getattr(ml_dtypes, dtype, dtype))


def step(
    batch: int = 1, heads: int = 6, kv: int = 2, new: int = 1, d: int = 64, dv: int = 0, capacity: int = 200, dtype: str = "bfloat16", *,
    places: Any = None, indexed: bool = True, mask: Any = None, size: int = 0, seed: int = 5, **attrs: Any,
) -> tuple[Graph, Feeds, Feeds]:  # fmt: skip
    """A graph of one node over two states, its inputs, and what the states hold. Heads come as a product leaves them: innermost but one."""
    b, rng, dv = GraphBuilder("step"), np.random.default_rng(seed), dv or d
    shapes = {"q": (batch, heads, new, d), "k": (batch, kv, new, d), "v": (batch, kv, new, dv)}
    feeds: Feeds = {n: drawn(rng, s, dtype) for n, s in shapes.items()}
    angles = rng.uniform(0, 6, (capacity + 9 if indexed else new, (size or d) // 2))
    feeds |= {n: f(angles).astype(feeds["q"].dtype) for n, f in (("cos", np.cos), ("sin", np.sin))}
    old = {
        "keys": drawn(rng, (batch, kv, capacity, d), dtype),
        "values": drawn(rng, (batch, kv, capacity, dv), dtype),
    }
    states = [b.state(n, f"{dtype}{list(a.shape)}") for n, a in old.items()]
    feeds["places"] = np.array(rng.permutation(capacity)[:new] if places is None else places)
    if indexed:
        feeds["positions"] = rng.integers(0, capacity + 9, (batch, new))
    if mask is not None:
        feeds["mask"] = mask
    names = {n: b.input(n, f"{DType.of(a.dtype)}{list(a.shape)}") for n, a in feeds.items()}
    y, *after = b.rope_attention(
        *(names[n] for n in ("q", "k", "v", "cos", "sin")), *states, names["places"], names.get("positions"), names.get("mask"),
        size=size, **attrs,
    )  # fmt: skip
    b.output("y", y)
    for state, value in zip(states, after, strict=True):
        b.set_state(state, value)
    return b.build(), feeds, old


CASES: tuple[dict[str, Any], ...] = (
    {},
    {"d": 128, "heads": 12, "places": [127]},  # the last of a split
    {"d": 128, "heads": 12, "places": [128], "dtype": "float16"},  # the first of the next
    {"d": 40, "dv": 24, "heads": 8, "places": [199]},  # the last place; halves in no chunks
    {"d": 80, "heads": 3, "kv": 3, "new": 5, "places": [62, 63, 64, 65, 0]},
    {
        "d": 64,
        "heads": 16,
        "new": 8,
        "places": list(range(120, 128)),
        "causal": True,
        "causal_offset": 120,
    },  # four blocks of rows
    {"batch": 3, "heads": 4, "kv": 1, "new": 2, "places": [[7, 8], [150, 64], [63, 199]], "indexed": False},
    {"d": 48, "size": 16, "heads": 7, "kv": 7, "capacity": 70},
    {"d": 20, "heads": 5, "kv": 1, "capacity": 33, "softcap": 7.0},
    {"d": 64, "new": 3, "places": [9, 9, 80]},  # the later of two at one place stays
    {"d": 32, "heads": 2, "kv": 1, "capacity": 1700, "places": [1699]},  # parts joined group by group
)


Way = Callable[[decode.DecodeTileConfig, int], decode.DecodeTileConfig]
WAYS: dict[str, Way] = {
    "two tiles": lambda c, k: decode.clustered(c, k, max_warps=2),
    "two blocks of sixteen rows": lambda c, k: replace(
        decode.clustered(c, k, 2), narrow=False, tiles_per_step=1
    ),
    "in memory, narrow": lambda c, k: replace(c, narrow=c.rows <= 8),
}


def masks(new: int, capacity: int) -> list[Any]:
    """A window that holds the new places; one that hides them; numbers."""
    at = np.arange(capacity).reshape(1, 1, 1, -1)
    return [
        np.broadcast_to((at > 90) & (at <= 140), (1, 1, new, capacity)),
        at < 40,
        drawn(np.random.default_rng(1), (1, 1, new, capacity), "bfloat16"),
    ]


def judged(
    call: NodeCall, graph: Graph, feeds: Feeds, old: Feeds, shift: int = 0, target: str = "cuda:sm_90"
) -> None:
    """The launch on the emulator, which holds what it reads to the order of launches; caches are copied by launches before it."""
    to = cuda_target(target)
    assert RopeAttention().supports(call, to)
    lowered = RopeAttention().lower(call, to)
    got = emulate(lowered, call, to, feeds | old, shift)
    states = {n: a.copy() for n, a in old.items()}
    y = interp.run(graph, feeds, states=states)["y"]
    for name, ours, want in zip(("y", "keys", "values"), got, (y, *states.values()), strict=True):
        verdict = compare(name, ours, want, tolerance_for(DType.of(want.dtype)))
        assert verdict.ok, f"{verdict.reason} ({verdict.max_rel})"
    assert np.array_equal(got[2], states["values"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("case", "shift"), [*((i, 0) for i in range(len(CASES))), (2, 1), (4, 1)])
def test_one_launch_turns_writes_and_attends(case: int, shift: int) -> None:
    graph, feeds, old = step(**CASES[case])
    judged(call_of(graph, {}), graph, feeds, old, shift)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", [1, 5, 10])
def test_without_clusters_parts_meet_in_memory(case: int) -> None:
    graph, feeds, old = step(**CASES[case])
    (stage,) = RopeAttention().lower(call_of(graph, {}), cuda_target("cuda:sm_80")).stages[-1:]
    assert "cluster" not in stage.options
    assert "counters" in stage.args
    judged(call_of(graph, {}), graph, feeds, old, target="cuda:sm_80")


def test_a_cluster_has_all_keys_of_a_head() -> None:
    """Up to eight blocks, which need no memory to meet in; more keys than they have under way at once meet in memory."""
    for capacity, blocks in ((100, 1), (1088, 8), (2048, 8), (2049, 0)):
        graph, _, _ = step(d=128, capacity=capacity)
        lowered = RopeAttention().lower(call_of(graph, {}), cuda_target("cuda:sm_90"))
        (stage,) = lowered.stages[-1:]
        assert stage.options.get("cluster") == ([blocks, 1, 1] if blocks > 1 else None), capacity
        assert bool(lowered.counters) == (blocks == 0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", [1, 4, 6])
@pytest.mark.parametrize("way", list(WAYS))
def test_other_cuts_compute_the_same(monkeypatch: pytest.MonkeyPatch, way: str, case: int) -> None:
    """What benchmarks/cuda/decoder_breakdown.py measures."""
    monkeypatch.setattr(
        decode_append,
        "append_tile_config",
        lambda s, t: WAYS[way](decode.decode_tile_config(s, t, 128), s.keys),
    )
    graph, feeds, old = step(**CASES[case])
    judged(call_of(graph, {}), graph, feeds, old)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("which", "new"), [(0, 1), (0, 3), (1, 1), (2, 3)])
def test_masks(which: int, new: int) -> None:
    graph, feeds, old = step(new=new, places=range(133, 133 + new), mask=masks(new, 200)[which])
    judged(call_of(graph, {}), graph, feeds, old)


@pytest.mark.parametrize("case", [0, 4, 6])
def test_whole_programs_write_states_where_they_lie(case: int) -> None:
    graph, feeds, old = step(**CASES[case])
    check(graph, feeds, states=old, target=cuda_host(), passes="none")
    plan = compile_native(graph, feeds, target=cuda_host(), passes="none").entries[0].plans[0]
    calls = [c for c in plan.calls if c.kernel != "create/fill"]
    assert [c.kernel for c in calls] == ["attention/flash_decode"]
    roots = {b.name: b.root for b in plan.buffers}
    assert {"keys", "values"} <= {roots[o] for o in calls[0].outputs}


def test_a_place_outside_the_cache_is_an_error() -> None:
    graph, feeds, old = step(places=[200])
    with pytest.raises(RunError, match="200"):
        run_native(graph, feeds, states=old, target=cuda_host(), passes="none")


@pytest.mark.parametrize(("case", "why"), [
    ({"dtype": "float32"}, "tensor cores multiply float16 and bfloat16, not float32"),
    ({"new": 9, "heads": 2}, "at most 8 new tokens are supported, got 9"),
    ({"heads": 18, "new": 8}, "at most 64 queries per key head are supported for 8 queries of a head and 200 keys, got 72"),
])  # fmt: skip
def test_what_is_refused_has_a_reason(case: dict[str, Any], why: str) -> None:
    graph, _, _ = step(**case)
    assert RopeAttention().supports(call_of(graph, {}), cuda_target("cuda:sm_80")).reason == why


@pytest.mark.sampled(1, one_in=2)
@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
def test_every_shape_compiles(level: str) -> None:
    try:
        toolchain = nvrtc_toolchain()
    except BuildError as error:
        pytest.skip(str(error))
    target = cuda_target(f"cuda:{level}")
    functions: dict[str, str] = {}
    parts: set[str] = set()
    for case in CASES:
        graph, _, _ = step(**case)
        for stage in RopeAttention().lower(call_of(graph, {}), target).stages:
            functions[f"kernel_{len(functions)}"] = stage.source
            parts |= stage.parts
            assert stage.options["shared"] <= target.config.smem_per_block
    made = toolchain.build(target.source(functions, parts), target.sm.architecture)
    assert all(f".text.{name}".encode() in made for name in functions)
