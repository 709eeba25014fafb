"""Products with gathered matrices are one op, also in modules of transformers; other products stay."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from support.graph_equivalence import difference

from xpuruntime import ir
from xpuruntime.passes import PassContext, find_passes, run_passes

GATHERED = """
input %x: float32[5, 6]
input %n: int64[5]
weight %w: float32[3, 4, 6]
%i: int64[5] = clamp(%n, 0, 2)
%m: float32[5, 4, 6] = index(%w, %i)
%c: float32[5, 6, 1] = unsqueeze(%x, dims=[2])
%p: float32[5, 4, 1] = bmm(%m, %c)
%y: float32[5, 4] = squeeze(%p, dims=[2])
output "y" = %y
"""


def parsed(text: str) -> ir.Graph:
    return ir.parse(f'graph "test" {{\n{text}\n}}')


def test_gathered_matrices(golden) -> None:
    golden(
        "recognize_experts",
        GATHERED,
        """
        %i: int64[5] = clamp(%n, 0, 2)
        %unsqueeze: int64[5, 1] = unsqueeze(%i, dims=[1])
        %expert_linear: float32[5, 1, 4] = expert_linear(%x, %w, %unsqueeze)
        %y: float32[5, 4] = squeeze(%expert_linear, dims=[1])
        """,
    )


def test_matrices_that_are_read_elsewhere_stay() -> None:
    graph = parsed(GATHERED + 'output "m" = %m\n')
    (recognize,) = find_passes(["recognize_experts"])
    assert recognize.run(graph, PassContext()) is graph


@pytest.mark.sampled(1)
@pytest.mark.parametrize("experts", ["grouped_mm", "batched_mm"])
@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "deepseek_v2"])
def test_modules_of_transformers(family: str, experts: str) -> None:
    """Both ways in which transformers computes experts without a loop; each layer has two products."""
    torch = pytest.importorskip("torch")
    from xpuruntime.frontends.torch import import_torch
    from xpuruntime.testing.conformance.seeded.decoders import logits_of, prompt, reference

    model, tokens = reference(family), prompt(9, seed=3)
    model.set_experts_implementation(experts)
    model.config.use_cache = False
    graph, weights = import_torch(model, (torch.tensor([tokens]),))
    after = run_passes(graph)
    counts = Counter(n.op for n in after.nodes)
    assert (counts["expert_linear"], counts["bmm"]) == (4, 0)
    outputs = ir.interp.run(after, {graph.inputs[0].name: np.array([tokens])}, weights=weights)
    got, want = next(y for y in outputs.values() if y.shape[-1] == 97)[0], logits_of(model, tokens)
    assert abs(got - want).max() < 1e-5 * abs(want).max()


def test_a_loop_over_experts_is_refused_with_its_line() -> None:
    torch = pytest.importorskip("torch")
    from xpuruntime.errors import ModelError
    from xpuruntime.frontends.torch import import_torch
    from xpuruntime.testing.conformance.seeded.decoders import reference

    model = reference("mixtral")
    model.set_experts_implementation("eager")
    model.config.use_cache = False
    with pytest.raises(ModelError, match=r"branches on the content of a tensor.*for expert_idx in expert"):
        import_torch(model, (torch.tensor([[1, 2, 3]]),))


def test_the_replacement_computes_the_same() -> None:
    graph = parsed(GATHERED)
    assert difference(graph, run_passes(graph, ["recognize_experts"])) == ""
