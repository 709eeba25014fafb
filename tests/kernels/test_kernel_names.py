"""Every kernel of the catalogue has a name that policies may say, and saying it chooses it."""

from __future__ import annotations

import numpy as np
import pytest
from support.native import check

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import GraphBuilder
from xpuruntime.ir.infer import find_op
from xpuruntime.kernels.catalogue import TARGET_KERNELS, kernels
from xpuruntime.policies import KernelPolicy, Rule
from xpuruntime.policies.vocabulary import KERNELS


@pytest.mark.parametrize("kind", TARGET_KERNELS)
def test_policies_can_name_every_kernel(kind: str) -> None:
    rows = [(find_op(op).family, k.name) for k in kernels(kind) for op in k.ops]
    assert rows
    unnamed = {row for row in rows if row[1].partition("/")[2] not in KERNELS.get(row[0], ())}
    assert not unnamed, f"policies/vocabulary.py lacks {sorted(unnamed)}"


CASES = {  # (family, name): op, operands' dtype and shape, attributes
    ("elementwise", "narrow"): ("cast", ("float32[5, 7]",), {"dtype": "float8_e4m3fn"}),
    ("elementwise", "strided"): ("bitcast", ("float32[5, 7]",), {"dtype": "int32"}),
    ("data_movement", "strided"): ("permute", ("float32[5, 7]",), {"dims": [1, 0]}),
    ("create", "fill"): ("full", (), {"size": [3, 4], "value": 2.5, "dtype": "float32"}),
    ("pool", "regions"): (
        "max_roi_pool",
        ("float32[1, 2, 8, 8]", "float32[2, 5]"),
        {"output_size": [2, 2], "spatial_scale": 1.0},
    ),
}


@pytest.mark.parametrize(("family", "name"), CASES)
def test_a_rule_that_names_a_kernel_gets_it(family: str, name: str) -> None:
    op, operands, attrs = CASES[family, name]
    b = GraphBuilder("one")
    given = [b.input(f"x{i}", spec) for i, spec in enumerate(operands)]
    b.output("y", getattr(b, op)(*given, **attrs))
    graph = b.build()
    policy = KernelPolicy(rules=[Rule(op=family, use=name)])
    program = compile_graph(graph, policy=policy, passes=0)
    assert {c.kernel.partition("/")[2] for c in program.entries[0].plans[0].calls} == {name}
    random = np.random.default_rng(0)
    feeds = {
        s.name: random.uniform(0, 1, [int(d) for d in s.shape]).astype(np.float32) for s in graph.input_specs
    }
    check(graph, feeds, policy=policy, passes="none")
