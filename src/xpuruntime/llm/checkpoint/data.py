"""Checkpoint: a language model as config, arrays by name, and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...protocols import Array
from ...types import TensorSpec
from .config import DecoderConfig
from .text import TextCodec

__all__ = ["Checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """A stored model.

    files: for each weight, its file in ``folder``; empty for weights in memory.
    text:  the tokenizer; None if only tokens are supported.
    generation: the words of ``generation_config.json``.
    sources: the files that arrays come from; empty for weights in memory.
    """

    name: str
    config: DecoderConfig
    arrays: Mapping[str, Array]
    specs: Mapping[str, TensorSpec]
    files: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    text: TextCodec | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)
    sources: tuple[Path, ...] = ()
