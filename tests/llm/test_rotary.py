"""Rotary frequencies: PyTorch's last bits, and those that a model holds itself."""

from __future__ import annotations

import numpy as np
import pytest

from xpuruntime.llm import Generator, open_checkpoint
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
