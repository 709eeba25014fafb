"""Rotary frequencies: PyTorch's last bits, and those that a model holds itself."""

from __future__ import annotations

import numpy as np
import pytest

from xpuruntime.llm import DecoderConfig, Generator, open_checkpoint
from xpuruntime.llm.build import decoder_graphs
from xpuruntime.llm.rotary import Rotary
from xpuruntime.testing.conformance.seeded.decoders import logits_of, prompt, reference

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("base", [1e4, 2.5e5, 1e6])
@pytest.mark.parametrize("size", [64, 80, 128])
def test_frequencies_are_pytorch_s_to_the_last_bit_or_nearly_so(base: float, size: int) -> None:
    theirs = 1.0 / (base ** (torch.arange(0, size, 2).float() / size))
    ours = Rotary(base=base).frequencies(size)
    apart = abs(ours.view(np.int32) - theirs.numpy().view(np.int32))
    assert apart.max() <= 1
    assert (apart > 0).mean() < 0.05  # NumPy's powers in float32 differ in a fifth of them


def test_a_model_s_own_frequencies_are_taken() -> None:
    model, tokens = reference("qwen2"), prompt(40)
    plain = logits_of(model, tokens)[-1]
    model.model.rotary_emb.inv_freq.mul_(1.25)
    moved = logits_of(model, tokens)[-1]
    with Generator(model, capacity=64, buckets=(40,)) as ours:
        got = ours.read(tokens)[0]
    scale = abs(moved).max()
    assert abs(plain - moved).max() > 1e-2 * scale  # they matter
    assert abs(got - moved).max() < 1e-4 * scale


def test_frequencies_that_converting_rounded_are_no_part_of_the_model() -> None:
    exact = open_checkpoint(reference("qwen2")).config.rotary
    rounded = open_checkpoint(reference("qwen2").bfloat16()).config.rotary
    assert len(exact.explicit) > 0
    assert rounded.explicit == ()
    size = 2 * len(exact.explicit)
    assert abs(exact.frequencies(size) / rounded.frequencies(size) - 1).max() < 2e-7


LONG = {"rope_type": "longrope", "rope_theta": 500.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


@pytest.mark.parametrize(("capacity", "warns"), [(20, False), (21, True)])
def test_factors_of_long_texts_are_announced(
    capacity: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Up to 20 positions a program has the short factors."""
    data = reference("phi3").config.to_dict()
    config = DecoderConfig.from_json(
        {**data, "rope_parameters": LONG, "original_max_position_embeddings": 20}
    )
    with caplog.at_level("WARNING", logger="xpuruntime.session"):
        decoder_graphs(config, capacity=capacity, buckets=(4,))
    assert ("uses the long factors" in caplog.text) is warns
    plain = Rotary(base=500.0).frequencies(16)
    assert np.allclose(config.rotary.frequencies(16, capacity), plain / (1 + warns), rtol=1e-6)


@pytest.mark.parametrize("rope", ["yarn", "longrope", "dynamic", "linear", "llama3"])
def test_scaled_frequencies_are_those_of_transformers(rope: str) -> None:
    """And so is the factor of cosines and sines."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_type": rope, "rope_theta": 10000.0, "factor": 8.0}
    more: dict[str, dict[str, object]] = {
        "yarn": {"beta_fast": 20.0, "beta_slow": 2.0, "original_max_position_embeddings": 512},
        "longrope": {
            "short_factor": [1 + i / 7 for i in range(32)],
            "long_factor": [2.0 + i for i in range(32)],
            "original_max_position_embeddings": 512,
        },
        "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512},
    }
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=4096, rope_parameters=parameters | more.get(rope, {})
    )  # fmt: skip
    ours = Rotary.from_json(config.to_dict())
    frequencies, attention = ROPE_INIT_FUNCTIONS[rope](config)
    assert abs(ours.frequencies(64, 512) / frequencies.numpy() - 1).max() < 1e-6
    assert ours.attention == pytest.approx(attention, rel=1e-7)
