"""Recurrent layers on CUDA, which has no kernel of theirs: their steps, by the kernels' texts on a CPU."""

from __future__ import annotations

import numpy as np
import pytest

from xpuruntime.ir import GraphBuilder
from xpuruntime.testing.cuda_host import cuda_host
from xpuruntime.testing.native import check


@pytest.mark.parametrize(("op", "gates"), [("lstm", 4), ("gru", 3), ("rnn", 1)])
def test_a_layer_is_its_steps(op: str, gates: int) -> None:
    draw = np.random.default_rng(0)
    b = GraphBuilder(op)
    w = b.weight("w", f"float32[2, {gates * 8}, 5]")
    r = b.weight("r", f"float32[2, {gates * 8}, 8]")
    bias = b.weight("b", f"float32[2, {gates * 16}]")
    y, h, *_ = b.call(
        op,
        b.input("x", "float32[3, 2, 5]"),
        w,
        r,
        bias,
        hidden_size=8,
        direction="bidirectional",
        outputs=3 if op == "lstm" else 2,
    )
    b.output("y", y)
    b.output("h", h)
    graph = b.build()
    weights = {
        v.name: draw.standard_normal([int(d) for d in v.spec.shape]).astype(np.float32)
        for v in (x.value for x in graph.weights)
        if v.spec is not None
    }
    check(
        graph, {"x": draw.standard_normal((3, 2, 5)).astype(np.float32)}, weights=weights, target=cuda_host()
    )
