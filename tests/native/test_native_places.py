"""Places that other tensors name, in whole programs: an index outside fails the run and says so, states are written in place."""

from __future__ import annotations

import numpy as np
import pytest
from support.device_under_test import device_of
from support.native import check, compile_native

from xpuruntime import ir
from xpuruntime.errors import IrError, RunError
from xpuruntime.ir import interp
from xpuruntime.runtime import Executor


def gathering() -> ir.Graph:
    b = ir.GraphBuilder("gathering")
    x, i = b.input("x", "float32[3, 4]"), b.input("i", "int64[5]")
    b.output("y", b.index_select(x, i, dim=0))
    return b.build()


@pytest.mark.parametrize("threads", [1, 2])
def test_an_index_outside_fails_that_run_only(threads: int) -> None:
    x, good = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([0, -1, 2, 1, -3])
    program = compile_native(gathering(), {"x": x, "i": good})
    with Executor(program, device_of(program), threads=threads) as executor:
        for bad in (3, -4, 2**40):
            with pytest.raises(RunError, match=rf"index {bad} is outside a dim of 3"):
                executor.run_arrays([x, np.array([0, 1, bad, 1, 0])])
            (y,) = executor.run_arrays([x, good])
            assert np.array_equal(y, x[good])


READS = {
    "index_select": {"dim": 0},
    "index_select, no wrap": {"dim": 0, "wrap": False},
    "embedding": {},
    "gather": {"dim": 0},
    "gather_nd": {},
}


@pytest.mark.parametrize("name", READS)
def test_an_index_outside_is_reported_as_it_was_given(name: str) -> None:
    op, wraps = name.partition(",")[0], READS[name].get("wrap", True)
    shape = {"gather": (2, 4), "gather_nd": (2, 1)}.get(op, (2,))
    b = ir.GraphBuilder("places")
    x, i = b.input("x", "float32[7, 4]"), b.input("i", f"int64{list(shape)}")
    b.output("y", b.call(op, x, i, **READS[name]))
    feeds = {"x": np.arange(28, dtype=np.float32).reshape(7, 4), "i": np.full(shape, 6)}
    graph = b.build()
    check(graph, feeds)
    program = compile_native(graph, feeds)
    with Executor(program, device_of(program)) as executor:
        for bad in (-12, -8, 7) if wraps else (-12, -5, -1, 7):
            wrong = {**feeds, "i": np.full(shape, bad)}
            with pytest.raises(RunError, match=rf"index {bad} is outside a dim of 7"):
                executor.run_arrays(list(wrong.values()))
            with pytest.raises(IrError, match=rf"index {bad} is out of range for a dim of 7"):
                interp.run(graph, wrong)


def test_values_that_do_not_fit_a_mask_fail_the_run() -> None:
    b = ir.GraphBuilder("masked")
    x, m, s = b.input("x", "float32[4]"), b.input("m", "bool[4]"), b.input("s", "float32[2]")
    b.output("y", b.masked_scatter(x, m, s))
    feeds = [np.zeros(4, np.float32), np.ones(4, bool), np.ones(2, np.float32)]
    program = compile_native(b.build(), dict(zip("xms", feeds, strict=True)))
    with (
        Executor(program, device_of(program)) as executor,
        pytest.raises(RunError, match="needs 3 elements, but there are 2"),
    ):
        executor.run_arrays(feeds)


@pytest.mark.parametrize("passes", ["none", "all"])
def test_a_cache_is_written_in_place_and_right(passes: str) -> None:
    b = ir.GraphBuilder("cache")
    new, at = b.input("new", "float32[2, 1, 4]"), b.input("at", "int64[1]")
    cache = b.state("cache", "float32[2, 8, 4]")
    after = b.index_copy(cache, at, new, dim=1)
    b.set_state("cache", after)
    b.output("sum", b.sum(after, dim=[1]))
    rng = np.random.default_rng(0)
    feeds = {"new": rng.standard_normal((2, 1, 4)).astype(np.float32), "at": np.array([5])}
    states = {"cache": rng.standard_normal((2, 8, 4)).astype(np.float32)}
    check(b.build(), feeds, states=states, passes=passes)


@pytest.mark.parametrize("passes", ["none", "all"])
def test_an_operand_is_computed_in_the_memory_of_an_output(passes: str) -> None:
    """An operand that is dead after an in-place op needs no memory of its own, and no copy, when the result is an output."""
    b = ir.GraphBuilder("owner")
    x, v, i = b.input("x", "float32[6, 5]"), b.input("v", "float32[4, 5]"), b.input("i", "int64[4]")
    b.output("y", b.index_put(b.view(b.neg(b.view(x, size=[30])), size=[6, 5]), v, i, accumulate=True))
    rng = np.random.default_rng(2)
    feeds = {
        "x": rng.standard_normal((6, 5)).astype(np.float32),
        "v": np.ones((4, 5), np.float32),
        "i": np.array([5, 0, 5, 3]),
    }
    graph = b.build()
    check(graph, feeds, passes=passes)
    calls = compile_native(graph, feeds, passes=passes).entries[0].plans[0].calls
    assert not any(c.symbol.startswith("stays") for c in calls)


@pytest.mark.parametrize("passes", ["none", "all"])
def test_parts_written_into_operands_that_are_read_again(passes: str) -> None:
    """The result of a write may not take the memory of an operand that somebody still reads."""
    b = ir.GraphBuilder("twice")
    x, p, i = b.input("x", "float32[6, 5]"), b.input("p", "float32[2, 5]"), b.input("i", "int64[2]")
    base = b.mul(x, 2.0)
    first = b.slice_scatter(base, p, dim=0, start=1, end=3)
    second = b.index_copy(base, i, p, dim=0)
    third = b.index_put(first, p, i, accumulate=True)
    for name, value in (("a", first), ("b", second), ("c", third), ("d", b.add(base, third))):
        b.output(name, value)
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.standard_normal((6, 5)).astype(np.float32),
        "p": rng.standard_normal((2, 5)).astype(np.float32),
        "i": np.array([4, -6]),
    }
    check(b.build(), feeds, passes=passes, split=3)
