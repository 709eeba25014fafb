"""Constants of entry points: each keeps its own, whatever they are called; ranges and angles are made at load."""

from __future__ import annotations

import numpy as np
from support.native import check

from xpuruntime import ir
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.compiler.control import apart
from xpuruntime.ir import GraphBuilder, Weight, interp
from xpuruntime.ir.graph import Value
from xpuruntime.runtime import Executor
from xpuruntime.types import DType


def test_constants_of_one_name_in_two_entry_points_stay_apart() -> None:
    graphs = {}
    for n in (2, 3):
        b = GraphBuilder("g")
        x = b.input("x", f"float32[{n}]")
        b.output("y", b.add(x, b.constant(np.arange(n, dtype=np.float32) + n)))
        graphs[f"n{n}"] = b.build()
    program = compile_graph(graphs)
    for n in (2, 3):
        executor = Executor(program, entry=f"n{n}")
        executor.bind({})
        (y,) = executor.run_arrays([np.zeros(n, np.float32)])
        assert y.tolist() == (np.arange(n) + n).tolist()


def test_tables_of_angles_are_made_when_weights_are_loaded() -> None:
    b = GraphBuilder("angles")
    rows, columns = 5000, 3
    x = b.input("x", f"bfloat16[{rows}, {columns}]")
    places = b.view(b.arange(end=rows, dtype=DType.FLOAT32), size=[rows, 1])
    angles = b.mul(places, b.constant(np.array([[1, 0.1, 0.003]], np.float32)))
    for name, op in (("cos", b.cos), ("sin", b.sin)):
        b.output(name, b.add(x, b.cast(op(angles), dtype=DType.BFLOAT16)))
    program = compile_graph(b.build())
    calls = program.entries[0].plans[0].calls
    assert all(set(c.ops) <= {"add"} for c in calls), calls
    executor = Executor(program)
    executor.bind({})
    kind = DType.BFLOAT16.numpy
    got = executor.run_arrays([np.zeros((rows, columns), kind)])
    wide = np.arange(rows, dtype=np.float32)[:, None] * np.array([[1, 0.1, 0.003]], np.float32)
    for y, function in zip(got, (np.cos, np.sin), strict=True):
        assert np.array_equal(y, function(wide.astype(np.float64)).astype(np.float32).astype(kind))


def test_a_slice_of_a_weight_may_begin_at_its_end() -> None:
    """The position embeddings of yolos begin 100 from the end."""
    b = GraphBuilder("late")
    x, w = b.input("x", "float32[2, 3]"), b.weight("w", "float32[5, 3]")
    b.output("y", b.add(x, b.slice(w, dim=0, start=-2, end=None, step=1)))
    check(
        b.build(),
        {"x": np.ones((2, 3), np.float32)},
        weights={"w": np.arange(15, dtype=np.float32).reshape(5, 3)},
    )


def test_values_of_a_body_with_the_names_of_its_weights_get_different_names() -> None:
    body = ir.parse("""
    graph "body" {
      input %p: float32[2]
      input %q: float32[2]
      %w: float32[2] = add(%p, %q)
      %w_: float32[2] = mul(%w, %q)
      %sum: float32[2] = add(%w, %w_)
      output "y" = %sum
    }
    """)
    weights = [Weight(Value(name, v.spec)) for name, v in zip(("w", "w_"), body.inputs, strict=True)]
    bound = apart(body, weights)
    arrays = {"w": np.float32([1, 2]), "w_": np.float32([3, 4])}
    assert (bound.inputs, [w.name for w in bound.weights]) == ((), ["w", "w_"])
    assert interp.run(bound, {}, weights=arrays)["y"].tolist() == [16.0, 30.0]
