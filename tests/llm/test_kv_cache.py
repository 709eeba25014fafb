"""A KV cache in fp8: the model is the one that transformers runs with keys and values rounded to float8_e4m3fn, saturated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import DynamicCache

import xpuruntime as xrt
from xpuruntime.errors import PolicyError
from xpuruntime.llm import BatchGenerator, Generator, open_checkpoint
from xpuruntime.llm.build import build_program, decoder_graphs
from xpuruntime.llm.steps import Steps
from xpuruntime.runtime import load_weights
from xpuruntime.testing.conformance.seeded.decoders import prompt, reference
from xpuruntime.testing.emulation.cuda_host import cuda_host
from xpuruntime.types import DType

POLICY: dict[str, Any] = {"version": 1, "execution": {"kv_cache": "fp8"}}


class RoundedCache(DynamicCache):
    """A cache that rounds what it is given."""

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
        keys, values = (
            x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) for x in (key_states, value_states)
        )
        return super().update(keys, values, *args, **kwargs)


def rounded_logits(model: Any, tokens: Any) -> Any:
    with torch.inference_mode():
        ids = torch.from_numpy(np.asarray(tokens))[None]
        return model(ids, past_key_values=RoundedCache(), use_cache=True).logits[0].float().numpy()


def steps_of(ours: Any, tokens: Any) -> Any:
    return np.stack([ours.step(t, i)[0].astype(np.float32) for i, t in enumerate(tokens)])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "gemma2", "phi3", "mistral"])
def test_the_model_is_the_one_with_rounded_keys_and_values(family: str) -> None:
    model, tokens = reference(family), prompt(30)
    want, exact = rounded_logits(model, tokens), None
    with torch.inference_mode():
        exact = model(torch.from_numpy(np.asarray(tokens))[None]).logits[0].numpy()
    with Generator(model, capacity=32, buckets=(16, 32), policy=POLICY) as ours:
        read = ours.read(tokens)[0].copy()
        got = steps_of(ours, tokens)
    # A last bit of a key before its rounding may decide a neighbor; the error of rounding is far larger.
    lost = abs(want - exact).max()
    assert lost > 1e-4 * abs(exact).max()
    assert abs(got - want).max() < 0.1 * lost
    assert abs(read - want[-1]).max() < 0.1 * lost


def test_keys_beyond_the_type_saturate() -> None:
    model, tokens = reference("llama"), prompt(12)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.v_proj.weight *= 5000
    want = rounded_logits(model, tokens)
    with Generator(model, capacity=16, buckets=(16,), policy=POLICY) as ours:
        got = steps_of(ours, tokens)
        states = {
            s.name: ours.decode.states[s.name].to_numpy().astype(np.float32) for s in ours.program.states
        }
    largest = max(abs(x).max() for n, x in states.items() if n.startswith("values."))
    assert largest == 448
    assert np.isfinite(got).all()
    assert abs(got - want).max() < 1e-2 * abs(want).max()


def test_states_plan_and_receipt_say_it() -> None:
    model = reference("llama")
    sizes = {}
    for policy in (None, POLICY):
        with Generator(model, capacity=64, buckets=(16,), policy=policy) as ours:
            kept = [s for s in ours.program.states if s.name.startswith(("keys.", "values."))]
            sizes[policy is None] = sum(s.spec.size_bytes or 0 for s in kept)
            said = str(ours.plan.explain())
            assert ("kv_cache" in said) is (policy is not None)
            if policy:
                assert {s.spec.dtype for s in kept} == {DType.FLOAT8_E4M3FN}
                assert "float8_e4m3fn" in said
    assert sizes[True] == 4 * sizes[False]


def test_beams_carry_their_caches() -> None:
    """Reordering moves rows of codes. The beams are those that transformers finds with rounded caches."""
    model, tokens = reference("llama"), prompt(9)
    with torch.inference_mode():
        ids = torch.from_numpy(np.asarray(tokens))[None]
        want = model.generate(
            ids, num_beams=3, max_new_tokens=12, do_sample=False, past_key_values=RoundedCache()
        )
    with Generator(model, capacity=64, buckets=(16,), batch=3, policy=POLICY) as ours:
        got = ours.generate(tokens, num_beams=3, max_new_tokens=12).tokens
    assert list(got) == want[0, len(tokens) :].tolist()


def test_drafts_do_not_change_the_text() -> None:
    with Generator(reference("llama"), capacity=64, buckets=(16,), policy=POLICY) as ours:
        plain = ours.generate(prompt(9), max_new_tokens=20).tokens
        assert ours.generate(prompt(9), max_new_tokens=20, prompt_lookup_num_tokens=3).tokens == plain


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cuda_computes_the_same(dtype: str) -> None:
    """Emulated, next to the program for CPUs."""
    model, tokens = reference("qwen2"), prompt(14)
    found, kind = open_checkpoint(model), DType.of(dtype)
    graphs = decoder_graphs(
        found.config, capacity=16, buckets=(16,), dtype=kind, stored=found.specs, cache=DType.FLOAT8_E4M3FN
    )
    results = []
    for target in ("cpu", cuda_host()):
        program = build_program(graphs, target=target)
        steps = Steps(program, load_weights(found.arrays, program, "cpu"), batch=1, vocab=97, dtype=kind)
        rows = [steps.read([tokens[:8]])[0].copy()]
        rows += [steps.step([t], [8 + i])[0].copy() for i, t in enumerate(tokens[8:])]
        steps.close()
        results.append(np.array(rows).astype(np.float32))
    differences = results[1] - results[0]
    # In bfloat16, keys near the middle of two numbers of float8 are rounded to either.
    assert np.sqrt((differences**2).mean()) < (1e-3 if dtype == "float32" else 5e-2) * np.sqrt(
        (results[0] ** 2).mean()
    )
    assert abs(differences).max() < (2e-3 if dtype == "float32" else 6e-2) * abs(results[0]).max()


def test_others_refuse_it() -> None:
    model = reference("llama")
    with pytest.raises(PolicyError, match="does not support kv_cache: fp8"):
        BatchGenerator(model, capacity=64, policy=POLICY)
    module, x = torch.nn.Linear(4, 4).eval(), torch.ones(1, 4)
    with pytest.raises(PolicyError, match="cannot honor kv_cache: a session has no cache"):
        xrt.InferenceSession(module, example_inputs=x, policy=POLICY)
    with pytest.raises(PolicyError, match="kv_cache"):
        xrt.ExecutionPolicy(kv_cache="int8")
