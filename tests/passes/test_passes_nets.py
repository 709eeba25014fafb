"""All passes on seeded networks: outputs stay, dispatches fall to what the architecture needs, a second run changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from xpuruntime import ir
from xpuruntime.errors import IrError
from xpuruntime.ir import interp
from xpuruntime.numerics import compare
from xpuruntime.passes import find_passes, run_passes
from xpuruntime.passes._lib.known import known_values
from xpuruntime.passes.trace import dispatches, trace_passes, trace_table
from xpuruntime.types import DType

pytest.importorskip("torch")
pytest.importorskip("transformers")

from xpuruntime.frontends.onnx import import_onnx
from xpuruntime.testing.conformance.seeded import networks as models
from xpuruntime.testing.conformance.seeded.export import export_onnx

MODELS = Path(__file__).parents[2] / "build" / "models"

# Kernels per network, and ops that no kernel may be left of.
WANTED = {
    "resnet18": (23, "batch_norm relu add"),
    "resnet50": (56, "batch_norm relu add"),
    "mobilenet_v2": (36, "batch_norm clamp add"),
    "efficientnet_b0": (73, "batch_norm sigmoid silu add"),
    "densenet121": (54, "batch_norm relu add mul"),
    "vit": (23, "matmul softmax isnan where gelu"),
    "bert": (25, "matmul softmax isnan gelu gather_nd"),
    "qwen2": (31, "matmul softmax isnan where sigmoid rsqrt cat expand"),
}


@pytest.fixture(scope="module", params=WANTED)
def net(request: pytest.FixtureRequest):
    name = request.param
    graph, weights = import_onnx(export_onnx(name, MODELS / f"{name}.onnx"))
    return name, graph, weights


def _run(graph: ir.Graph, name: str, weights) -> np.ndarray:
    return interp.run(graph, models.inputs(name, 1, seed=5), weights=weights)["scores"]


@pytest.mark.sampled(1)
def test_outputs_stay_and_dispatches_fall(net) -> None:
    name, graph, weights = net
    after = run_passes(graph, check=True)
    most, gone = WANTED[name]
    assert dispatches(after) <= most
    known = known_values(after)
    assert not {n.op for n in after if n.name not in known} & set(gone.split())
    found = compare(name, _run(after, name, weights), _run(graph, name, weights), 1e-5)
    assert found.ok, found.reason
    assert run_passes(after, check=True) == after


@pytest.mark.sampled(1)
def test_every_kernel_says_where_it_comes_from(net) -> None:
    _, graph, _ = net
    after = run_passes(graph)
    known = {s for n in graph for s in n.sources}
    for node in after:
        assert node.sources or node.op == "constant"
        assert set(node.sources) <= known


@pytest.mark.sampled(2)
def test_levels_and_names(net) -> None:
    name, graph, _ = net
    assert run_passes(graph, 0) is graph
    counts = [dispatches(run_passes(graph, level)) for level in ("none", "basic", "extended", "all")]
    assert counts == sorted(counts, reverse=True)
    one = run_passes(graph, ["fold_batch_norm"])
    if name.startswith("resnet"):
        assert "batch_norm" not in {n.op for n in one}
    with pytest.raises(IrError, match=r"\[pass 'fold'\] does not exist"):
        run_passes(graph, ["fold"])


def test_words_for_passes() -> None:
    def names(*which: object) -> set[str]:
        return {p.name for p in find_passes(*which)}  # type: ignore[arg-type]

    assert names("-fuse_conv") == names(3) - {"fuse_conv"} == names(["all", "-fuse_conv"])
    assert names("-fuse_conv", 1) == names(1)
    assert names("basic,-cse") == names(1) - {"cse"} == names(["1", "-cse"])
    assert names("all, fuse_gate") == names(3) | {"fuse_gate"}
    assert names("cse,simplify") == {"cse", "simplify"}
    assert names(["cse", "-cse"]) == names(()) == names("none") == set()
    order = [p.name for p in find_passes("fuse_conv,cse")]
    assert order == ["cse", "fuse_conv"]


@pytest.mark.parametrize(
    ("which", "text"),
    [
        (
            9,
            "[passes] a level is a number from 0 to 3; got 9. Give 0 (none), 1 (basic), 2 (extended), 3 (all), or names of passes.",
        ),
        (-1, "[passes] a level is a number from 0 to 3; got -1."),
        ("7", "[passes] a level is a number from 0 to 3; got 7."),
        ("-1", "[passes] a level is a number from 0 to 3; got -1."),
        (True, "[passes] a level is a number from 0 to 3; got True."),
        (
            "fuse_con",
            "[pass 'fuse_con'] does not exist. Did you mean 'fuse_conv'? Known ones: inline_control, expand_random, ",
        ),
        ("-nothing", "[pass 'nothing'] does not exist. Known ones: inline_control, expand_random, "),
        (
            "basic,all",
            "[passes] takes at most one level; got basic, all. Give the highest one; each includes the lower ones.",
        ),
    ],
)
def test_words_that_name_no_pass(which: object, text: str) -> None:
    with pytest.raises(IrError) as error:
        find_passes(which)  # type: ignore[arg-type]
    assert str(error.value).startswith(text)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("precision", [DType.BFLOAT16, DType.FLOAT16])
def test_narrow_storage(net, precision: DType) -> None:
    name, graph, weights = net
    after = run_passes(graph, precision=precision, check=True)
    assert after.input_specs == graph.input_specs
    assert after.output_specs == graph.output_specs
    layers = [
        n
        for n in after
        if n.op in ("convolution", "fused_convolution", "linear", "fused_linear", "attention")
    ]
    assert layers
    assert {n.spec.dtype for n in layers} == {precision}
    found = compare(
        name,
        _run(after, name, weights),
        _run(graph, name, weights),
        0.1 if precision is DType.BFLOAT16 else 0.02,
    )
    assert found.ok, found.reason


@pytest.mark.sampled(1)
def test_trace(net) -> None:
    _, graph, _ = net
    traces = trace_passes(graph)
    assert [t.name for t in traces] == ["model", *(p.name for p in find_passes())]
    assert traces[0].dispatches == dispatches(graph)
    assert traces[-1].name == "layout"
    assert traces[-2].dispatches == dispatches(run_passes(graph))
    assert [t.nodes_after for t in traces[:-1]] == [t.nodes_before for t in traces[1:]]
    assert all(bool(t.diff) == (t.nodes_before != t.nodes_after) or t.diff for t in traces)
    table = trace_table(traces)
    assert len(table.splitlines()) == len(traces) + 1
    assert "fuse_conv" in table
    assert "\n    -" in trace_table(traces, diffs=True)
