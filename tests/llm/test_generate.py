"""Generation: what comes out, when it ends, what it costs in memory and calls."""

from __future__ import annotations

import gc
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.device_under_test import device_name

import xpuruntime as xrt
from xpuruntime.errors import BuildError, InputError, ModelError
from xpuruntime.llm import DecoderConfig, Generator, Sampling, decoder_graph, open_checkpoint
from xpuruntime.llm.sampling import probabilities
from xpuruntime.passes.trace import dispatches
from xpuruntime.policies.vocabulary import WEIGHT_KERNELS
from xpuruntime.runtime.weights.int4 import int4_groups, int4_values
from xpuruntime.testing.conformance.seeded.decoders import greedy, prompt, reference

# ── in place, nothing per token ──


@pytest.mark.sampled(1)
def test_the_cache_is_written_where_it_lies(pair: tuple[Any, Generator]) -> None:
    """No call copies a state: the one call of a layer that writes its two writes the rows that are new."""
    _, ours = pair
    sample = ours.steps.executor("sample").entry
    for entry in (*ours.program.entries, sample):
        plan = entry.plans[0]
        states = {b.name for b in plan.buffers if b.kind.value == "state"}
        roots = {b.name: b.root for b in plan.buffers}
        writes = [c for c in plan.calls if any(roots[o] in states for o in c.outputs)]
        if entry.name == "sample":
            assert writes.pop().ops == ("sample_token",)
        assert [c.ops for c in writes] == [("rope_append",)] * ours.config.layers, entry.name
        assert all(len(c.outputs) == 3 for c in writes), entry.name


def test_a_token_costs_its_calls_and_nothing_else(pair: tuple[Any, Generator]) -> None:
    _, ours = pair
    ours.generate(prompt(8), max_new_tokens=4)
    before = ours.decode.counters
    ours.generate(prompt(8), max_new_tokens=101)
    after = ours.decode.counters
    spent = {k: after[k] - before[k] for k in after}
    calls = len(ours.decode.plan.calls)
    assert (spent.pop("runs"), spent.pop("dispatches")) == (100, 100 * calls)
    assert not any(spent.values()), spent  # no allocation, no copy, nothing prepared


@pytest.mark.sampled(one_in=2)
def test_memory_is_flat_over_a_thousand_tokens() -> None:
    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")
    with Generator(reference("llama", max_position_embeddings=1200), capacity=1200, buckets=(16,)) as ours:
        ours.generate(prompt(8), max_new_tokens=50)
        before = resident()
        done = ours.generate(prompt(8), max_new_tokens=1000)
        assert len(done.tokens) == 1000
        assert resident() - before < 1 << 20


def test_the_program_makes_the_calls_that_the_graph_promises(pair: tuple[Any, Generator]) -> None:
    """What the null device records is what the plan lists: a device that computes nothing still counts."""
    _, ours = pair
    device = xrt.NullBackend()
    executor = xrt.Executor(ours.program, device, entry="decode")
    arrays = {w.name: np.zeros(w.spec.shape, w.spec.dtype.numpy) for w in ours.program.weights}
    executor.bind(xrt.load_weights(arrays, ours.program, device))
    feeds = [np.zeros([int(d) for d in s.shape], s.dtype.numpy) for s in executor.entry.inputs]
    executor.run_arrays(feeds)
    recorded = executor.counters["dispatches"]
    assert recorded == len(ours.decode.plan.calls)


def test_a_layer_takes_seven_calls_or_fewer(pair: tuple[Any, Generator]) -> None:
    _, ours = pair
    kernels = Counter(c.kernel for c in ours.decode.plan.calls)
    assert len(ours.decode.plan.calls) <= 7 * ours.config.layers + 4, kernels


