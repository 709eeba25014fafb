"""Functions from 8-bit codes to 8-bit codes are looked up: the same results as those that are computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.native import compile_native, run_native

from xpuruntime.ir import Graph, GraphBuilder, interp
from xpuruntime.types import DType

LEVELS = ["cpu", "cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64-v2"]


def function(op: str, shape: tuple[int, ...], source: str, result: str) -> Graph:
    b = GraphBuilder("function")
    x = b.mul(
        b.sub(b.cast(b.input("x", f"{source}[{', '.join(map(str, shape))}]"), dtype=DType.FLOAT32), 3.0), 0.05
    )
    low, high = (0.0, 255.0) if result == "uint8" else (-128.0, 127.0)
    y = b.clamp(b.add(b.round(b.div(getattr(b, op)(x), 0.02)), 6.0), low, high)
    b.output("y", b.cast(y, dtype=DType(result)))
    return b.build()


def source_of(graph: Graph, feeds: dict[str, Any], target: str) -> str:
    binaries = compile_native(graph, feeds, target=target).binaries
    return "".join(x.source for x in (binaries.values() if isinstance(binaries, dict) else binaries))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("op", ["gelu", "silu", "tanh", "log"])
@pytest.mark.parametrize(("source", "result"), [("uint8", "uint8"), ("int8", "uint8"), ("uint8", "int8"), ("int8", "int8")])  # fmt: skip
def test_a_table_has_what_is_computed(op: str, source: str, result: str, target: str) -> None:
    """log gives NaN for negative values. 256 codes are too few for a table."""
    codes = np.arange(256).astype(np.uint8).view(source)
    few = function(op, (256,), source, result)
    assert "look_up(" not in source_of(few, {"x": codes}, target).split("extern")[-1]
    computed = run_native(few, {"x": codes}, target=target)["y"]
    want = interp.run(few, {"x": codes})["y"]
    known = codes.astype(int) > 3 if op == "log" else slice(None)
    assert abs(computed.astype(int) - want)[known].max() <= 1
    for size in (4096, 4096 + 77, 100_003):
        x = np.random.default_rng(size).integers(0, 256, size).astype(np.uint8).view(source)
        many = function(op, (size,), source, result)
        got = run_native(many, {"x": x}, target=target, split=3)["y"]
        assert np.array_equal(got, computed[x.view(np.uint8)])
    assert "look_up(table" in source_of(many, {"x": x}, target)


def test_operands_of_a_call_are_not_looked_up() -> None:
    """A scale that only a run knows, a float result, and a second operand."""
    x = np.zeros((2, 5000), np.uint8)
    b = GraphBuilder("others")
    codes, scale = b.input("x", "uint8[2, 5000]"), b.input("s", "float32[]")
    wide = b.mul(b.cast(codes, dtype=DType.FLOAT32), scale)
    b.output("y", b.cast(b.clamp(b.tanh(wide), 0.0, 255.0), dtype=DType.UINT8))
    assert "look_up(table" not in source_of(b.build(), {"x": x, "s": np.float32(1)}, "cpu")
    b = GraphBuilder("floats")
    b.output("y", b.tanh(b.cast(b.input("x", "uint8[2, 5000]"), dtype=DType.FLOAT32)))
    assert "look_up(table" not in source_of(b.build(), {"x": x}, "cpu")


def test_rows_with_gaps_between_them() -> None:
    """A slice of columns: the inner loop is contiguous, the whole is not."""
    b = GraphBuilder("columns")
    part = b.slice(b.input("x", "uint8[3, 9000]"), dim=1, start=1000, end=6001)
    y = b.clamp(b.round(b.mul(b.tanh(b.mul(b.cast(part, dtype=DType.FLOAT32), 0.01)), 200.0)), 0.0, 255.0)
    b.output("y", b.cast(y, dtype=DType.UINT8))
    graph, x = b.build(), np.random.default_rng(0).integers(0, 256, (3, 9000)).astype(np.uint8)
    assert "look_up(table" in source_of(graph, {"x": x}, "cpu")
    got, want = run_native(graph, {"x": x}, split=2)["y"], interp.run(graph, {"x": x})["y"]
    assert abs(got.astype(int) - want).max() <= 1
    assert (got != want).mean() < 0.01
