"""ResNet-50, BERT, GPT-2 and a block of Qwen2 with random weights, of full size and small, for certificates of training and session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["EXACT", "NETWORKS", "build"]

EXACT: Mapping[str, Any] = {
    "version": 1,
    "kernel": {
        "rules": [{"deterministic": True}, {"op": "matmul", "use": "generated"}],
        "conv": ["implicit_gemm", "generated"],
        "attention": ["flash_v2", "flash", "naive"],
    },
    "execution": {"optimization_level": 0},
}
"""The policy under which both sides must be equal bit by bit."""

_WORDS = {"vocab_size": 100, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
NETWORKS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "resnet50": ("ResNet", {}, {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 2]}),
    "bert": (
        "Bert",
        {},
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, **_WORDS},
    ),
    "gpt2": ("GPT2", {"use_cache": False}, {"use_cache": False, "n_embd": 64, "n_layer": 2, "n_head": 4, **_WORDS}),
    "qwen2_block": (
        "Qwen2",
        {"hidden_size": 1536, "num_hidden_layers": 1, "num_attention_heads": 12, "num_key_value_heads": 2, "intermediate_size": 8960, "use_cache": False, **_WORDS},
        {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "use_cache": False, **_WORDS},
    ),
}  # fmt: skip
"""Name -> transformers' class of models, the configuration of full size, and a small one."""


def build(name: str, size: str, dtype: torch.dtype) -> tuple[torch.nn.Module, torch.Tensor]:
    """Return a network in eval mode and an example input. size: ``full`` or ``small``."""
    import transformers

    family, full, small = NETWORKS[name]
    config = getattr(transformers, f"{family}Config")(**(full if size == "full" else small))
    torch.manual_seed(0)
    module = getattr(transformers, f"{family}Model")(config).eval().to(dtype)
    if name == "resnet50":
        sides = 224 if size == "full" else 32
        return module, torch.randn(1 if size == "full" else 2, 3, sides, sides).to(dtype)
    length = 64 if size == "full" else 9
    return module, torch.randint(0, config.vocab_size, (2, length))