# ── narrower weights ──


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kernel", "group", "share", "limit"),
    [("int8_weights", 0, 0.30, 0.06), ("int4_weights", 32, 0.20, 0.65), ("int4_weights_64", 64, 0.19, 0.65)],
)
def test_weights_of_fewer_bits_are_the_rounded_model_in_little_memory(
    kernel: str, group: int, share: float, limit: float
) -> None:
    """Random weights are the worst for few bits: errors grow over layers that nothing was trained to forgive. What is computed is exact, though:
    PyTorch says the same with the weights rounded so.
    """
    import torch

    from xpuruntime.testing.conformance.seeded.decoders import logits_of

    sizes = {"tie_word_embeddings": False, "hidden_size": 192, "intermediate_size": 256}
    model = reference("llama", **sizes)
    word = next(w for w, k in WEIGHT_KERNELS.items() if k == kernel)
    policy = {"version": 1, "kernel": {"weights": word}}
    tokens = prompt(30)
    want = logits_of(model, tokens)
    with Generator(model, capacity=64, buckets=(16,), device=device_name()) as plain:
        whole, calls = plain.weights.size_bytes, len(plain.decode.plan.calls)
    with Generator(model, capacity=64, buckets=(16,), policy=policy, device=device_name()) as small:
        kernels = {c.kernel for e in small.program.entries for c in e.plans[0].calls if "matmul" in c.kernel}
        assert (kernels, len(small.decode.plan.calls)) == ({f"matmul/{kernel}"}, calls)
        table = 97 * 192 * 4  # what embeds tokens is no product
        padding = 1 if device_name() == "cpu" else 4 / 3  # tiles of 128 inputs: 192 become 256
        assert small.weights.size_bytes - table < padding * share * (whole - table)
        read = small.read(tokens)[0].copy()
        got = np.stack([small.step(t, i)[0].copy() for i, t in enumerate(tokens)])
    far = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
    assert 0.01 < np.median(far) < limit
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 2 and "embed" not in name:
                p.copy_(torch.from_numpy(_rounded(p.numpy(), group)))
    exact = logits_of(model, tokens)
    assert abs(got - exact).max() < 2e-4 * abs(exact).max()
    assert abs(read - exact[-1]).max() < 2e-4 * abs(exact).max()


