"""Passes of backward: 16-bit operands that are not converted, products in float32, residuals that are added by the norm's kernel."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from support.built_graphs import Feeds, graph_of

from xpuruntime import ir
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.compiler.resolve import resolve_target
from xpuruntime.decisions import Reason, Support
from xpuruntime.ir import interp
from xpuruntime.kernels.cuda.matmul import libraries
from xpuruntime.passes import PassContext, run_passes
from xpuruntime.types import DType

CONTEXT = PassContext(wide_products=True)


def operands(**specs: str) -> Feeds:
    """Return random values by ``dtype[shape]``."""
    rng = np.random.default_rng(3)
    feeds = {}
    for name, spec in specs.items():
        dtype, _, shape = spec.rstrip("]").partition("[")
        sizes = tuple(int(n) for n in shape.split(",") if n)
        feeds[name] = np.abs(rng.standard_normal(sizes)).astype(DType(dtype).numpy)
    return feeds


def ops_after(
    name: str, graph: ir.Graph, feeds: Feeds, tolerance: float, context: PassContext = CONTEXT
) -> Counter[str]:
    """Run a pass, compare results, and return how often each op is in the graph."""
    after = run_passes(graph, [name, "clean_up"], context=context, check=True)
    expected, results = interp.run(graph, feeds), interp.run(after, feeds)
    for key, value in expected.items():
        assert value.dtype == results[key].dtype
        assert value.shape == results[key].shape
        np.testing.assert_allclose(
            results[key].astype(np.float64), value.astype(np.float64), rtol=tolerance, atol=tolerance
        )
    return Counter(n.op for n in after.nodes)


def refuses(graph: ir.Graph, node: ir.Node) -> Support:
    return Support.no(Reason.OP_UNSUPPORTED, "no kernel in this test")


# ── scatters ──


def scattered(
    swapped: bool = False, accumulate: bool = True, start: float = 0.0, twice: bool = False
) -> tuple[ir.Graph, Feeds]:
    """Return a sum with values that are scattered into a table, and its feeds; two values have one position."""
    feeds = operands(x="float32[5,3]", v="float32[4,3]") | {"i": np.array([4, 0, 4, 2])}

    def nodes(b: ir.GraphBuilder, x: str, v: str, i: str) -> list[str]:
        table = b.index_put(b.full(size=[5, 3], value=start, dtype="float32"), v, i, accumulate=accumulate)
        y = b.add(table, b.neg(x)) if swapped else b.add(b.neg(x), table)
        return [y, table] if twice else [y]

    return graph_of(nodes, feeds), feeds


@pytest.mark.parametrize("swapped", [False, True])
def test_values_are_scattered_into_the_other_operand_of_a_sum(swapped: bool) -> None:
    assert ops_after("scatter_into_sum", *scattered(swapped), 1e-6) == {"neg": 1, "index_put": 1}


@pytest.mark.parametrize("change", [{"accumulate": False}, {"start": 0.5}, {"twice": True}])
def test_other_scatters_stay(change: dict[str, Any]) -> None:
    """Values that replace, a table that is not zero, a table that something else reads."""
    assert ops_after("scatter_into_sum", *scattered(**change), 1e-6)["add"] == 1


# ── products ──


def test_a_converted_product_is_computed_in_float32() -> None:
    feeds = operands(a="bfloat16[5,7]", e="bfloat16[7,3]", c="float32[5,3]")
    converted = graph_of(lambda b, a, c, **x: [b.cast(b.mm(a, x["e"]), dtype="float32"), b.neg(c)], feeds)
    assert ops_after("widen_products", converted, feeds, 1e-2) == {"mm_wide": 1, "neg": 1}
    added = graph_of(lambda b, a, c, **x: [b.add(c, b.cast(b.mm(a, x["e"]), dtype="float32"))], feeds)
    assert ops_after("widen_products", added, feeds, 1e-2) == {"mm_wide": 1}


def test_the_wide_product_is_nearer_to_the_exact_one() -> None:
    feeds = operands(a="bfloat16[9,33]", e="bfloat16[33,5]")
    graph = graph_of(lambda b, a, **x: [b.cast(b.mm(a, x["e"]), dtype="float32")], feeds)
    after = run_passes(graph, ["widen_products", "clean_up"], context=CONTEXT)
    exact = feeds["a"].astype(np.float64) @ feeds["e"].astype(np.float64)
    wide, narrow = (np.abs(interp.run(g, feeds)["y0"] - exact).max() for g in (after, graph))
    assert wide < 0.01 * narrow


def test_products_that_something_else_reads_stay() -> None:
    feeds = operands(a="bfloat16[5,7]", e="bfloat16[7,3]", c="float32[3]", d="float32[5,3]")

    def both(b: Any, a: str, c: str, d: str, **x: str) -> list[str]:
        y = b.mm(a, x["e"])
        return [b.cast(y, dtype="float32"), y, b.add(c, b.cast(b.mm(a, x["e"]), dtype="float32")), b.neg(d)]

    ops = ops_after("widen_products", graph_of(both, feeds), feeds, 1e-2)
    assert ops["mm"] == 1
    assert ops["add"] == 1  # a row is not a matrix to add
    plain = graph_of(lambda b, a, c, d, **x: [b.cast(b.mm(a, x["e"]), dtype="float32")], feeds)
    for context in (PassContext(), PassContext(wide_products=True, computes=refuses)):
        assert "mm_wide" not in ops_after("widen_products", plain, feeds, 1e-2, context)


def test_only_backward_on_cuda_has_wide_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward must compute what a session computes; a target without the library keeps the conversion."""
    feeds = operands(a="bfloat16[16,24]", e="bfloat16[24,8]")
    graph = graph_of(lambda b, a, **x: [b.cast(b.mm(a, x["e"]), dtype="float32")], feeds)

    def ops(phase: str) -> set[str]:
        program = compile_graph(graph, target=resolve_target("cuda:sm_90"), phase=phase)
        return {op for call in program.entries[0].plans[0].calls for op in call.ops}

    monkeypatch.setattr(libraries, "installed", lambda library: False)
    assert ops("train_backward") == {"mm", "cast"}
    monkeypatch.setattr(libraries, "installed", lambda library: True)
    assert ops("train_backward") == {"mm_wide"}
    assert ops("train_forward") == ops("inference") == {"mm", "cast"}


