"""Position biases over blocks: log probabilities of every token are those of transformers, and a wrong bias is noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.device_under_test import device_name

pytest.importorskip("torch")
pytest.importorskip("transformers")

from xpuruntime.llm import BatchGenerator
from xpuruntime.llm.decoder import GraphWriter
from xpuruntime.testing.conformance.seeded.decoders import prompt, reference

SDPA = {"attn_implementation": "sdpa"}  # eager attention of transformers adds Falcon's biases twice
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("bloom", {}),
    "mpt": ("mpt", {}),
    "falcon": ("falcon", {"new_decoder_architecture": False, "multi_query": True, "num_kv_heads": None, "alibi": True, "num_attention_heads": 12, **SDPA}),
}  # fmt: skip
UNKEPT = {"version": 1, "execution": {"caching": False}}  # a program of the store does not know of mutations
TEXTS = [prompt(n, seed=n) for n in (1, 9, 30, 17)]


def farthest(name: str) -> float:
    """Return the largest difference of a log probability, over all tokens of all positions of answers."""
    import torch

    family, overrides = MODELS[name]
    model = reference(family, **overrides)
    worst = 0.0
    with BatchGenerator(
        model, texts=3, capacity=48, cache_tokens=72, block_size=8, step_tokens=16, device=device_name(), policy=UNKEPT
    ) as batch:  # fmt: skip
        answers = batch.generate(TEXTS, max_new_tokens=14, logprobs=97)
        assert batch.statistics().preemptions > 0
    for text, answer in zip(TEXTS, answers, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*text, *answer.tokens]])).logits[0].double()
        rows = logits.log_softmax(-1).numpy()[len(text) - 1 :]
        for row, entry in zip(rows, answer.logprobs, strict=False):
            got = np.empty(len(row))
            for token, value in entry.top:
                got[token] = value
            worst = max(worst, float(np.abs(got - row).max()))
    return worst


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_are_those_of_transformers(name: str) -> None:
    assert farthest(name) < 1e-4


@pytest.mark.parametrize(("name", "factor"), [("bloom", 0.0), ("falcon", 0.9)])
def test_a_wrong_bias_is_noticed(name: str, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations: no bias, and one that is a tenth too small."""
    plain = GraphWriter.paged_biases
    monkeypatch.setattr(GraphWriter, "paged_biases", lambda self: self.b.mul(plain(self), factor))
    assert farthest(name) > 1e-3
