"""Expansions compute what the op does, in every float type, and give what a target without its kernel can run."""

from __future__ import annotations

import numpy as np
import pytest
from support.graph_equivalence import difference

from xpuruntime import ir
from xpuruntime.passes import PassContext
from xpuruntime.passes.decompose import EXPANSIONS, run
from xpuruntime.types import DType

F = ("float32", "float64", "bfloat16", "float16")


def _graph(op: str, operands: list[str], dtype: str, **attrs: object) -> ir.Graph:
    b = ir.GraphBuilder(op)
    names = [b.input(f"x{i}", f"{o.replace('T', dtype)}") if o else None for i, o in enumerate(operands)]
    b.output("y", b.call(op, *names, outputs=1, **attrs))
    return b.build()


CONV = {"stride": [1], "padding": [1], "dilation": [1]}
CASES = [
    ("fused_linear", ["T[2, 3]", "T[4, 3]", "T[4]", "T[2, 4]"], {"act": "gelu_tanh"}),
    ("fused_linear", ["T[2, 3]", "T[4, 3]", "", "T[2, 4]"], {"act": "none"}),
    ("fused_convolution", ["T[2, 3, 5]", "T[4, 3, 3]", "T[4]", "T[2, 4, 5]"], {**CONV, "act": "relu6"}),
    ("fused_convolution", ["T[2, 3, 5]", "T[4, 3, 3]", "T[4]"], {**CONV, "act": "silu"}),
    ("linear", ["T[2, 5, 3]", "T[4, 3]", "T[4]"], {}),
    ("addmm", ["T[4]", "T[2, 3]", "T[3, 4]"], {"alpha": 0.5, "beta": 2.0}),
    ("addmm", ["T[4]", "T[2, 3]", "T[3, 4]"], {"beta": 0.0}),
    ("mm", ["T[2, 3]", "T[3, 4]"], {}),
    ("bmm", ["T[5, 2, 3]", "T[5, 3, 4]"], {}),
    ("silu_mul", ["T[2, 3]", "T[2, 3]"], {}),
    ("norm_linear", ["T[2, 3]", "T[4, 3]", "T[4]", "T[2, 4]", "T[3]"], {"act": "relu", "eps": 0.1}),
    ("norm_linear", ["T[2, 3]", "T[8, 3]", "T[8]", "", "T[3]"], {"act": "silu", "gated": True}),
    ("norm_linear", ["T[2, 3]", "T[8, 3]"], {"act": "gelu_tanh", "gated": True}),
    ("rms_norm", ["T[2, 3, 4]", "T[3, 4]"], {"normalized_shape": [3, 4]}),
    ("rms_norm", ["T[2, 3, 4]"], {"normalized_shape": [4]}),
    ("layer_norm", ["T[2, 3, 4]", "T[4]", "T[4]"], {"normalized_shape": [4]}),
    ("layer_norm", ["T[2, 3, 4]", "", "T[4]"], {"normalized_shape": [4]}),
    ("group_norm", ["T[2, 6, 5]", "T[6]", "T[6]"], {"groups": 3}),
    ("embedding_backward", ["T[2, 5, 4]", "int64[2, 5]"], {"num_weights": 8}),
    ("embedding_backward", ["T[2, 5, 4]", "int32[2, 5]"], {"num_weights": 8, "padding_idx": 1}),
    (
        "embedding_backward",
        ["T[7, 4]", "int64[7]"],
        {"num_weights": 8, "padding_idx": 0, "scale_by_freq": True},
    ),
    ("softmax", ["T[2, 5, 4]"], {"dim": 1}),
    ("log_softmax", ["T[2, 5, 4]"], {"dim": 2}),
    ("var", ["T[2, 5, 4]"], {"dim": [0, 2]}),
    ("var", ["T[2, 5, 4]"], {"dim": [1], "correction": 0.0, "keepdim": True}),
    ("attention", ["T[2, 3, 5, 4]", "T[2, 3, 6, 4]", "T[2, 3, 6, 7]", "T[5, 6]"], {}),
    ("attention", ["T[2, 3, 5, 4]", "T[2, 3, 6, 4]", "T[2, 3, 6, 7]", "bool[2, 1, 1, 6]"], {"scale": 0.3}),
    ("attention", ["T[2, 6, 5, 4]", "T[2, 2, 6, 4]", "T[2, 2, 6, 7]"], {}),
    ("rope", ["T[2, 3, 5, 8]", "T[5, 4]", "T[5, 4]"], {}),
    ("rope", ["T[2, 3, 5, 8]", "T[2, 5, 4]", "T[2, 5, 4]"], {"size": 8}),
]


@pytest.mark.parametrize("dtype", F)
@pytest.mark.parametrize(("op", "operands", "attrs"), CASES, ids=[f"{c[0]}_{i}" for i, c in enumerate(CASES)])
def test_expansion(op: str, operands: list[str], attrs: dict, dtype: str) -> None:
    graph = _graph(op, operands, dtype, **attrs)
    after = run(graph, PassContext(has_kernel=lambda name: name not in EXPANSIONS))
    ir.verify(after)
    assert not {n.op for n in after} & set(EXPANSIONS)
    assert after.output_specs == graph.output_specs
    assert difference(graph, after, tolerance={"float32": 1e-6, "float64": 1e-12}.get(dtype)) == ""


