"""Decoders that are divided over ranks: the logits and texts of one device, from parts that hold nothing twice."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.errors import BuildError, DeviceUnavailable, PolicyError, RankLost
from xpuruntime.ir import Graph
from xpuruntime.llm import BatchGenerator, Generator, open_checkpoint
from xpuruntime.llm.build import entry_graph
from xpuruntime.llm.parallel.opening import rank_devices
from xpuruntime.llm.parallel.shards import shard_config, shard_of
from xpuruntime.testing.conformance.seeded.decoders import prompt, reference

DIVIDED = ("gemma2", "phi3", "gpt_neox", "gpt2")
"""Post norms and soft caps; fused projections in parts; in groups, in parallel blocks; transposed ones with biases."""
REFUSED = {"olmo2": "norms over all heads", "mixtral": "experts", "bloom": "position biases"}
WORDS: dict[str, Any] = {"capacity": 40, "buckets": (8,), "threads": 1}


def policy(ranks: int) -> dict[str, Any]:
    return {"version": 1, "execution": {"parallel": {"tensor": ranks}}}


def opened(model: Any, ranks: int, **words: Any) -> Generator:
    return Generator(model, policy=policy(ranks), **WORDS | words)


def near(got: Any, want: Any) -> bool:
    return bool(np.abs(got - want).max() <= 2e-5 * np.abs(want).max())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", DIVIDED)
def test_logits_are_those_of_one_device(family: str) -> None:
    model = reference(family)
    tokens = prompt(11)
    with opened(model, 1) as one:
        first, second = one.read(tokens).copy(), one.step(5, 11).copy()
    with opened(model, 2) as two:
        assert two.devices == ("cpu", "cpu")
        assert near(two.read(tokens), first)
        assert near(two.step(5, 11), second)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ranks", [3, 6])
def test_any_number_that_divides_the_heads(ranks: int) -> None:
    """Six query heads. With six ranks and two key heads, three ranks have the same key head."""
    model = reference("llama", num_key_value_heads=3 if ranks == 3 else 2, intermediate_size=192)
    with opened(model, 1) as one:
        want = one.generate(prompt(9), max_new_tokens=6)
        logits = one.read(prompt(9)).copy()
    with opened(model, ranks) as several:
        assert several.generate(prompt(9), max_new_tokens=6).tokens == want.tokens
        assert near(several.read(prompt(9)), logits)


def test_texts_of_every_kind_are_those_of_one_device() -> None:
    """Sampling, batches, beams, speculation: what rank 0 decides, all ranks do."""
    model = reference("qwen2")
    texts = [prompt(5), prompt(9), prompt(3)]
    calls: list[Any] = [
        lambda g: g.generate(texts[1], max_new_tokens=8).tokens,
        lambda g: (
            g.generate(texts[1], max_new_tokens=8, temperature=0.7, seed=4, repetition_penalty=1.2).tokens
        ),
        lambda g: [c.tokens for c in g.generate(texts, max_new_tokens=6)],
        lambda g: [
            c.tokens for c in g.generate([texts[0]], max_new_tokens=6, num_beams=3, num_return_sequences=2)
        ],
        lambda g: g.generate(texts[1] * 2, max_new_tokens=8, prompt_lookup_num_tokens=3).tokens,
        lambda g: [p.token for p in g.stream(texts[2], max_new_tokens=5)],
    ]
    with opened(model, 1, batch=3) as one, opened(model, 2, batch=3) as two:
        for call in calls:
            assert call(one) == call(two)
        receipt = str(two.receipt())
        assert "divided over cpu, cpu" in receipt
        assert "linear layers are divided over cpu, cpu" in two.plan.explain()


def test_parts_hold_every_divided_element_once() -> None:
    checkpoint = open_checkpoint(reference("qwen2"))
    config = checkpoint.config
    local = shard_config(config, 2, "test")
    parts = [shard_of(checkpoint, local, r) for r in range(2)]
    base = config.layer(0)
    for part, axis in (("q", 0), ("k", 0), ("v", 0), ("gate", 0), ("up", 0), ("o", 1), ("down", 1)):
        name = f"{base}.{config.row.parts[part]}.weight"
        whole = np.asarray(checkpoint.arrays[name])
        assert np.array_equal(np.concatenate([p.arrays[name] for p in parts], axis=axis), whole), part
        assert all(p.arrays[name].shape == local.shapes()[name] for p in parts)
        assert all(p.arrays[name].base is not None for p in parts), "a view: what others have is not read"
    bias = f"{base}.{config.row.parts['q']}.bias"
    assert np.array_equal(np.concatenate([p.arrays[bias] for p in parts]), checkpoint.arrays[bias])
    norm = f"{base}.{config.row.parts['input_norm']}.weight"
    assert all(np.array_equal(p.arrays[norm], checkpoint.arrays[norm]) for p in parts)


def test_a_bias_behind_a_sum_is_added_once() -> None:
    checkpoint = open_checkpoint(reference("gpt2"))
    local = shard_config(checkpoint.config, 2, "test")
    first, second = (shard_of(checkpoint, local, r) for r in range(2))
    name = f"{local.layer(0)}.{local.row.parts['o']}.bias"
    assert np.array_equal(first.arrays[name], checkpoint.arrays[name])
    assert not np.asarray(second.arrays[name]).any()


def test_a_vocabulary_that_does_not_divide_stays_whole() -> None:
    """97 words: every rank computes all logits, and nothing is gathered."""
    checkpoint = open_checkpoint(reference("llama"))
    words = {"capacity": 32, "batch": 1, "name": "g"}
    odd = entry_graph("decode", shard_config(checkpoint.config, 2, "test"), **words)
    assert count(odd, "all_gather") == 0
    even = replace(checkpoint.config, vocab=98)
    assert count(entry_graph("decode", shard_config(even, 2, "test"), **words), "all_gather") == 1


def count(graph: Graph, op: str) -> int:
    return sum(n.op == op for n in graph.nodes)


def test_the_vocabulary_is_divided_where_it_can_be() -> None:
    for tied in (True, False):
        model = reference("llama", vocab_size=98, tie_word_embeddings=tied)
        with opened(model, 1, batch=2) as one, opened(model, 2, batch=2) as two:
            want = one.steps.read([prompt(7), prompt(4)]).copy()
            assert near(two.steps.read([prompt(7), prompt(4)]), want)


def test_gpus_that_reach_each_other_add_inside_of_kernels() -> None:
    config = open_checkpoint(reference("llama")).config
    words = {"capacity": 32, "batch": 1, "name": "g"}
    direct = shard_config(config, 2, "test", direct=True)
    decode, long = (entry_graph(e, direct, **words | {"capacity": 2048}) for e in ("decode", "prefill_1024"))
    assert count(decode, "peer_all_reduce") == 2 * config.layers
    assert count(decode, "all_reduce") == 0
    assert count(long, "peer_all_reduce") == 0, "many rows do not fit the boxes"
    assert count(long, "all_reduce") == 2 * config.layers
    program = xrt.compile(decode, target="cuda:sm_90")
    kernels = [c.kernel for c in program.entries[0].plans[0].calls]
    assert kernels.count("other/peers") == 2 * config.layers


def test_weights_come_from_the_store_by_rank(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    reference("llama").save_pretrained(folder)
    for file in folder.iterdir():  # files that have just changed are not kept
        os.utime(file, (1, 1))
    words = WORDS | {"cache_dir": tmp_path / "store"}
    with Generator(folder, policy=policy(2), **words) as first:
        want = first.generate(prompt(6), max_new_tokens=5).tokens
    with Generator(folder, policy=policy(2), **words) as again:
        assert again.generate(prompt(6), max_new_tokens=5).tokens == want
    with Generator(folder, **words) as one:
        assert one.generate(prompt(6), max_new_tokens=5).tokens == want


# ── refusals ──


@pytest.mark.parametrize("family", REFUSED)
def test_families_that_cannot_be_divided_say_why(family: str) -> None:
    with pytest.raises(BuildError, match=REFUSED[family]):
        opened(reference(family), 2)


def test_a_number_that_does_not_divide_is_refused() -> None:
    with pytest.raises(
        BuildError, match=r"cannot be divided over 4 devices; got 6 heads, 2 key heads, 128 inner"
    ):
        opened(reference("llama"), 4)


def test_policies_that_others_cannot_honor_are_refused() -> None:
    model = reference("llama")
    with pytest.raises(PolicyError, match="does not divide a model over several devices"):
        BatchGenerator(model, policy=policy(2), capacity=32)
    with pytest.raises(PolicyError, match="cannot honor parallel"):
        xrt.compile(
            entry_graph("decode", open_checkpoint(model).config, capacity=32, name="g"), policy=policy(2)
        )
    with pytest.raises(PolicyError, match="must be an integer from 1 to 64; got 0"):
        opened(model, 0)
    with pytest.raises(PolicyError, match="no such way to divide a model"):
        Generator(model, policy={"version": 1, "execution": {"parallel": {"pipeline": 2}}})


def test_gpus_that_are_not_there_are_named() -> None:
    assert rank_devices("cuda:1", 1) == ("cuda:1",)
    with pytest.raises(
        DeviceUnavailable, match=r"needs cuda:60 to cuda:63 .* got this machine has \d+ CUDA devices"
    ):
        rank_devices("cuda:60", 4)


def test_a_rank_that_fails_ends_the_group() -> None:
    with opened(reference("llama"), 2) as two:
        two.generate(prompt(4), max_new_tokens=2)
        two.steps._others[0].decode.close()
        with pytest.raises(xrt.RunError, match="is closed"):
            two.step(5, 5)
        with pytest.raises(RankLost):
            two.step(5, 6)