@pytest.mark.skipif(device_name() != "cpu", reason="only CPUs round activations")
def test_activations_of_8_bits_are_the_model_that_rounds_them() -> None:
    """Prefill and decode, with the weights of ``weights: int8`` alone. PyTorch says the same with weights and inputs rounded so, as far as a value
    between two codes rounds to the same one.
    """
    import torch
    from kernels.test_int4_by_int8 import in_codes

    from xpuruntime.testing.conformance.seeded.decoders import logits_of

    sizes = {"tie_word_embeddings": False, "hidden_size": 192, "intermediate_size": 264}
    model, tokens = reference("llama", **sizes), prompt(30)
    policy = {"version": 1, "kernel": {"weights": "int8", "activations": "int8"}}
    with Generator(model, capacity=64, buckets=(16,), policy=policy) as ours:
        calls = [c for e in ours.program.entries for c in e.plans[0].calls if "matmul" in c.kernel]
        assert {c.kernel for c in calls} == {"matmul/int8_by_int8"}
        read = ours.read(tokens)[0].copy()
        got = np.stack([ours.step(t, i)[0].copy() for i, t in enumerate(tokens)])

    def rounds(_: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (torch.from_numpy(in_codes(inputs[0].numpy(), 32)),)

    with torch.no_grad():
        for module in (m for m in model.modules() if isinstance(m, torch.nn.Linear)):
            module.weight.copy_(torch.from_numpy(_rounded(module.weight.numpy(), 0)))
        floats = logits_of(model, tokens)
        for module in (m for m in model.modules() if isinstance(m, torch.nn.Linear)):
            module.register_forward_pre_hook(rounds)
        want = logits_of(model, tokens)

    def far(from_: np.ndarray[Any, Any]) -> float:
        both = np.concatenate([got - from_, read[None] - from_[-1:]])
        return float(np.median(np.linalg.norm(both, axis=1)) / np.median(np.linalg.norm(from_, axis=1)))

    assert far(want) < 1e-4
    assert 0.01 < far(floats) < 0.06


def _rounded(w: np.ndarray[Any, Any], group: int) -> np.ndarray[Any, Any]:
    """What is left of a weight in int8 by rows (group 0) or in int4 by groups."""
    if not group:
        scale = abs(w).max(1, keepdims=True) / np.float32(127)
        return (np.rint(w / scale) * scale).astype(np.float32)
    wide = np.pad(w, ((0, 0), (0, -w.shape[1] % group)))
    return int4_values(int4_groups(wide, group), group)[:, : w.shape[1]]


def test_prefill_and_decode_share_their_weights() -> None:
    """Every matrix is there once, and the tied one twice: as table and as output layer."""
    model = reference("llama", hidden_size=192, intermediate_size=256, vocab_size=128)
    with Generator(model, capacity=64, buckets=(8, 16)) as ours:
        whole = sum(p.numel() for n, p in model.named_parameters()) * 4
        table = 128 * 192 * 4
        rotary = 2 * 64 * 8 * 4
        assert (
            ours.weights.size_bytes < whole + table + rotary + 0.1 * whole
        )  # columns are filled up to whole panels


# ── how it ends ──


def test_a_stop_token_ends_a_text_and_is_no_part_of_it(pair: tuple[Any, Generator]) -> None:
    model, ours = pair
    want = greedy(model, prompt(21), 40)
    stop = want[20]
    done = ours.generate(prompt(21), max_new_tokens=40, stops=[stop])
    assert (list(done.tokens), done.finish) == (want[: want.index(stop)], "stop")


def test_a_text_ends_where_it_is_told_or_has_no_room(pair: tuple[Any, Generator]) -> None:
    _, ours = pair
    done = ours.generate(prompt(5), max_new_tokens=3)
    assert (len(done.tokens), done.finish) == (3, "length")
    full = ours.generate(prompt(250), max_new_tokens=100)
    assert (len(full.tokens), full.finish) == (256 - 250 + 1, "capacity")


def test_a_batch_of_prompts_of_different_lengths_is_each_of_them_alone(pair: tuple[Any, Generator]) -> None:
    _, ours = pair
    prompts = [prompt(n, seed=n) for n in (1, 17, 60)]
    together = ours.generate_batch(prompts, max_new_tokens=10)
    assert together == [ours.generate(p, max_new_tokens=10) for p in prompts]
    rows = np.stack([prompt(9, seed=n) for n in (1, 2)])
    assert ours.generate_batch(rows, max_new_tokens=3) == ours.generate_batch([*rows], max_new_tokens=3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_prompts_that_go_on_together_answer_as_alone(family: str) -> None:
    """Lengths of one piece and several, more prompts than rows, ends at a stop token of one and by length of others."""
    model = reference(family)
    prompts = [prompt(n, seed=n) for n in (1, 17, 60, 8, 33)]
    want = [greedy(model, p, 25) for p in prompts]
    stop = want[1][7]
    with Generator(model, capacity=128, buckets=(8, 32), batch=3) as ours:
        done = ours.generate(prompts, max_new_tokens=25, stops=[])
        assert [list(d.tokens) for d in done] == want
        ends = ours.generate(prompts, max_new_tokens=25, stops=[stop])
        cut = [w[: w.index(stop)] if stop in w else w for w in want]
        assert [list(d.tokens) for d in ends] == cut
        assert [d.finish for d in ends] == ["stop" if stop in w else "length" for w in want]
        assert [d.prompt_tokens for d in ends] == [len(p) for p in prompts]
        # One alone, and drawn ones: the same as in any company.
        assert list(ours.generate(prompts[2], max_new_tokens=25, stops=[]).tokens) == want[2]
        drawn = {"max_new_tokens": 12, "temperature": 1.2, "seed": 5}
        assert ours.generate(prompts, **drawn) == [ours.generate(p, **drawn) for p in prompts]
        full = ours.generate([prompt(120), prompt(4)], max_new_tokens=30, stops=[])
        assert [(len(d.tokens), d.finish) for d in full] == [(9, "capacity"), (30, "length")]


def test_logits_of_a_batch_are_those_of_each_text() -> None:
    from xpuruntime.testing.conformance.seeded.decoders import logits_of

    model = reference("qwen2")
    texts = [prompt(n, seed=n) for n in (40, 3, 21, 12)]
    with Generator(model, capacity=64, buckets=(16,), batch=4) as ours:
        got = ours.steps.read(texts)
        for row, text in enumerate(texts):
            want = logits_of(model, text)[-1]
            assert abs(got[row] - want).max() < 1e-4 * abs(want).max()


def test_a_batch_is_decoded_by_the_same_few_calls_and_copies_nothing() -> None:
    with Generator(reference("qwen2"), capacity=64, buckets=(16,), batch=4) as ours:
        ours.generate([prompt(5), prompt(9)], max_new_tokens=3)
        before = ours.decode.counters
        ours.generate([prompt(5), prompt(9)], max_new_tokens=21)
        spent = {k: v - before[k] for k, v in ours.decode.counters.items()}
        assert (spent["runs"], spent["allocations"], spent["copies"]) == (20, 0, 0)
        assert len(ours.decode.plan.calls) <= 7 * ours.config.layers + 4
        plans = [e.plan for e in (*ours.steps.executors, ours.steps.executor("sample"))]
        writers = [c for p in plans for c in p.calls if "rope_append" in c.ops]
        assert len(writers) == 3 * ours.config.layers  # prefill, decode, and decode with sampling


def test_pieces_of_several_prompts_are_refused(pair: tuple[Any, Generator]) -> None:
    _, ours = pair
    with pytest.raises(InputError, match="supports on_piece for a single prompt only; got 2"):
        ours.generate([[1], [2]], on_piece=print)
    with pytest.raises(InputError, match="batch must be at least 1; got 0"):
        Generator(reference("llama"), batch=0)


def test_pieces_come_one_by_one_and_a_stream_may_be_left(pair: tuple[Any, Generator]) -> None:
    _, ours = pair
    whole = ours.generate(prompt(9), max_new_tokens=12)
    stream = ours.stream(prompt(9), max_new_tokens=12)
    assert [next(stream).token for _ in range(3)] == list(whole.tokens[:3])
    with pytest.raises(InputError, match="has another active stream on this thread"):
        ours.generate(prompt(9))
    stream.close()
    assert ours.generate(prompt(9), max_new_tokens=12) == whole


# ── sampling ──


def test_a_seed_draws_the_same_and_another_does_not(pair: tuple[Any, Generator]) -> None:
    _, ours = pair
    options = {"max_new_tokens": 30, "temperature": 1.5}
    first, again, other = (ours.generate(prompt(9), seed=s, **options).tokens for s in (1, 1, 2))
    assert first == again != other


def test_top_k_and_top_p_keep_the_likeliest() -> None:
    logits = np.log(np.array([0.15, 0.5, 0.05, 0.3], np.float32))
    assert probabilities(logits, Sampling(1.0, top_k=2)).tolist() == pytest.approx([0, 0.625, 0, 0.375])
    assert probabilities(logits, Sampling(1.0, top_p=0.6)).tolist() == pytest.approx([0, 0.625, 0, 0.375])
    assert probabilities(logits, Sampling(1.0, top_p=0.4)).tolist() == [0, 1, 0, 0]
    cold = probabilities(logits, Sampling(0.5))
    assert cold.tolist() == pytest.approx([x / 0.365 for x in (0.0225, 0.25, 0.0025, 0.09)], rel=1e-5)


# ── what is refused ──


def test_prompts_that_cannot_be_read_are_refused(pair: tuple[Any, Generator]) -> None:
    _, ours = pair
    with pytest.raises(InputError, match="needs a prompt of one token or more"):
        ours.generate([])
    with pytest.raises(InputError, match="has no tokenizer"):
        ours.generate("words")
    with pytest.raises(InputError, match="takes tokens from 0 to 96; got 97"):
        ours.generate([97])
    with pytest.raises(InputError, match="has a capacity of 256 tokens; got 257"):
        ours.generate([1] * 257)
    with pytest.raises(InputError, match="needs max_new_tokens of at least 1"):
        ours.generate([1], max_new_tokens=0)


def test_a_capacity_beyond_the_model_is_refused() -> None:
    with pytest.raises(BuildError, match="has a capacity that is out of range; got 512"):
        Generator(reference("llama"), capacity=512)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, "has a capacity that is out of range; got 0"),
        ({"capacity": 32.5}, "has invalid capacity; got .32.5.*Give a whole number"),
        ({"batch": "2"}, "batch must be a whole number; got '2'"),
        ({"batch": 0}, "batch must be at least 1; got 0"),
        ({"buckets": 5}, "has invalid buckets; got 5. Give a list of whole numbers"),
        ({"buckets": [16, 0]}, "needs prefill lengths of 1 or more"),
    ],
)
def test_sizes_that_are_no_counts_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((BuildError, InputError), match=message):
        Generator(reference("llama"), **options)


