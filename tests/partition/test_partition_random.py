"""Any graph, cut by any support function, computes what the whole graph computes.

Regions of both kinds run on the interpreter here (as two devices), so that a difference can only come from the cuts: equal bit for bit.
``make conformance`` cuts 10,000 graphs.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graphs import arrays_for, graphs

from xpuruntime.compiler.partition.partitioner import PartitionPlan, is_op_supported, partition
from xpuruntime.inference.partitioned.dag_executor import DAGExecutor
from xpuruntime.ir import Graph, interp
from xpuruntime.numerics import compare, tolerance_for
from xpuruntime.types import DType

CASES, WHOLE = 300, 10_000
ONE, OTHER = "interpreter on cpu:1", "interpreter on cpu:2"


def check_structure(plan: PartitionPlan) -> None:
    """Every node in one region; a region reads only earlier nodes, so regions are convex; each hangs together."""
    graph = plan.graph
    nodes = [n.name for n in graph.nodes if n.op != "constant"]
    assert sorted(n for m in plan.members.values() for n in m) == sorted(nodes)
    home = {v.name: r for r, m in plan.members.items() for n in m for v in graph.node(n).outputs}
    seen: set[str] = set()
    for region in plan.regions:
        for value in region.inputs:
            assert value not in home or home[value] in seen, f"{region.id} reads {value} before it is made"
        seen.add(region.id)
        assert connected(graph, plan.members[region.id])
        for name in plan.members[region.id]:
            for value in graph.node(name).values:
                made_here = home.get(value) == region.id
                known = value in graph.weight_names or graph.literal(value) is not None
                assert made_here or known or value in region.inputs
    crossing = {
        (t.value, t.source, t.destination)
        for t in plan.transfers
        if "caller" not in (t.source, t.destination)
    }
    assert crossing == {(v, home[v], r.id) for r in plan.regions for v in r.inputs if v in home}


def connected(graph: Graph, members: tuple[str, ...]) -> bool:
    inside = set(members)
    seen, todo = set(), [members[0]]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        node = graph.node(name)
        todo += [p.name for v in node.values if (p := graph.producer(v)) is not None and p.name in inside]
        todo += [u.name for v in node.outputs for u in graph.users(v.name) if u.name in inside]
    return seen == inside


@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(max_nodes=14, states=False), st.integers(0, 2**32), st.booleans())
def test_any_graph_any_support_function(graph: Graph, seed: int, absorb: bool) -> None:
    judge(graph, seed, absorb)


@pytest.mark.conformance
@settings(max_examples=WHOLE, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(max_nodes=14, states=False), st.integers(0, 2**32), st.booleans())
def test_ten_thousand_of_them(graph: Graph, seed: int, absorb: bool) -> None:
    judge(graph, seed, absorb)


@settings(max_examples=CASES // 5, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(max_nodes=10, states=True), st.integers(0, 2**32))
def test_states_live_across_regions(graph: Graph, seed: int) -> None:
    judge(graph, seed, False, runs=3)


@settings(max_examples=CASES // 30, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(max_nodes=8, symbolic=False), st.integers(0, 2**32))
def test_native_regions_among_others(graph: Graph, seed: int) -> None:
    """Real code where the compiler and a coin say yes; kernels round sums in their own order, so within the tolerance of their type."""
    rng = random.Random(seed)
    coin = {n.name: rng.random() < 0.6 for n in graph.nodes}
    supports = lambda call: is_op_supported(call) if coin[call.node.name] else False  # noqa: E731
    plan = partition(graph, supports, others=("interpreter",), absorb=False)
    feeds, weights = arrays_for(graph, seed % 1000)
    want = interp.run(graph, feeds, weights=weights)
    with DAGExecutor(plan, threads=1) as dag:
        dag.load_weights(weights)
        got = dag.execute(inputs=feeds)
        assert dag.counters["fallbacks"] == 0, dag.plan.explain()
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        verdict = compare(name, got[name], array, tolerance_for(DType.of(array.dtype)))
        assert verdict.ok, f"{verdict.reason}\n{plan.explain()}\n{graph}"


def judge(graph: Graph, seed: int, absorb: bool, runs: int = 1) -> None:
    rng = random.Random(seed)
    share = rng.choice((0.2, 0.5, 0.8))
    said = {n.name: rng.random() < share for n in graph.nodes}
    plan = partition(graph, lambda call: said[call.node.name], engine=ONE, others=(OTHER,), absorb=absorb)
    check_structure(plan)
    for region in plan.regions:
        if region.device == "cpu:1":
            assert all(said[n] for n in plan.members[region.id])
    feeds, weights = arrays_for(graph, seed % 1000)
    states: dict[str, np.ndarray] = {}
    with DAGExecutor(plan, parallel=rng.choice((1, 4))) as dag:
        dag.load_weights(weights)
        for _ in range(runs):
            got = dag.execute(inputs=feeds)
            want = interp.run(graph, feeds, weights=weights, states=states)
            assert list(got) == list(want)
            for name, array in want.items():
                assert got[name].dtype == array.dtype
                assert got[name].shape == array.shape
                assert got[name].tobytes() == array.tobytes()
        shared = {
            (t.value, t.source, t.destination)
            for t in plan.transfers
            if t.source != "caller" != t.destination
        }
        assert dag.counters["crossings"] == runs * len(shared)
        assert dag.counters["copies"] == 0
