"""FAMILIES: the table of language models, one row per ``model_type``."""

from __future__ import annotations

from collections.abc import Mapping

from .bart import BART, MARIAN, MBART, PEGASUS, WHISPER
from .family import DecoderFamily
from .gemma import GEMMA, GEMMA2, GEMMA3
from .gpt import BLOOM, FALCON, GPT2, GPT_NEOX, MPT, OPT, PHI, STABLELM
from .llama import LLAMA, MISTRAL, OLMO2, PHI3, QWEN2, QWEN3
from .mixtures import DEEPSEEK2, MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE
from .t5 import MT5, T5

__all__ = ["FAMILIES"]

FAMILIES: Mapping[str, DecoderFamily] = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "phi3": PHI3,
    "olmo2": OLMO2,
    "stablelm": STABLELM,
    "phi": PHI,
    "gpt_neox": GPT_NEOX,
    "gpt2": GPT2,
    "falcon": FALCON,
    "bloom": BLOOM,
    "mpt": MPT,
    "opt": OPT,
    "mixtral": MIXTRAL,
    "qwen2_moe": QWEN2_MOE,
    "qwen3_moe": QWEN3_MOE,
    "olmoe": OLMOE,
    "deepseek_v2": DEEPSEEK2,
    "t5": T5,
    "mt5": MT5,
    "bart": BART,
    "mbart": MBART,
    "marian": MARIAN,
    "pegasus": PEGASUS,
    "whisper": WHISPER,
}
"""``model_type`` -> row."""
