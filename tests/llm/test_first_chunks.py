"""Entry points ``first_N``: the first chunk of a prompt attends to its own keys, without a mask over the whole cache."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xpuruntime.errors import OutOfMemory
from xpuruntime.llm import DecoderConfig, Generator
from xpuruntime.llm.build import decoder_graphs, entry_lengths, long_entries
from xpuruntime.llm.chunks import chunk_length
from xpuruntime.passes import run_passes
from xpuruntime.passes.context import PassContext
from xpuruntime.storage.tensor_files import write_safetensors
from xpuruntime.targets import DeviceId

CONFIG = {
    "model_type": "qwen2", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "rope_theta": 1e4, "tie_word_embeddings": True,
    "torch_dtype": "float32", "hidden_act": "silu",
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Generator, Generator]]:
    """Generators of one model: one whose prompts begin with ``first_256``, and one that reads all prompts in chunks of 16."""
    folder: Path = tmp_path_factory.mktemp("first")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    rng = np.random.default_rng(0)
    shapes = DecoderConfig.from_json(CONFIG).shapes()
    arrays = {n: rng.standard_normal(s, np.float32) * np.float32(0.3) for n, s in shapes.items()}
    write_safetensors(arrays, folder / "model.safetensors")
    with (
        Generator(folder, buckets=(16, 256), capacity=300, batch=2) as ours,
        Generator(folder, buckets=(16,), capacity=300, batch=2) as plain,
    ):
        yield ours, plain


@pytest.mark.parametrize("lengths", [(256, 256), (299, 17), (1, 255), (130, 256), (290, 270)])
def test_prompts_have_the_logits_of_masked_chunks(
    models: tuple[Generator, Generator], lengths: tuple[int, int]
) -> None:
    """Texts may be shorter or longer than the chunk; a token that is decoded next sees only its own text."""
    rng = np.random.default_rng(sum(lengths))
    texts = [rng.integers(0, 61, n).tolist() for n in lengths]
    rows: list[list[Any]] = []
    for model in models:
        steps = model.steps
        steps.last.clear()
        rows.append([steps.read(texts).copy()])
        tokens = [3, 5]
        for more in range(min(3, 300 - max(lengths))):
            rows[-1].append(steps.step(tokens, [n + more for n in lengths]).copy())
        assert ("first_256" in steps.last) == (model is models[0])
    for ours, plain in zip(*rows, strict=True):
        assert np.allclose(ours, plain, atol=1e-4 * np.abs(plain).max())


def test_a_prompt_that_continues_a_text_is_read_with_the_mask(models: tuple[Generator, Generator]) -> None:
    rng = np.random.default_rng(8)
    text = rng.integers(0, 61, 290).tolist()
    rows = []
    for model in models:
        model.steps.read([text[:20]])
        model.steps.last.clear()
        rows.append(model.steps.read([text[20:]], start=20)[0].copy())
        assert "first_256" not in model.steps.last
    assert np.allclose(*rows, atol=1e-4 * np.abs(rows[0]).max())


@pytest.fixture
def of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give generators on the CPU the prefill lengths of GPUs."""
    monkeypatch.setattr(
        importlib.import_module("xpuruntime.llm.generate"),  # the package has a function of this name
        "long_entries",
        lambda config, **words: long_entries(config, **words | {"device": DeviceId.parse("cuda")}),
    )


