"""What ``save_pretrained`` writes is enough for ``load_weights``: buffers that it leaves out, tied weights, prefixes, renamed weights, shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 64,
}
IMAGE = {"image_size": 32, "patch_size": 8}
TYPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**SMALL, "num_key_value_heads": 2}),
    "qwen2_tied": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {**SMALL, "num_key_value_heads": 2, "tie_word_embeddings": True},
    ),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {**SMALL, "num_key_value_heads": 1, "head_dim": 8}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64}),
    "bert": ("BertForMaskedLM", "BertConfig", {**SMALL, "max_position_embeddings": 32}),
    "t5_encoder": (
        "T5EncoderModel",
        "T5Config",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 64},
    ),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        {k: v for k, v in SMALL.items() if k != "vocab_size"} | IMAGE,
    ),
    "swin": (
        "SwinForImageClassification",
        "SwinConfig",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2]}
        | {"window_size": 4},
    ),
}


class Wrapped(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A transformers model with one input and one output."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input: Any) -> Any:  # noqa: A002
        options = {"use_cache": False} if hasattr(self.inner.config, "use_cache") else {}
        return self.inner(input, **options)[0]


def made(name: str) -> tuple[Any, Any]:
    """A small seeded model of a type, and an example input."""
    model, config, sizes = TYPES[name]
    torch.manual_seed(0)
    inner = getattr(transformers, model)(getattr(transformers, config)(**sizes)).eval()
    image = "image_size" in sizes
    return Wrapped(inner).eval(), torch.randn(1, 3, 32, 32) if image else torch.randint(0, 64, (1, 8))


def run(program: Any, x: Any, weights: Any) -> np.ndarray[Any, Any]:
    outputs = xrt.Executor(program, "cpu").run({"input": x.numpy()}, weights)
    return outputs["output"].to_numpy()  # type: ignore[no-any-return]


def expect(got: np.ndarray[Any, Any], module: Any, x: Any) -> None:
    with torch.no_grad():
        want = module(x).numpy()
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", list(TYPES))
def test_a_saved_model_is_enough(name: str, tmp_path: Path) -> None:
    module, x = made(name)
    xrt.extract_ir(module, x, model_name=name).save(tmp_path / "ir.json")
    xrt.compile(tmp_path / "ir.json").save(tmp_path / "program.npubin")
    program = xrt.CompiledProgram.load(tmp_path / "program.npubin")
    module.inner.save_pretrained(tmp_path / "whole")
    expect(run(program, x, xrt.load_weights(tmp_path / "whole", program)), module, x)
    expect(run(program, x, xrt.load_weights(tmp_path / "whole" / "model.safetensors", program)), module, x)


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    module, x = made("llama")
    module.inner.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    program = xrt.compile(xrt.extract_ir(module, x))
    index = tmp_path / "model.safetensors.index.json"
    for source in (tmp_path, index):
        expect(run(program, x, xrt.load_weights(source, program)), module, x)


def test_a_base_model_takes_the_checkpoint_of_a_larger_one(tmp_path: Path) -> None:
    whole, x = made("bert")
    whole.inner.save_pretrained(tmp_path)
    base = Wrapped(whole.inner.bert).eval()
    program = xrt.compile(xrt.extract_ir(base.inner, {"input_ids": x}))
    outputs = xrt.Executor(program).run({"input_ids": x.numpy()}, xrt.load_weights(tmp_path, program))
    expect(outputs["last_hidden_state"].to_numpy(), base, x)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_state_dict_of_tensors_is_a_source(dtype: str) -> None:
    module, x = made("qwen2_tied")
    module = module.to(getattr(torch, dtype))
    program = xrt.compile(xrt.extract_ir(module, x))
    got = run(program, x, xrt.load_weights(module.inner.state_dict(), program)).astype(np.float32)
    with torch.no_grad():
        want = module(x).float().numpy()
    assert np.abs(got - want).max() <= (1e-5 if dtype == "float32" else 3e-2) * np.abs(want).max()


def test_mixed_regions_take_a_checkpoint_too(tmp_path: Path) -> None:
    module, x = made("llama")
    module.inner.save_pretrained(tmp_path)
    graph = xrt.extract_ir(module, x)
    dag = xrt.DAGExecutor(xrt.partition(graph.to_json(), xrt.is_op_supported), xrt.CpuBackend())
    dag.load_weights(tmp_path)
    expect(dag.execute({"input": x.numpy()})["output"], module, x)
    dag.close()


def test_what_no_checkpoint_holds_travels_in_the_graph() -> None:
    module, x = made("llama")
    graph = xrt.extract_ir(module, x)
    (held,) = [w for w in graph.weights if w.data]
    assert held.name.endswith("rotary_emb.inv_freq")
    np.testing.assert_array_equal(held.array(), module.inner.model.rotary_emb.inv_freq.numpy())
    meta = Wrapped(transformers.LlamaForCausalLM(module.inner.config)).eval().to("meta")
    graph = xrt.extract_ir(meta, x.to("meta"))
    assert [w.name for w in graph.weights if w.data] == [], "no content is there to travel"
