"""Folders and modules with weights in fp8: they are what codes and scales say, as transformers dequantizes them, or refused with the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.decoder_logits import check_logits

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from safetensors.torch import save_file

from xpuruntime.errors import ModelError
from xpuruntime.llm import Generator, open_checkpoint
from xpuruntime.llm.checkpoint.fp8_layers import Fp8Arrays, Fp8Format
from xpuruntime.llm.checkpoint.quantized import quantized_format
from xpuruntime.testing.conformance.seeded.decoders import logits_of, prompt, reference

E4M3 = torch.float8_e4m3fn


def compressed(strategy: str, **weights: Any) -> dict[str, Any]:
    words = {
        "num_bits": 8,
        "type": "float",
        "strategy": strategy,
        "symmetric": True,
        "dynamic": False,
        "group_size": None,
    }
    group = {
        "targets": ["Linear"],
        "weights": words | weights,
        "input_activations": {"num_bits": 8, "type": "float", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed", "kv_cache_scheme": None,
        "config_groups": {"group_0": group}, "ignore": ["lm_head"],
    }  # fmt: skip


FORMATS: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "fp8, small blocks": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "weight_block_size": [32, 64],
        "activation_scheme": "dynamic",
    },
    "fp8, one scale": {"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"},
    "compressed, channels": compressed("channel"),
    "compressed, tensors": compressed("tensor"),
    "compressed, blocks": compressed("block", block_structure=[128, 128]),
}


def split(weight: Any, words: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return codes, scales, and the weight that they say."""
    n, k = weight.shape
    strategy = "block"
    if words["quant_method"] == "fp8":
        block = words["weight_block_size"]
        strategy = "block" if block else "tensor"
    else:
        strategy = words["config_groups"]["group_0"]["weights"]["strategy"]
        block = [128, 128]
    rows, columns = {"block": block, "channel": [1, k], "tensor": [n, k]}[strategy]
    scales = torch.zeros(-(-n // rows), -(-k // columns))
    codes, exact = torch.zeros(n, k, dtype=E4M3), torch.zeros(n, k)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = (slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns))
            scales[i, j] = weight[at].abs().max() / 448
            codes[at] = (weight[at] / scales[i, j]).clamp(-448, 448).to(E4M3)
            exact[at] = codes[at].float() * scales[i, j]
    if strategy == "tensor":
        scales = scales.reshape(() if words["quant_method"] == "fp8" else (1,))
    return codes, scales, exact


def model_of(word: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return a module with the weights that a format says, the arrays of its folder, and those weights."""
    words = FORMATS[word]
    model = reference("llama", hidden_size=192, intermediate_size=256, tie_word_embeddings=False)
    tensors: dict[str, Any] = {}
    exact: dict[str, Any] = {}
    with torch.no_grad():
        for name, p in model.named_parameters():
            tensors[name] = p.detach().clone()
            if p.ndim == 2 and "proj" in name:
                suffix = "_scale_inv" if words["quant_method"] == "fp8" else "_scale"
                tensors[name], tensors[name + suffix], exact[name] = split(p, words)
                if words.get("activation_scheme") == "static":
                    tensors[name.replace("weight", "activation_scale")] = torch.ones(())
                p.copy_(exact[name])
    return model, tensors, exact


def folder_of(path: Path, word: str, **change: Any) -> tuple[Path, Any, dict[str, Any]]:
    model, tensors, exact = model_of(word)
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    config = {**model.config.to_dict(), "quantization_config": FORMATS[word] | change}
    (path / "config.json").write_text(json.dumps(config))
    return path, model, exact


@pytest.mark.parametrize("word", FORMATS)
def test_weights_are_what_codes_and_scales_say(tmp_path: Path, word: str) -> None:
    path, _, exact = folder_of(tmp_path / "model", word)
    found = open_checkpoint(path)
    assert len(exact) == 14
    for name, want in exact.items():
        assert np.array_equal(found.arrays[name], want.numpy())
        assert found.specs[name].shape == tuple(want.shape)
        assert name not in found.files
        assert FORMATS[word]["quant_method"] in found.formats[name]
    assert not any("scale" in name for name in found.arrays)


def test_blocks_are_dequantized_as_in_transformers() -> None:
    judge = pytest.importorskip("transformers.integrations.finegrained_fp8").Fp8Dequantize(None)
    draw = torch.Generator().manual_seed(0)
    codes = torch.randn(256, 384, generator=draw).mul(60).to(E4M3)
    scales = torch.rand(2, 3, generator=draw)
    arrays = {
        "w.weight": codes.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn),
        "w.weight_scale_inv": scales.numpy(),
    }
    ours = Fp8Arrays(arrays, Fp8Format("fp8", "block", (128, 128), "_scale_inv"), "model x")
    assert np.array_equal(ours["w.weight"], judge._dequantize_one(codes, scales, torch.float32).numpy())


@pytest.mark.parametrize("shape", [(1, 1), (130, 100), (127, 257), (3, 130, 200)])
def test_blocks_at_the_edges_may_be_smaller(shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)
    codes = draw.standard_normal(shape).astype(ml_dtypes.float8_e4m3fn)
    scales = draw.uniform(0.5, 2, (*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))).astype(
        np.float32
    )
    ours = Fp8Arrays(
        {"w": codes, "w_scale_inv": scales}, Fp8Format("fp8", "block", (128, 128), "_scale_inv"), "x"
    )
    got, want = ours["w"], np.empty(shape, np.float32)
    for at in np.ndindex(shape):
        want[at] = np.float32(codes[at]) * scales[(*at[:-2], at[-2] // 128, at[-1] // 128)]
    assert np.array_equal(got, want)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("word", FORMATS)
def test_the_model_is_the_one_that_transformers_runs_with_these_weights(tmp_path: Path, word: str) -> None:
    path, model, _ = folder_of(tmp_path / "model", word)
    check_logits(path, model)


def test_channels_keep_their_codes_with_weights_in_fp8(tmp_path: Path) -> None:
    """The largest code of a channel is 448, so quantizing again finds the same scales and codes."""
    path, model, _ = folder_of(tmp_path / "model", "compressed, channels")
    policy = {
        "version": 1,
        "kernel": {"weights": "fp8", "rules": [{"op": "matmul", "node": "scores", "weights": "model"}]},
    }
    tokens = prompt(20)
    want = logits_of(model, tokens)
    with Generator(path, capacity=64, buckets=(16,), policy=policy) as ours:
        got = np.stack([ours.step(t, i)[0].copy() for i, t in enumerate(tokens)])
    assert abs(got - want).max() < 1e-4 * abs(want).max()


def test_a_module_in_fp8_is_read_with_its_scales() -> None:
    """The weights of transformers' quantized modules are float8 parameters next to their scales."""
    model, tensors, exact = model_of("fp8")
    for name in exact:
        layer = model.get_submodule(name.rpartition(".")[0])
        layer.weight = torch.nn.Parameter(tensors[name], requires_grad=False)
        layer.weight_scale_inv = torch.nn.Parameter(tensors[f"{name}_scale_inv"], requires_grad=False)
    model.config.quantization_config = FORMATS["fp8"]
    found = open_checkpoint(model)
    for name, want in exact.items():
        assert np.array_equal(found.arrays[name], want.numpy())
    del model.config.quantization_config
    with pytest.raises(ModelError, match=r"weight_scale_inv.*no quantization_config"):
        open_checkpoint(model)


@pytest.mark.parametrize(("word", "change", "text"), [
    ("fp8", {"quant_method": "fbgemm_fp8"}, "unsupported quant_method .*'fbgemm_fp8'.*compressed-tensors"),
    ("fp8", {"quant_method": ["fp8"]}, "unsupported quant_method"),
    ("fp8", {"fmt": "e5m2"}, "unsupported fmt"),
    ("fp8", {"activation_scheme": "other"}, "unsupported activation_scheme"),
    ("fp8", {"weight_block_size": [128]}, "unsupported weight_block_size"),
    ("fp8", {"weight_block_size": [0, 128]}, "unsupported weight_block_size"),
    ("compressed, channels", {"format": "pack-quantized"}, "unsupported format .*'pack-quantized'"),
    ("compressed, channels", {"format": "nvfp4-pack-quantized"}, "unsupported format"),
    ("compressed, channels", {"quantization_status": "calibration"}, "unsupported quantization_status"),
    ("compressed, channels", {"kv_cache_scheme": {"num_bits": 8}}, "unsupported kv_cache_scheme"),
    ("compressed, channels", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "unsupported sparsity_config"),
    ("compressed, channels", {"transform_config": {"a": 1}}, "unsupported transform_config"),
    ("compressed, channels", {"config_groups": {}}, "unsupported config_groups"),
    ("compressed, channels", {"config_groups": {"a": {"weights": None}}}, r"unsupported config_groups\.a\.weights"),
    ("compressed, channels", compressed("group"), r"unsupported config_groups\.group_0\.weights\.strategy .*'group'"),
    ("compressed, channels", compressed("channel", num_bits=4), r"weights\.num_bits .*4"),
    ("compressed, channels", compressed("channel", type="int"), r"weights\.type .*'int'"),
    ("compressed, channels", compressed("channel", dynamic=True), r"weights\.dynamic .*True"),
    ("compressed, channels", compressed("block"), r"weights\.block_structure"),
])  # fmt: skip
def test_formats_that_are_not_supported_are_refused(word: str, change: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        quantized_format({"quantization_config": {**FORMATS[word], **change}}, "model x")


CODES = np.ones((4, 6), ml_dtypes.float8_e4m3fn)


@pytest.mark.parametrize(("arrays", "text"), [
    ({"w": CODES}, "w is float8_e4m3fn without scales; got no w_scale_inv"),
    ({"w": CODES, "w_scale_inv": np.ones((2, 1), np.float32)}, r"w_scale_inv must have the shape \[1, 1\]"),
    ({"w": CODES, "w_scale_inv": np.ones((1, 1), np.uint8)}, "w_scale_inv must be floats"),
    ({"w": CODES[0], "w_scale_inv": np.ones((1, 1), np.float32)}, "w must be a matrix"),
    ({"w": CODES.astype(np.int8), "w_scale_inv": np.ones((1, 1), np.float32)}, "w_scale_inv belongs to no weight"),
    ({"w": CODES.astype(ml_dtypes.float8_e5m2)}, "w has an unsupported type; got float8_e5m2"),
])  # fmt: skip
def test_weights_that_contradict_the_format_are_refused(arrays: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        Fp8Arrays(arrays, Fp8Format("fp8", "block", (128, 128), "_scale_inv"), "model x")


def test_scales_of_activations_have_no_effect() -> None:
    one = np.ones((), np.float32)
    arrays = {"a.weight": CODES, "a.weight_scale": np.full((4, 1), 2, np.float32), "logit_scale": one}
    arrays |= {"a.input_scale": one, "a.k_scale": one}
    read = Fp8Arrays(arrays, Fp8Format("compressed-tensors", "channel", (1, 1), "_scale"), "model x")
    assert {*read} == {"a.weight", "logit_scale"}
    assert np.array_equal(read["a.weight"], np.full((4, 6), 2, np.float32))
    with pytest.raises(ModelError, match=r"b\.weight_scale belongs to no weight"):
        Fp8Arrays(
            arrays | {"b.weight_scale": one},
            Fp8Format("compressed-tensors", "channel", (1, 1), "_scale"),
            "x",
        )


def test_scales_without_a_quantization_config_are_refused(tmp_path: Path) -> None:
    path, model, _ = folder_of(tmp_path / "model", "fp8")
    (path / "config.json").write_text(json.dumps(model.config.to_dict()))
    with pytest.raises(ModelError, match=r"weight_scale_inv.*no quantization_config"):
        open_checkpoint(path)