# ── norms ──


def norm_backward(b: Any, v: dict[str, str], grad: str) -> Any:
    return b.layer_norm_backward(
        grad, v["x"], v["mean"], v["root"], v["w"], v["w"], normalized_shape=[6], outputs=3
    )


NORM = {
    "grad": "bfloat16[4,6]",
    "x": "float32[4,6]",
    "mean": "float32[4,1]",
    "root": "float32[4,1]",
    "w": "float32[6]",
    "r": "float32[4,6]",
}


def test_a_norms_gradient_reads_narrow_values() -> None:
    feeds = operands(**NORM)
    graph = graph_of(
        lambda b, **v: [*norm_backward(b, v, b.cast(v["grad"], dtype="float32")), b.neg(v["r"])], feeds
    )
    assert ops_after("narrow_operands", graph, feeds, 1e-6) == {"layer_norm_backward": 1, "neg": 1}
    refused = PassContext(computes=refuses)
    assert ops_after("narrow_operands", graph, feeds, 1e-6, refused)["cast"] == 1


def test_a_residual_joins_the_norms_gradient() -> None:
    feeds = operands(**{**NORM, "grad": "float32[4,6]"})

    def step(b: Any, **v: str) -> list[str]:
        grad, dw, db = norm_backward(b, v, v["grad"])
        total = b.add(v["r"], grad)
        return [total, b.cast(total, dtype="bfloat16"), dw, db]

    assert ops_after("fuse_norm_backward", graph_of(step, feeds), feeds, 1e-6) == {
        "layer_norm_backward_add": 1
    }

    def twice(b: Any, **v: str) -> list[str]:
        first = step(b, **v)
        return [*first, *step(b, **{**v, "r": first[0]})]

    assert ops_after("fuse_norm_backward", graph_of(twice, feeds), feeds, 1e-6) == {
        "layer_norm_backward_add": 2
    }


def test_gradients_that_cannot_be_fused_stay() -> None:
    feeds = operands(**{**NORM, "grad": "float32[4,6]"})

    def read_again(b: Any, **v: str) -> list[str]:
        grad, dw, db = norm_backward(b, v, v["grad"])
        total = b.add(v["r"], grad)
        return [grad, b.cast(total, dtype="bfloat16"), dw, db]

    def after_its_own_sums(b: Any, **v: str) -> list[str]:
        grad, dw, db = norm_backward(b, v, v["grad"])
        total = b.add(b.mul(v["r"], dw), grad)  # would wait for itself
        return [b.cast(total, dtype="bfloat16"), db]

    for build in (read_again, after_its_own_sums):
        assert "layer_norm_backward_add" not in ops_after(
            "fuse_norm_backward", graph_of(build, feeds), feeds, 1e-6
        )


def test_a_norm_with_statistics_joins_its_neighbors() -> None:
    """In training, the sum before a norm and the conversion after it are one kernel with it, which also returns the statistics."""
    feeds = operands(x="float32[5,33]", r="bfloat16[5,33]", w="float32[33]")

    def step(b: Any, x: str, r: str, w: str) -> list[str]:
        total = b.add(x, b.cast(r, dtype="float32"))
        y, mean, root = b.layer_norm(total, w, w, normalized_shape=[33], outputs=3)
        return [total, b.cast(y, dtype="bfloat16"), mean, root]

    assert ops_after("fuse_pointwise", graph_of(step, feeds), feeds, 1e-6) == {"fused": 1}


def test_wide_statistics_of_a_narrow_norm() -> None:
    feeds = operands(x="bfloat16[5,33]", w="bfloat16[33]")
    for wide, dtype in ((True, "float32"), (False, "bfloat16")):
        graph = graph_of(
            lambda b, x, w, wide=wide: b.layer_norm(
                x, w, w, normalized_shape=[33], wide_statistics=wide, outputs=3
            ),
            feeds,
        )
        assert [graph.spec(o.value).dtype.value for o in graph.outputs] == [
            "bfloat16",
            dtype,
            dtype,
        ]
        results = interp.run(graph, feeds)
        exact = feeds["x"].astype(np.float64)
        error = np.abs(results["y1"].astype(np.float64)[:, 0] - exact.mean(1)).max()
        assert bool(error < 1e-6) is wide
