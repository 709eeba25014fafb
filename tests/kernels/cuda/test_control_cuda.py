"""Control flow on CUDA, which has no kernel for it: short loops are written out, and both branches of a cond are computed and selected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.control_models import nested_model
from support.native import check

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import KernelUnavailable
from xpuruntime.frontends.onnx import import_onnx
from xpuruntime.ir import Graph, GraphBuilder, interp
from xpuruntime.ir.ops.control import CONTROL
from xpuruntime.passes import PassContext, inline_control
from xpuruntime.testing.emulation.cuda_host import cuda_host

pytest.importorskip("onnx")
TARGET = cuda_host()
WITHOUT = PassContext(has_kernel=lambda op: op not in CONTROL)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(20))
def test_nested_graphs(seed: int) -> None:
    """The graphs that ``tests/frontends/test_onnx_control.py`` compares with ONNX Runtime."""
    model, feeds = nested_model(seed)
    graph, weights = import_onnx(model)
    check(graph, feeds, weights=weights, target=TARGET)


def countdown(trips: int) -> Graph:
    """Halve x until its sum is below a limit, at most so many times, and count."""
    body = GraphBuilder("body")
    body.input("i", "int64[]")
    x, n, limit = body.input("x", "float32[4]"), body.input("n", "int64[]"), body.input("limit", "float32[]")
    half = body.mul(x, 0.5)
    body.output("on", body.gt(body.sum(half, dim=[0], keepdim=False), limit))
    body.output("half", half)
    body.output("count", body.add(n, 1))
    b = GraphBuilder("countdown")
    x, going, limit = b.input("x", "float32[4]"), b.input("going", "bool[]"), b.input("limit", "float32[]")
    zero = b.constant(np.array(0, np.int64))
    results = b.call(
        "loop", None, going, x, zero, limit, body=body.build(), carried=2, trips=trips, checked=True
    )
    for name, value in zip(("x_out", "n"), results, strict=True):
        b.output(name, value)
    return b.build()


def test_a_loop_that_ends_early() -> None:
    """At the first iteration, before it, in the middle, and at the limit; NaN ends it, and infinity does not."""
    graph = countdown(6)
    inlined = inline_control.run(graph, WITHOUT)
    assert not any(n.op in CONTROL for n in inlined.nodes)
    for first in (1.0, 3.0, 100.0, np.nan, np.inf):
        for going in (True, False):
            feeds: dict[str, Any] = {
                "x": np.array([first, 0, 0, 0], np.float32), "going": np.array(going), "limit": np.array(1, np.float32),
            }  # fmt: skip
            expected, actual = (interp.run(g, feeds) for g in (graph, inlined))
            for name, value in expected.items():
                np.testing.assert_array_equal(actual[name], value)
    check(graph, feeds | {"x": np.array([100, 0, 0, 0], np.float32)}, target=TARGET)


def test_what_may_fail_or_is_too_long_stays() -> None:
    """An index that only a run knows must not be read in a branch that is not taken."""
    with pytest.raises(KernelUnavailable, match="no kernel computes this op"):
        compile_graph(countdown(4096), target=TARGET)
    then, other = GraphBuilder("then"), GraphBuilder("other")
    for branch in (then, other):
        x, i = branch.input("x", "float32[4]"), branch.input("i", "int64[2]")
        branch.output(
            "y",
            branch.index_select(x, i, dim=0) if branch is then else branch.slice(x, dim=0, start=0, end=2),
        )
    b = GraphBuilder("choice")
    x, i, c = b.input("x", "float32[4]"), b.input("i", "int64[2]"), b.input("c", "bool[]")
    b.output("y", b.call("cond", c, x, i, then_branch=then.build(), else_branch=other.build()))
    graph = b.build()
    assert inline_control.run(graph, WITHOUT) is graph
    with pytest.raises(KernelUnavailable, match="cond"):
        compile_graph(graph, target=TARGET)
