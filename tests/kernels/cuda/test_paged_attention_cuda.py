"""``paged_attention`` on CUDA, emulated: the interpreter's results, one split or several, and the same bits in every company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cuda_kernels import call_of
from support.paged_graphs import graph_of, paged

from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.ir import Graph, interp
from xpuruntime.kernels.cuda.attention.paged import CudaPagedAttention
from xpuruntime.testing.emulation.launches import emulate

CASES = {
    "one split": (3, 6, 2, 1, 32, 32, 12, 5, 4, {}),
    "biases of distances": (3, 6, 2, 2, 24, 24, 9, 5, 4, {"places": 11, "softcap": 2.0}),
    "biases of keys": (3, 4, 4, 1, 16, 24, 9, 6, 4, {"places": 24, "by_key": True, "window": 9}),
    "two queries, odd sizes": (2, 4, 4, 2, 33, 7, 9, 3, 5, {"softcap": 3.0}),
    "many heads of one key head": (2, 16, 1, 1, 24, 40, 6, 6, 16, {"scale": 0.2}),
    "several splits": (3, 4, 2, 1, 64, 64, 30, 20, 16, {}),
    "a window over splits": (2, 2, 1, 2, 16, 16, 5, 130, 3, {"window": 150}),
    "latent": (1, 8, 1, 1, 288, 260, 4, 10, 16, {}),
}


def emulated(graph: Graph, feeds: dict[str, Any]) -> tuple[Any, int]:
    call, target, kernel = call_of(graph, {}), cuda_target("cuda:sm_90"), CudaPagedAttention()
    assert kernel.supports(call, target)
    lowered = kernel.lower(call, target)
    (y,) = emulate(lowered, call, target, feeds)
    return y, len(lowered.stages)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(6)
def test_results_are_those_of_the_interpreter(name: str, dtype: str) -> None:
    graph, feeds = paged(CASES[name], dtype)
    want = interp.run(graph, feeds)["y"].astype(np.float64)
    y, launches = emulated(graph, feeds)
    assert launches == (2 if name in ("several splits", "a window over splits", "latent") else 1)
    limit = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    assert np.abs(y.astype(np.float64) - want).max() <= limit * max(1, np.abs(want).max())


def test_a_text_has_the_same_bits_in_every_company() -> None:
    graph, feeds = paged(CASES["several splits"], "bfloat16")
    whole, _ = emulated(graph, feeds)
    for b in range(2):
        alone = {n: x if n in ("keys", "values") else x[b : b + 1] for n, x in feeds.items()}
        y, _ = emulated(graph_of(alone, 16, {}), alone)
        assert y.tobytes() == whole[b : b + 1].tobytes()
