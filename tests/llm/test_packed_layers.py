"""GPTQ and AWQ folders: their weights are what the formats' formula says, and the model is the one that transformers runs with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.decoder_logits import check_logits
from support.device_under_test import device_name

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from safetensors.numpy import save_file

from xpuruntime.errors import ModelError
from xpuruntime.llm import Generator, open_checkpoint
from xpuruntime.llm.checkpoint.data import blocks_name
from xpuruntime.llm.checkpoint.packed_layers import PackedArrays, PackedFormat
from xpuruntime.llm.checkpoint.quantized import quantized_format
from xpuruntime.runtime.weights.int4 import int4_groups
from xpuruntime.storage.blocks import block_values
from xpuruntime.testing.conformance.seeded.decoders import logits_of, prompt, reference

FORMATS: dict[str, dict[str, Any]] = {
    "gptq": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 64,
        "desc_act": False,
        "checkpoint_format": "gptq",
    },
    "gptq, order of inputs": {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True},
    "gptq v2": {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"},
    "gptq, 8 bits, one group": {"quant_method": "gptq", "bits": 8, "group_size": -1},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
}
PLACE = {"awq": [0, 4, 1, 5, 2, 6, 3, 7]}
"""Where each output of eight is stored in a word of AWQ, counted in fields from the low bits."""


def words(fields: Any, bits: int, places: list[int] | None = None) -> Any:
    """Pack the last dim into int32, one field after the other in Python integers."""
    count = 32 // bits
    places = places or list(range(count))
    rows = fields.reshape(-1, fields.shape[-1] // count, count)
    packed = [[sum(int(v) << bits * places[i] for i, v in enumerate(word)) for word in row] for row in rows]
    return np.array(packed, np.uint32).astype(np.int32).reshape(*fields.shape[:-1], -1)


def packed(weight: Any, words_of: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the parts of a weight, and what they say."""
    n, k = weight.shape
    bits, method = words_of["bits"], words_of["quant_method"]
    group = k if words_of["group_size"] == -1 else words_of["group_size"]
    index = np.arange(k) // group
    if words_of.get("desc_act"):
        index = np.random.default_rng(k).permutation(index)
    groups, most = -(-k // group), 2**bits - 1
    scales, zeros = np.empty((groups, n), np.float16), np.empty((groups, n), np.int64)
    codes = np.empty((n, k), np.int64)
    for g in range(groups):
        of = weight[:, index == g]
        low, high = np.minimum(of.min(1), 0), np.maximum(of.max(1), 0)
        scales[g] = ((high - low) / (most - 1)).astype(np.float16)
        zeros[g] = np.clip(np.rint(-low / scales[g]), 0, most - 1) + (
            method == "gptq" and words_of.get("checkpoint_format") != "gptq_v2"
        )
        codes[:, index == g] = np.clip(
            np.rint(of / scales[g].astype(np.float32)[:, None]) + zeros[g][:, None], 0, most
        )
    exact = scales.astype(np.float64)[index].T * (codes - zeros[index].T)
    if method == "awq":
        parts = {"qweight": words(codes.T, 4, PLACE["awq"]), "qzeros": words(zeros, 4, PLACE["awq"])}
    else:
        stored = zeros - (words_of.get("checkpoint_format") != "gptq_v2")
        parts = {
            "qweight": words(codes, bits).T.copy(),
            "qzeros": words(stored, bits),
            "g_idx": index.astype(np.int32),
        }
    return {**parts, "scales": scales}, exact


def folder_of(path: Path, word: str) -> tuple[Path, Any, dict[str, Any]]:
    """Write a folder. Return it, the module with the weights that it says, and those weights."""
    config = FORMATS[word]
    model = reference("llama", hidden_size=192, intermediate_size=256, tie_word_embeddings=False)
    tensors: dict[str, Any] = {}
    exact: dict[str, Any] = {}
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 2 and "proj" in name:
                parts, exact[name] = packed(p.numpy(), config)
                stem = name.removesuffix(".weight")
                tensors |= {f"{stem}.{part}": x for part, x in parts.items()}
                tensors[f"{stem}.bias"] = np.zeros(len(p), np.float16)
                p.copy_(torch.from_numpy(exact[name].astype(np.float32)))
            else:
                tensors[name] = p.numpy()
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({**model.config.to_dict(), "quantization_config": config}))
    return path, model, exact


@pytest.mark.parametrize("word", FORMATS)
def test_weights_are_what_codes_scales_and_zeros_say(tmp_path: Path, word: str) -> None:
    path, _, exact = folder_of(tmp_path / "model", word)
    found = open_checkpoint(path)
    assert len(exact) == 14
    for name, want in exact.items():
        assert np.array_equal(found.arrays[name], want.astype(np.float32))
        assert found.specs[name].shape == want.shape
        assert name not in found.files


@pytest.mark.sampled(2)
@pytest.mark.parametrize("word", FORMATS)
def test_the_model_is_the_one_that_transformers_runs_with_these_weights(tmp_path: Path, word: str) -> None:
    path, model, _ = folder_of(tmp_path / "model", word)
    check_logits(path, model)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("word", "weights"), [("gptq", "int4_64"), ("gptq v2", "int4"), ("awq", "int4"), ("awq", "int4_64")])  # fmt: skip
