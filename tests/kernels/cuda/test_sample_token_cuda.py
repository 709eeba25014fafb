"""``sample_token`` on CUDA, emulated: three launches that divide a row over blocks, and the interpreter's tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cuda_kernels import call_of
from support.sampled_rows import sampled_rows, sampling_graph

from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.ir import interp
from xpuruntime.kernels.cuda.sample_token import CudaSampleToken
from xpuruntime.testing.emulation.launches import emulate


def sampled(rows: dict[str, Any], num_sms: int = 132) -> tuple[Any, Any]:
    graph = sampling_graph(rows)
    target = cuda_target("cuda:sm_90")
    target.config = replace(target.config, num_sms=num_sms)
    call = call_of(graph, {})
    kernel = CudaSampleToken()
    assert kernel.supports(call, target)
    token, after = emulate(kernel.lower(call, target), call, target, rows)
    return token, after


def few(rows: dict[str, Any], at: Any) -> dict[str, Any]:
    return {n: np.ascontiguousarray(x[at]) for n, x in rows.items()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("vocab", "dtype"), [(1, "float32"), (97, "bfloat16"), (2500, "float32"), (5003, "bfloat16")]
)
def test_tokens_are_those_of_the_interpreter(vocab: int, dtype: str) -> None:
    rows = sampled_rows(vocab, dtype, seed=vocab)
    rows = few(rows, np.arange(0, len(rows["logits"]), 1 if vocab < 1000 else 3))
    with np.errstate(invalid="ignore", over="ignore"):
        want = interp.run(sampling_graph(rows), rows)
    token, after = sampled(rows)
    assert token.tolist() == want["token"].tolist()
    assert (after == want["after"]).all()


def test_a_row_is_divided_over_blocks() -> None:
    """One row of 9,001 tokens is eight chunks; thresholds are in bins of more tokens than the list of them holds."""
    rows = sampled_rows(9001, seed=3)
    with np.errstate(invalid="ignore", over="ignore"):
        want = interp.run(sampling_graph(rows), rows)["token"]
    for i in (0, 2, 4, 7, 15, 19, 28, 40, 55):
        token, _ = sampled(few(rows, [i]))
        assert token[0] == want[i], i
