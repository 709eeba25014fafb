"""Every pass, and all of them, on random graphs: what is computed stays, the law holds, a second run changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from xpuruntime import ir
from xpuruntime.passes import PASSES, run_passes
from xpuruntime.testing.alike import difference
from xpuruntime.testing.graphs import graphs

relaxed = settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=60)


def _check(before: ir.Graph, after: ir.Graph) -> None:
    ir.verify(after)
    assert after.inputs == before.inputs
    assert [o.name for o in after.outputs] == [o.name for o in before.outputs]
    assert after.output_specs == before.output_specs
    known = {s for n in ir.inline_fused(before).nodes for s in n.sources}
    assert {s for n in after.nodes for s in n.sources} <= known
    assert difference(before, after) == ""


@pytest.mark.parametrize("step", PASSES, ids=lambda p: p.name)
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
