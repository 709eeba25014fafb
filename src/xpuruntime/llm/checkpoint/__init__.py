"""Checkpoints of language models: config, arrays and tokenizer, from folders and GGUF files. Public names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .data import Checkpoint
    from .reader import open_checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Checkpoint": "xpuruntime.llm.checkpoint.data",
        "open_checkpoint": "xpuruntime.llm.checkpoint.reader",
    },
)
