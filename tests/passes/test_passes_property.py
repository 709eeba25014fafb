"""Every pass, and all of them, on random graphs: what is computed stays, the law holds, a second run changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graph_equivalence import difference
from support.graphs import LAYERS, graphs

from xpuruntime import ir
from xpuruntime.decisions import Reason, Support
from xpuruntime.passes import PASSES, PassContext, run_passes
from xpuruntime.types import DType

relaxed = settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=20)


def _check(before: ir.Graph, after: ir.Graph) -> None:
    ir.verify(after)
    assert after.inputs == before.inputs
    assert [o.name for o in after.outputs] == [o.name for o in before.outputs]
    assert after.output_specs == before.output_specs
    known = {s for n in ir.inline_fused(before).nodes for s in n.sources}
    assert {s for n in after.nodes for s in n.sources} <= known
    assert difference(before, after) == ""


LOGICAL = [
    p for p in PASSES if not p.physical
]  # where values are stored is the compiler's, and changes no graph that it is given


@pytest.mark.sampled(6)
@pytest.mark.parametrize("step", LOGICAL, ids=lambda p: p.name)
def test_pass_keeps_what_is_computed(step) -> None:
    @relaxed
    @given(graphs(states=True, sources=True))
    def check(graph: ir.Graph) -> None:
        after = step.run(graph, None)
        _check(graph, after)
        assert step.run(after, None) == after, "a second run still changes something"

    check()


@relaxed
@given(graphs(max_nodes=20, symbolic=False, states=True, sources=True))
def test_all_passes_keep_what_is_computed(graph: ir.Graph) -> None:
    _check(graph, run_passes(graph, check=True))


LAYERED = (*LAYERS, *LAYERS, "unary", "binary", "number", "permute", "view", "cat", "softmax", "expand")


def _ranked() -> st.SearchStrategy[ir.Graph]:
    """Graphs in which layers find something to work on."""
    return graphs(max_nodes=10, symbolic=False, dtypes=(DType.FLOAT32,), steps=LAYERED, sources=True)


@settings(relaxed, max_examples=80)
@given(_ranked())
def test_all_passes_keep_layers(graph: ir.Graph) -> None:
    after = run_passes(graph, check=True)
    _check(graph, after)
    fused = {s for n in after.nodes for s in n.sources}
    computed = {s for n in run_passes(graph, 1).nodes for s in n.sources}
    assert computed <= fused, "a fusion lost the source of a member"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("step", LOGICAL, ids=lambda p: p.name)
def test_pass_keeps_layers(step) -> None:
    @relaxed
    @given(_ranked())
    def check(graph: ir.Graph) -> None:
        after = step.run(graph, None)
        _check(graph, after)
        assert step.run(after, None) == after, "a second run still changes something"

    check()


@relaxed
@given(_ranked())
def test_what_may_not_be_fused_is_not(graph: ir.Graph) -> None:
    no = PassContext(may_fuse=lambda graph, nodes: Support.no(Reason.FORBIDDEN, "a rule names one of them"))
    after = run_passes(graph, context=no, check=True)
    _check(graph, after)
    assert not {n.op for n in after} & {
        "fused",
        "fused_linear",
        "fused_convolution",
        "attention",
        "silu_mul",
        "rms_norm",
    }