@pytest.mark.parametrize("dtype", F)
@pytest.mark.parametrize(
    ("keys", "mask", "attrs"),
    [
        (7, "", {"causal": True}),
        (7, "bool[2, 1, 5, 7]", {"scale": -0.3}),
        (7, "T[7]", {}),
        (0, "", {}),
        (3, "", {"causal": True, "causal_offset": -2}),
    ],
)
def test_attention_of_training(keys: int, mask: str, attrs: dict, dtype: str) -> None:
    """Backward reads the results of forward. With the offset -2, the first queries see no key."""
    b = ir.GraphBuilder("training")
    shapes = {"q": (2, 6, 5, 4), "k": (2, 2, keys, 4), "v": (2, 2, keys, 3), "grad": (2, 6, 5, 3)}
    x = {n: b.input(n, f"{dtype}{list(s)}") for n, s in shapes.items()}
    hidden = (b.input("mask", mask.replace("T", dtype)),) if mask else ()
    y, lse = b.attention_train(x["q"], x["k"], x["v"], *hidden, **attrs)
    results = b.attention_backward(x["grad"], x["q"], x["k"], x["v"], y, lse, *hidden, **attrs)
    for i, value in enumerate((y, lse, *results)):
        b.output(f"result{i}", value)
    graph = b.build()
    after = run(graph, PassContext(has_kernel=lambda name: name not in EXPANSIONS))
    ir.verify(after)
    assert not {n.op for n in after} & set(EXPANSIONS)
    assert after.output_specs == graph.output_specs
    assert difference(graph, after, tolerance={"float32": 1e-5, "float64": 1e-12}.get(dtype)) == ""


@pytest.mark.parametrize("dtype", F)
@pytest.mark.parametrize(
    ("x", "ids", "attrs"),
    [
        ((2, 3), "int64", {"act": "relu"}),
        ((2, 3), "int32", {}),
        ((2, 2, 3), "int32", {"act": "silu", "gated": True}),
    ],
)
def test_products_with_experts(x: tuple[int, ...], ids: str, attrs: dict, dtype: str) -> None:
    b = ir.GraphBuilder("experts")
    chosen = b.constant(np.array([[2, 0], [-1, 1]], ids))
    b.output(
        "y",
        b.expert_linear(
            b.input("x", f"{dtype}{list(x)}"), b.input("w", f"{dtype}[3, 8, 3]"), chosen, **attrs
        ),
    )
    graph = b.build()
    after = run(graph, PassContext(has_kernel=lambda name: name not in EXPANSIONS))
    ir.verify(after)
    assert not {n.op for n in after} & set(EXPANSIONS)
    assert difference(graph, after) == ""


@pytest.mark.parametrize("op", ["rope_append", "rope_attention"])
@pytest.mark.parametrize("places", [(2,), (3, 2)])
def test_rotations_and_caches_apart(places: tuple[int, ...], op: str) -> None:
    b = ir.GraphBuilder()
    rows = [b.input(n, f"float32[3, {h}, 2, 8]") for n, h in (("q", 4), ("k", 2), ("v", 2))]
    tables = [b.input(n, "float32[9, 4]") for n in ("cos", "sin")]
    caches = [b.input(n, "float32[3, 2, 6, 8]") for n in ("keys", "values")]
    at = b.input("at", f"int64{list(places)}")
    mask = [] if op == "rope_append" else [b.input("mask", "float32[2, 6]")]
    made = b.call(op, *rows, *tables, *caches, at, b.input("positions", "int64[3, 2]"), *mask)
    for name, value in zip("yab", made, strict=True):
        b.output(name, value)
    graph = b.build()
    after = run(graph, PassContext(has_kernel=lambda name: name not in ("rope_append", op)))
    ir.verify(after)
    rng = np.random.default_rng(0)
    feeds = {
        i.name: rng.permutation(6)[:2] * np.ones(graph.spec(i.name).shape, np.int64)
        if "int" in graph.spec(i.name).dtype.value
        else rng.standard_normal([int(d) for d in graph.spec(i.name).shape]).astype(np.float32)
        for i in graph.inputs
    }
    assert {n.op for n in after} >= {"rope", "index_copy" if len(places) == 1 else "scatter"}
    assert difference(graph, after, feeds, tolerance=1e-6) == ""


def test_batch_norm_of_statistics_that_are_computed() -> None:
    graph = _graph("batch_norm", ["T[2, 3, 4]", "T[3]", "T[3]", "T[3]", "T[3]"], "float32", eps=4.5)
    after = run(graph, PassContext(has_kernel=lambda name: name != "batch_norm"))
    feeds = {
        f"x{i}": np.random.default_rng(i).normal(size=s).astype(np.float32)
        for i, s in enumerate([(2, 3, 4)] + [(3,)] * 4)
    }
    assert difference(graph, after, feeds, tolerance=1e-6) == ""


def test_an_op_with_a_kernel_stays() -> None:
    graph = _graph("softmax", ["T[2, 5]"], "float32", dim=1)
    assert run(graph, None) is graph
    assert run(graph, PassContext(has_kernel=lambda name: name == "softmax")) is graph


def test_statistics_that_are_read_keep_the_op() -> None:
    b = ir.GraphBuilder()
    x = b.input("x", "float32[2, 3]")
    y, mean, _ = b.layer_norm(x, normalized_shape=[3], outputs=3)
    b.output("y", y)
    b.output("mean", mean)
    graph = b.build()
    assert run(graph, PassContext(has_kernel=lambda name: False)) is graph
    assert graph.output_specs[0].dtype is DType.FLOAT32