@pytest.mark.usefixtures("of_gpus")
def test_entry_points_of_long_prompts_are_made_when_needed(
    models: tuple[Generator, Generator], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = models[1]
    text = np.random.default_rng(9).integers(0, 61, 299).tolist()
    with Generator(plain.checkpoint, capacity=300, batch=2) as ours:
        steps = ours.steps
        ours.read(text[:100])
        assert not {"first_300", "prefill_300"} & {e.entry.name for e in steps.executors}
        got = steps.read([text])[0].copy()
        assert [e.entry.name for e in steps.executors][-1] == "first_300"
        assert "prefill_300" not in steps.last
        want = plain.steps.read([text])[0].copy()
        assert np.allclose(got, want, atol=1e-4 * np.abs(want).max())
        assert "first_300" in ours.plan.explain()
    with Generator(plain.checkpoint, capacity=300, batch=2, buckets=(16,)) as shorter:
        shorter.steps.read([text])
        assert "first_300" not in shorter.steps.last

    def no_room(*_: object) -> None:
        raise OutOfMemory("device", "cannot allocate 5 bytes", do="Free some.")

    with Generator(plain.checkpoint, capacity=300, batch=2) as ours:
        monkeypatch.setattr(ours.steps, "_further", no_room)
        got = ours.steps.read([text])[0].copy()
        assert "long prompts are read in shorter chunks; [device] cannot allocate 5 bytes" in caplog.text
        assert np.allclose(got, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize(
    ("device", "batch", "capacity", "changes", "want"),
    [
        ("cuda:1", 1, 2048, {}, ["prefill_512", "prefill_1024", "first_512", "first_1024"]),
        ("cuda", 3, 2048, {}, ["prefill_320", "first_320"]),
        ("cuda", 1, 200, {}, ["prefill_200"]),
        ("cuda", 1, 513, {}, ["prefill_513", "first_513"]),
        ("cuda", 1, 2048, {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}, ["prefill_512", "prefill_1024"]),
        ("cuda", 8, 2048, {}, []),
        ("cuda", 1, 128, {}, []),
        ("cpu", 1, 2048, {}, []),
    ],
)  # fmt: skip
def test_which_generators_have_entry_points_of_long_prompts(
    device: str, batch: int, capacity: int, changes: dict[str, Any], want: list[str]
) -> None:
    config = DecoderConfig.from_json(CONFIG | changes)
    assert long_entries(config, capacity=capacity, batch=batch, device=DeviceId.parse(device)) == want


def test_a_chunk_that_does_not_fit_leaves_shorter_ones(
    models: tuple[Generator, Generator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With capacity 300 and lengths of 192 and 300, the longer ones are given up."""
    plain = models[1]
    text = np.random.default_rng(10).integers(0, 61, 299).tolist()
    config = plain.checkpoint.config
    assert long_entries(config, capacity=300, batch=1, device=DeviceId.parse("cuda")) == [
        "prefill_300",
        "first_300",
    ]
    monkeypatch.setattr("xpuruntime.llm.build.LONG_ROWS", (384, 1024))
    monkeypatch.setattr(
        importlib.import_module("xpuruntime.llm.generate"),
        "long_entries",
        lambda config, **words: long_entries(config, **words | {"device": DeviceId.parse("cuda")}),
    )
    with Generator(plain.checkpoint, capacity=300, batch=2) as ours:
        further = ours.steps._further
        assert further is not None

        def little_room(entry: str) -> Any:
            if entry.endswith("300"):
                raise OutOfMemory("device", "cannot allocate 5 bytes", do="Free some.")
            return further(entry)

        monkeypatch.setattr(ours.steps, "_further", little_room)
        got = ours.steps.read([text])[0].copy()
        assert "prefill_192" in ours.steps.last
        want = plain.steps.read([text])[0].copy()
        assert np.allclose(got, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize(
    ("tokens", "want"),
    [
        (1, [1]), (2, [16]), (17, [128]), (128, [128]), (129, [512]), (512, [512]), (513, [1024]), (1025, [1024, 1]), (1100, [1024, 128]),
        (1500, [1024, 512]), (2049, [1024, 1024, 1]), (3000, [1024, 1024, 1024]),
    ],
)  # fmt: skip
def test_chunks_on_a_gpu_take_the_least_time(tokens: int, want: list[int]) -> None:
    chunks = []
    while tokens > 0:
        chunks.append(chunk_length(tokens, (16, 128, 512, 1024), 512))
        tokens -= chunks[-1]
    assert chunks == want


def test_no_other_chunks_take_less_time() -> None:
    rng = np.random.default_rng(3)
    for _ in range(40):
        lengths = tuple(sorted({int(n) for n in rng.integers(2, 40, rng.integers(1, 4))}))
        fixed, tokens = int(rng.integers(1, 30)), int(rng.integers(2, 2 * lengths[-1]))

        @functools.cache
        def least(left: int, lengths: tuple[int, ...] = lengths, fixed: int = fixed) -> int:
            return min(fixed + n + least(left - n) for n in lengths) if left > 0 else 0

        first = chunk_length(tokens, lengths, fixed)
        assert fixed + first + least(tokens - first) == least(tokens)


def test_which_models_and_lengths_have_such_entry_points() -> None:
    def first(buckets: tuple[int, ...], capacity: int = 512, **changes: Any) -> list[str]:
        config = DecoderConfig.from_json(CONFIG | changes)
        entries = entry_lengths(config, capacity=capacity, batch=1, buckets=buckets, name="x")
        return [e for e in entries if e.startswith("first")]

    assert first((16, 128)) == []
    assert first((16, 300, 512)) == ["first_300", "first_512"]
    assert first((2048,), capacity=400) == ["first_400"]
    assert first((300, 512), model_type="mistral", sliding_window=400) == ["first_300"]
    assert first((300, 512), model_type="mistral", sliding_window=None) == ["first_300", "first_512"]


def test_keys_are_rotated_and_kept_in_one_call() -> None:
    """Attention reads a slice of the caches, which the pass looks through."""
    config = DecoderConfig.from_json(CONFIG)
    graph = decoder_graphs(config, capacity=300, buckets=(256,))["first_256"]
    better = run_passes(graph, ["simplify", "cse", "fuse_rope_append"], context=PassContext())
    ops = [n.op for n in better.nodes]
    assert ops.count("rope_append") == config.layers
    assert not {"rope", "index_copy", "le"} & set(ops)
    assert all(n.attrs["causal"] for n in better.nodes if n.op == "attention")