def test_sampling_without_a_temperature_is_refused() -> None:
    with Generator(reference("llama"), capacity=32, buckets=(16,)) as ours:
        with pytest.raises(InputError, match="cannot sample at a temperature of 0"):
            ours.generate([1, 2], do_sample=True, temperature=0, max_new_tokens=2)
        assert ours.generate([1, 2], temperature=0, max_new_tokens=2).tokens


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "has an unsupported model_type; got 'mamba'"),
        (
            {"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"] * 2},
            "got 'qwen3_next', whose layers 0, 2 are linear attention, with a state instead of keys and values. Generate with transformers",
        ),
        (
            {"model_type": "qwen3_5", "text_config": {"layer_types": ["linear_attention"] * 9}},
            "got 'qwen3_5', whose layers 0, 1, 2, 3, ... are linear attention",
        ),
        (
            {"model_type": "qwen3_5", "text_config": 3, "layer_types": "linear_attention"},
            "unsupported model_type; got 'qwen3_5'. ",
        ),
        ({"hidden_act": "mish"}, "unsupported hidden_act"),
        ({"rope_parameters": {"rope_type": "ntk"}}, "have an unsupported scaling"),
        ({"use_sliding_window": True, "sliding_window": -3}, "has a sliding_window that is not"),
    ],
)
def test_models_that_would_come_out_wrong_are_refused(change: dict[str, Any], message: str) -> None:
    data = {**reference("qwen2").config.to_dict(), **change}
    with pytest.raises(ModelError, match=message):
        DecoderConfig.from_json(data)