def test_weights_of_four_bits_keep_the_codes(tmp_path: Path, word: str, weights: str) -> None:
    """What is lost is the rounding of scales and minima to bfloat16, a tenth of what quantizing lost."""
    path, model, exact = folder_of(tmp_path / "model", word)
    group = int(weights.partition("_")[2] or 32)
    for name, want in exact.items():
        w = want.astype(np.float32)
        if w.shape[1] % group:
            continue
        stored = int4_groups(w, group).view(np.uint8)
        codes = np.stack([stored[..., : group // 2] & 15, stored[..., : group // 2] >> 4], -1).reshape(
            w.shape
        )
        order = np.argsort(w.reshape(len(w), -1, group), axis=-1, kind="stable")
        sorted_codes = np.take_along_axis(codes.reshape(order.shape), order, -1).astype(int)
        steps = np.diff(np.take_along_axis(w.reshape(order.shape), order, -1), axis=-1) > 1e-9
        assert ((np.diff(sorted_codes, axis=-1) > 0) == steps).all(), name
    tokens = prompt(20)
    want = logits_of(model, tokens)
    policy = {
        "version": 1,
        "kernel": {"weights": weights, "rules": [{"op": "matmul", "node": "scores", "weights": "model"}]},
    }
    with Generator(path, capacity=64, buckets=(16,), device=device_name(), policy=policy) as ours:
        assert f"matmul/{'int4_weights' if group == 32 else f'int4_weights_{group}'}" in {
            c.kernel for c in ours.decode.plan.calls
        }
        got = np.stack([ours.step(t, i)[0].copy() for i, t in enumerate(tokens)])
    assert np.linalg.norm(got - want) < 0.06 * np.linalg.norm(want)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("word", FORMATS)
def test_codes_and_numbers_stay_as_they_are_stored(tmp_path: Path, word: str) -> None:
    path, model, exact = folder_of(tmp_path / "model", word)
    found = open_checkpoint(path)
    for name, want in exact.items():
        if name in found.blocks:
            assert np.array_equal(
                block_values(found.arrays[blocks_name(name)], found.blocks[name]), want.astype(np.float32)
            )
    scattered = FORMATS[word].get("desc_act", False)
    widths = {n: w.shape[1] for n, w in exact.items()}
    assert set(found.blocks) == {n for n, k in widths.items() if k % 32 == 0 and not scattered}
    assert scattered or found.blocks
    tokens = prompt(20)
    want = logits_of(model, tokens)
    policy = {"version": 1, "kernel": {"weights": "stored"}}
    with Generator(path, capacity=32, buckets=(16,), device=device_name(), policy=policy) as ours:
        used = {c.kernel for c in ours.decode.plan.calls}
        got = np.stack([ours.step(t, i)[0].copy() for i, t in enumerate(tokens)])
        said = ours.plan.explain()
    assert ("matmul/stored_weights" in used) is not scattered
    assert ("14 gptq of scattered groups as floats" in said) is scattered
    assert np.linalg.norm(got - want) < 1e-4 * np.linalg.norm(want)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"quant_method": "hqq"}, "unsupported quant_method"), ({"bits": 3}, "unsupported bits"), ({"bits": True}, "unsupported bits"),
        ({"group_size": 0}, "unsupported group_size"), ({"group_size": "128"}, "unsupported group_size"),
        ({"checkpoint_format": "marlin"}, "unsupported checkpoint_format"), ({"quant_method": "awq", "version": "gemv"}, "unsupported version"),
        ({"quant_method": "awq", "bits": 8}, "unsupported bits"),
    ],
)  # fmt: skip
def test_formats_that_are_not_supported_are_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        quantized_format({"quantization_config": {**FORMATS["gptq"], **change}}, "model x")


def test_a_config_that_is_no_object_is_refused() -> None:
    with pytest.raises(ModelError, match="unsupported quantization_config"):
        quantized_format({"quantization_config": [4]}, "model x")


def _without(part: str) -> Any:
    return lambda parts: {n: a for n, a in parts.items() if n != part}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_without("scales"), "lacks parts of its packed form"),
        (lambda p: {**p, "qzeros": p["qzeros"][:, :-1]}, "qzeros of a.weight must have the shape"),
        (lambda p: {**p, "scales": p["scales"][:-1]}, "qzeros of a.weight must have the shape"),
        (lambda p: {**p, "qweight": p["qweight"].astype(np.int64)}, "qweight of a.weight must be int32"),
        (lambda p: {**p, "scales": p["scales"].astype(np.int16)}, "scales of a.weight must be floats"),
        (lambda p: {**p, "scales": p["scales"][0]}, "must be matrices"),
        (lambda p: {**p, "weight": np.zeros(3, np.float32)}, "has a weight and its packed form"),
        (lambda p: {**p, "g_idx": p["g_idx"] + 7}, "names a group that it does not have"),
        (lambda p: {**p, "qzeros": np.full_like(p["qzeros"], -1)}, "programs read in two ways"),
    ],
)  # fmt: skip
def test_layers_whose_parts_contradict_each_other_are_refused(change: Any, text: str) -> None:
    parts, _ = packed(np.random.default_rng(0).standard_normal((16, 128)).astype(np.float32), FORMATS["gptq"])
    form = quantized_format({"quantization_config": FORMATS["gptq"]}, "model x")
    assert isinstance(form, PackedFormat)
    whole = PackedArrays({f"a.{n}": x for n, x in parts.items()}, form, (), "model x")
    assert whole["a.weight"].shape == (16, 128)
    with pytest.raises(ModelError, match=text):
        PackedArrays({f"a.{n}": x for n, x in change(parts).items()}, form, (), "model x")["a.weight"]
