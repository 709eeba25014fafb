"""Weights that stay in the blocks of a GGUF file: the model is the one with the values of the format's own package, and the receipt says what stayed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.blocks import HALVES, random_blocks
from support.device_under_test import device_name

pytest.importorskip("gguf")
pytest.importorskip("torch")
pytest.importorskip("transformers")

import gguf
import torch
from llm.test_gguf import PLAIN, written

from xpuruntime.llm import BatchGenerator, Generator, open_checkpoint
from xpuruntime.llm.calibrate import calibrated
from xpuruntime.llm.checkpoint.data import blocks_name
from xpuruntime.storage.blocks import BLOCK_FORMATS
from xpuruntime.testing.conformance.seeded.decoders import logits_of, prompt, reference

STORED = {"version": 1, "kernel": {"weights": "stored"}}
MIXED = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "output": "Q6_K", "token_embd": "Q6_K"}
"""Parts that files of the kind Q4_K_M store in another format than the rest."""


EXPERTS = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": False,
}


def file_of(
    folder: Path, name: str, others: dict[str, str] | None = None, experts: bool = False
) -> tuple[Path, Any]:
    """Write a small Llama, or a Qwen3 with experts, whose matrices are blocks of random bits. Return the file, and transformers' model with the
    same values.
    """
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    }
    model = reference("qwen3_moe", **EXPERTS) if experts else reference("llama", **sizes, **PLAIN)
    blocks: dict[str, Any] = {}
    add = gguf.GGUFWriter.add_tensor

    def in_blocks(writer: Any, tensor: str, array: Any) -> None:
        if array.ndim < 2 or "ffn_gate_inp" in tensor:
            return add(writer, tensor, array)
        part = tensor.removesuffix(".weight").rpartition(".")[2]
        kind = (others or {}).get(part, name)
        values = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        if kind in BLOCK_FORMATS:
            rows = math.prod(array.shape[:-1])
            raw = random_blocks(kind, rows, array.shape[-1] // values[0], seed=len(blocks))
            blocks[tensor] = raw.reshape(*array.shape[:-1], -1)
        else:
            blocks[tensor] = np.zeros((len(array), array.shape[1] // values[0] * values[1]), np.uint8)
        return add(writer, tensor, blocks[tensor], raw_dtype=gguf.GGMLQuantizationType[kind])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_tensor", in_blocks)
        file = written(folder, "qwen3moe" if experts else "llama", model)
    arrays = dict(open_checkpoint(file).arrays)  # dequantized by the package
    if experts:
        for i in range(model.config.num_hidden_layers):
            at = f"model.layers.{i}"
            gate, up = (arrays.pop(f"{at}.ffn_{part}_exps.weight") for part in ("gate", "up"))
            arrays[f"{at}.mlp.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
            arrays[f"{at}.mlp.experts.down_proj"] = arrays.pop(f"{at}.ffn_down_exps.weight")
            arrays[f"{at}.mlp.gate.weight"] = arrays.pop(f"{at}.ffn_gate_inp.weight")
    model.load_state_dict({n: torch.from_numpy(np.array(a)) for n, a in arrays.items()})
    return file, model


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*HALVES, "Q4_K_M"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_model_is_the_one_with_the_files_values(tmp_path: Path, name: str, dtype: str) -> None:
    mixed = name.endswith("_M")
    file, model = file_of(tmp_path, name.removesuffix("_M"), MIXED if mixed else None)
    tokens = prompt(20)
    want = logits_of(model, tokens)
    with Generator(
        file, capacity=32, buckets=(16,), dtype=dtype, policy=STORED, device=device_name()
    ) as ours:
        got = np.stack([ours.step(t, i)[0].astype(np.float32) for i, t in enumerate(tokens)])
        read = ours.read(tokens)[0].astype(np.float32)
        used = {c.kernel for c in ours.decode.plan.calls if c.kernel.startswith(("matmul/", "norm/"))}
        said = next(d for d in ours.plan.decisions if d.question == "stored weights")
    assert used == {"matmul/stored_weights"}  # norms are part of the layers after them
    limit = {"float32": 1e-5, "bfloat16": 0.05}[dtype]
    for mine, theirs in ((got, want), (read, want[-1])):
        assert np.linalg.norm(mine - theirs) < limit * np.linalg.norm(theirs)
    assert said.chosen is not None
    layers, own = model.config.num_hidden_layers, name.removesuffix("_M")
    kept = {own: 5 * layers, "Q6_K": 2 * layers + 1} if mixed else {own: 7 * layers + 1}
    assert said.chosen.facts == {"in blocks": kept, "as floats": {"Q6_K" if mixed else own: 1}}


def test_experts_stay_in_their_blocks(tmp_path: Path) -> None:
    file, model = file_of(tmp_path, "Q4_0", {"ffn_down_exps": "Q8_0", "ffn_up_exps": "Q4_1"}, experts=True)
    tokens = prompt(20)
    want = logits_of(model, tokens)
    with Generator(file, capacity=32, buckets=(16,), policy=STORED, device=device_name()) as ours:
        got = np.stack([ours.step(t, i)[0].copy() for i, t in enumerate(tokens)])
        read = ours.read(tokens)[0].copy()
        plans = [e.plans[0] for e in ours.program.entries]
        said = next(d for d in ours.plan.decisions if d.question == "stored weights")
        assert not ours.notes
    for plan in plans:
        used = {c.kernel for c in plan.calls if "expert_linear" in c.ops}
        assert used == {"matmul/stored_weights"}
    for mine, theirs in ((got, want), (read, want[-1])):
        assert np.linalg.norm(mine - theirs) < 1e-4 * np.linalg.norm(theirs)
    assert said.chosen is not None
    assert said.chosen.facts["as floats"] == {"Q4_0": 1}  # the table of embeddings


def test_a_batch_of_texts_reads_blocks_too(tmp_path: Path) -> None:
    file, model = file_of(tmp_path, "Q4_0")
    texts = [prompt(9), prompt(14, seed=1), prompt(5, seed=2)]
    with BatchGenerator(
        file, capacity=32, texts=3, step_tokens=16, policy=STORED, device=device_name(), cache_tokens=128
    ) as ours:
        assert "matmul/stored_weights" in {c.kernel for e in ours.program.entries for c in e.plans[0].calls}
        got = [c.tokens for c in ours.generate(texts, max_new_tokens=6, eos_token_id=[])]
    for text, tokens in zip(texts, got, strict=True):
        logits = logits_of(model, [*text, *tokens])[len(text) - 1 : -1]
        chosen = logits[np.arange(len(tokens)), list(tokens)]
        assert (chosen >= logits.max(1) - 1e-4 * abs(logits).max()).all()


def test_without_the_word_and_for_other_formats_weights_are_floats_and_it_is_said(tmp_path: Path) -> None:
    file, _ = file_of(tmp_path, "Q4_0", {"ffn_down": "Q3_K"})
    for policy, text in (
        (STORED, "13 Q4_0 in blocks, 2 Q3_K as floats, 1 Q4_0 as floats"),
        (None, "2 Q3_K as floats, 14 Q4_0 as floats"),
    ):
        with Generator(file, capacity=32, buckets=(16,), policy=policy, device=device_name()) as ours:
            assert text in ours.plan.explain()


def test_blocks_are_the_files_bytes_in_the_order_of_the_checkpoint(tmp_path: Path) -> None:
    file, _ = file_of(tmp_path, "Q4_K", MIXED)
    found = open_checkpoint(file)
    for name, kind in found.blocks.items():
        raw = found.arrays[blocks_name(name)]
        assert raw.dtype == np.uint8
        assert np.array_equal(
            gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]), found.arrays[name]
        )
    assert blocks_name("model.norm.weight") not in found.arrays
    assert set(found.arrays) == set(found.specs)


def test_a_calibrated_checkpoint_has_no_blocks_left(tmp_path: Path) -> None:
    file, _ = file_of(tmp_path, "Q4_0")
    found = calibrated(open_checkpoint(file), [prompt(64)], length=32)
    assert not found.blocks
