"""Decoders against transformers: the same logits, the same tokens, and not by chance: each part that is left out is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from xpuruntime.ir import Const, Graph, interp
from xpuruntime.ir.attributes import Attrs
from xpuruntime.llm import DecoderConfig, Generator, decoder_graph, open_checkpoint
from xpuruntime.testing.conformance.seeded.decoders import greedy, logits_of, prompt, reference
from xpuruntime.types import DType

LIMIT = 1e-4


def far(ours: np.ndarray, theirs: np.ndarray) -> float:
    """max|d| / max|ref|"""
    return float(abs(ours.astype(np.float64) - theirs).max() / abs(theirs).max())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("length", [1, 5, 8, 9, 40, 75])
def test_prefill_gives_the_logits_of_the_last_row(pair: tuple[Any, Generator], length: int) -> None:
    model, ours = pair
    tokens = prompt(length, seed=length)
    assert far(ours.read(tokens)[0], logits_of(model, tokens)[-1]) < LIMIT


def test_decoding_a_given_text_gives_the_logits_of_every_row(pair: tuple[Any, Generator]) -> None:
    model, ours = pair
    tokens = prompt(120)
    want = logits_of(model, tokens)
    ours.read(tokens[:10])
    worst = max(far(ours.step(t, 10 + i)[0], want[10 + i]) for i, t in enumerate(tokens[10:]))
    assert worst < LIMIT


def test_greedy_tokens_are_those_of_the_reference(pair: tuple[Any, Generator]) -> None:
    model, ours = pair
    tokens = prompt(21)
    want = greedy(model, tokens, 100)
    assert len(set(want)) > 10, "a text that hides nothing"
    assert list(ours.generate(tokens, max_new_tokens=100).tokens) == want


def test_a_text_leaves_nothing_behind_for_the_next(pair: tuple[Any, Generator]) -> None:
    _, ours = pair
    first = ours.generate(prompt(9), max_new_tokens=20)
    ours.generate(prompt(70, seed=1), max_new_tokens=50)
    assert ours.generate(prompt(9), max_new_tokens=20) == first


def test_bfloat16_is_as_near_to_the_exact_logits_as_torch() -> None:
    import torch

    model = reference("qwen2").to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    # Loading in bfloat16 leaves the rotary frequencies alone; converting does not.
    model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config)
    tokens = prompt(60)
    theirs = logits_of(model, tokens)
    with Generator(model, capacity=64, buckets=(16,)) as ours:
        assert ours.dtype is DType.BFLOAT16
        ours.read(tokens[:16])
        got = np.stack([ours.step(t, 16 + i)[0].copy() for i, t in enumerate(tokens[16:])]).astype(np.float32)
    exact = logits_of(model.double(), tokens)[16:]
    rms = [float(np.sqrt(np.mean((x - exact) ** 2))) for x in (got, theirs[16:])]
    assert rms[0] <= 1.25 * rms[1], rms


# ── the interpreter as reference: what each part is worth ──


def run(graph: Graph, arrays: dict[str, Any], tokens: list[int]) -> np.ndarray:
    """Logits of every row by the reference interpreter."""
    n = len(tokens)
    feeds = {
        "tokens": np.array([tokens]), "positions": np.arange(n)[None], "last": np.array([n - 1]),
    }  # fmt: skip
    return np.asarray(interp.run(graph, feeds, weights=arrays, states={})["logits"])


def swapped_heads(arrays: dict[str, Any], config: DecoderConfig) -> dict[str, Any]:
    """Values of the two key heads change places."""
    d = config.head_dim
    return {
        n: np.concatenate([a[d:], a[:d]]) if ".v_proj." in n and n.startswith("model.layers.0") else a
        for n, a in arrays.items()
    }


def zeroed(part: str, value: float) -> Callable[[dict[str, Any], DecoderConfig], dict[str, Any]]:
    return lambda arrays, config: {n: np.full_like(a, value) if part in n else a for n, a in arrays.items()}


MUTATIONS: dict[str, Callable[[dict[str, Any], DecoderConfig], dict[str, Any]]] = {
    "query bias dropped": zeroed("layers.1.self_attn.q_proj.bias", 0),
    "key bias dropped": zeroed("layers.0.self_attn.k_proj.bias", 0),
    "value bias dropped": zeroed("layers.0.self_attn.v_proj.bias", 0),
    "norm scale dropped": zeroed("layers.1.post_attention_layernorm", 1),
    "last norm scale dropped": zeroed("model.norm", 1),
    "key heads swapped": swapped_heads,
}


@pytest.fixture(scope="module")
def judged() -> tuple[DecoderConfig, dict[str, Any], list[int], np.ndarray]:
    model = reference("qwen2")
    found = open_checkpoint(model)
    arrays = dict(found.arrays)
    tokens = prompt(12)
    return found.config, arrays, tokens, logits_of(model, tokens)


def test_the_graph_is_the_model(judged: Any) -> None:
    config, arrays, tokens, want = judged
    graph = decoder_graph(config, length=len(tokens), capacity=32, all_logits=True)
    assert far(run(graph, arrays, tokens), want) < 1e-5


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_is_left_out_is_noticed(judged: Any, name: str) -> None:
    config, arrays, tokens, want = judged
    graph = decoder_graph(config, length=len(tokens), capacity=32, all_logits=True)
    assert far(run(graph, MUTATIONS[name](arrays, config), tokens), want) > 100 * LIMIT


def test_a_mask_that_hides_nothing_is_noticed(judged: Any) -> None:
    config, arrays, tokens, want = judged
    graph = decoder_graph(config, length=len(tokens), capacity=32, all_logits=True)
    nodes = tuple(replace(n, inputs=n.inputs[:3]) if n.op == "attention" else n for n in graph.nodes)
    assert far(run(graph.replace(nodes=nodes), arrays, tokens), want) > 100 * LIMIT


def test_no_rotation_is_noticed(judged: Any) -> None:
    config, arrays, tokens, want = judged
    graph = decoder_graph(config, length=len(tokens), capacity=32, all_logits=True)
    still = replace(
        graph.node("rotary.frequencies"), attrs=Attrs({"value": Const(np.zeros((1, 8), np.float32))})
    )
    nodes = tuple(still if n.name == "rotary.frequencies" else n for n in graph.nodes)
    assert far(run(graph.replace(nodes=nodes), arrays, tokens), want) > 100 * LIMIT


def test_other_positions_are_noticed(judged: Any) -> None:
    config, arrays, tokens, want = judged
    graph = decoder_graph(config, length=len(tokens), capacity=32, all_logits=True)
    feeds = {
        "tokens": np.array([tokens]),
        "positions": np.arange(12)[None][:, ::-1] + 1,
        "last": np.array([11]),
    }
    got = interp.run(graph, feeds, weights=arrays, states={})["logits"]
    assert far(got, want) > 100 * LIMIT
