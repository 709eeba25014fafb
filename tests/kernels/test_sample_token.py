"""``sample_token`` on CPUs: the interpreter's tokens, whatever the logits and the settings of the rows are."""

from __future__ import annotations

import numpy as np
import pytest
from support.native import compile_native
from support.sampled_rows import sampled_rows, sampling_graph

from xpuruntime.ir import interp
from xpuruntime.runtime import Executor


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("vocab", [1, 5, 97, 3001])
def test_tokens_are_those_of_the_interpreter(vocab: int, dtype: str) -> None:
    rows = sampled_rows(vocab, dtype, seed=vocab)
    graph = sampling_graph(rows)
    with np.errstate(invalid="ignore", over="ignore"):
        want = interp.run(graph, rows)
    program = compile_native(graph, rows)
    assert {c.kernel for c in program.entries[0].plans[0].calls} == {"search/generated"}
    with Executor(program, threads=2) as executor:
        token, after = executor.run_arrays([rows[n] for n in ("logits", "counts", "settings", "numbers")])
    assert token.tolist() == want["token"].tolist()
    assert (after == want["after"]).all()
    assert (want["token"] == -1).any()
    assert len(set(want["token"].tolist())) > min(vocab, 20)


def test_a_seed_of_a_row_decides_its_token_alone() -> None:
    rows = sampled_rows(500)
    graph = sampling_graph(rows)
    program = compile_native(graph, rows)
    order = np.random.default_rng(1).permutation(len(rows["logits"]))
    with Executor(program) as executor:
        token, _ = executor.run_arrays(list(rows.values()))
        mixed, _ = executor.run_arrays([np.ascontiguousarray(x[order]) for x in rows.values()])
    assert mixed.tolist() == token[order].tolist()