# ── files ──


@pytest.mark.parametrize("shards", [False, True])
def test_a_folder_is_the_model_that_was_saved_there(tmp_path: Path, shards: bool) -> None:
    model = reference("qwen2", eos_token_id=5)
    model.save_pretrained(tmp_path, max_shard_size="100KB" if shards else "1GB")
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == shards
    found = open_checkpoint(tmp_path)
    assert found.config.stops == (5,)
    assert set(found.files) >= set(found.config.shapes())
    done = xrt.generate(tmp_path, prompt(12), max_new_tokens=16, capacity=64, buckets=(16,), stops=[])
    assert list(done.tokens) == greedy(model, prompt(12), 16)


def test_a_folder_that_lacks_a_shard_or_a_weight_says_so(tmp_path: Path) -> None:
    reference("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ModelError, match=r"weights are missing; got model\.layers\.2\."):
        open_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="has no weights"):
        open_checkpoint(tmp_path)


# ── the headline's exact shapes ──

QWEN2_5_1_5B = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "eos_token_id": 151643,
    "use_sliding_window": False, "sliding_window": 131072, "hidden_act": "silu",
}  # fmt: skip


def test_qwen2_5_1_5b_decodes_in_far_fewer_dispatches_than_the_specification_asks() -> None:
    from xpuruntime.llm.build import FUSIONS
    from xpuruntime.passes import PassContext, run_passes

    config = DecoderConfig.from_json(QWEN2_5_1_5B)
    assert sum(int(np.prod(s)) for s in config.shapes().values()) == 1_543_714_304
    graph = decoder_graph(config, length=1, capacity=2048)
    there = PassContext(has_kernel=lambda op: op != "rope_attention")  # as on processors
    fused = dispatches(run_passes(graph, FUSIONS, context=there))
    assert fused == 6 * 28 + 4
    assert fused + 28 == 200 < 1038  # attention over 2,048 keys is two calls: parts, and what joins them
