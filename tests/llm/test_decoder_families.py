"""Shapes of the families that the other tests' two models have not: biases, heads, ties, norms and scaled positions, each against transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xpuruntime.ir import interp
from xpuruntime.llm import DecoderConfig, Generator, decoder_graph, open_checkpoint
from xpuruntime.testing.conformance.seeded.decoders import LLAMA3, greedy, logits_of, prompt, reference

LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, one key head, heads wider than their share": (
        "llama", {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 40, "tie_word_embeddings": False}
    ),
    "llama, as many key heads, biases everywhere": (
        "llama", {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 32, "attention_bias": True, "mlp_bias": True}
    ),
    "llama, groups of seven, narrow heads, linear positions": (
        "llama", {"num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 6, "rope_parameters": LINEAR, "vocab_size": 101, "hidden_size": 112}
    ),
    "llama, odd sizes and another epsilon": (
        "llama", {"hidden_size": 90, "intermediate_size": 77, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 18,
                  "rms_norm_eps": 0.03, "rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}
    ),
    "qwen2, tied, groups of three, stretched positions": (
        "qwen2", {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 16, "tie_word_embeddings": True, "rope_parameters": LLAMA3}
    ),
    "qwen2, seven groups of one, one layer": (
        "qwen2", {"num_attention_heads": 7, "num_key_value_heads": 7, "head_dim": 12, "num_hidden_layers": 1, "vocab_size": 64}
    ),
    "qwen2, a window that is not used": (
        "qwen2", {"sliding_window": 4, "use_sliding_window": False, "num_key_value_heads": 1}
    ),
}  # fmt: skip
NATIVE = ("llama, groups of seven, narrow heads, linear positions", "llama, as many key heads, biases everywhere",
          "qwen2, tied, groups of three, stretched positions")  # fmt: skip
"""Those that are compiled, too: each takes seconds."""


def tokens_for(model: Any, length: int) -> list[int]:
    return [t % model.config.vocab_size for t in prompt(length, seed=3)]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_graph_of_every_shape_is_the_model(name: str) -> None:
    family, sizes = CONFIGS[name]
    model = reference(family, **sizes)
    found, tokens = open_checkpoint(model), tokens_for(model, 24)
    graph = decoder_graph(found.config, length=24, capacity=32, all_logits=True)
    feeds = {"tokens": np.array([tokens]), "positions": np.arange(24)[None], "last": np.array([23])}
    got = interp.run(graph, feeds, weights=dict(found.arrays), states={})["logits"]
    want = logits_of(model, tokens)
    assert abs(got - want).max() <= 1e-5 * abs(want).max()
    assert found.config.head_dim == sizes.get("head_dim", 16)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NATIVE)
def test_and_what_is_compiled_of_it_reads_and_goes_on_alike(name: str) -> None:
    family, sizes = CONFIGS[name]
    model = reference(family, **sizes)
    tokens = tokens_for(model, 40)
    want = logits_of(model, tokens)
    with Generator(model, capacity=64, buckets=(16,)) as ours:
        rows = [ours.read(tokens[:21])[0].copy()]
        rows += [ours.step(t, 21 + i)[0].copy() for i, t in enumerate(tokens[21:])]
        assert abs(np.stack(rows) - want[20:]).max() <= 1e-4 * abs(want).max()
        assert list(ours.generate(tokens[:9], max_new_tokens=20).tokens) == greedy(model, tokens[:9], 20)


def test_a_scaling_that_is_left_out_is_noticed() -> None:
    """The check above detects positions that are not stretched."""
    model = reference("llama", rope_parameters=LINEAR)
    found, tokens = open_checkpoint(model), tokens_for(model, 24)
    data = model.config.to_dict()
    plain = DecoderConfig.from_json(
        {**data, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
    )
    graph = decoder_graph(plain, length=24, capacity=32, all_logits=True)
    feeds = {"tokens": np.array([tokens]), "positions": np.arange(24)[None], "last": np.array([23])}
    got = interp.run(graph, feeds, weights=dict(found.arrays), states={})["logits"]
    want = logits_of(model, tokens)
    assert abs(got - want).max() > 1e-2 * abs(want).max()
