"""Checkpoint: a language model as config, arrays by name, and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...protocols import Array
from ...storage.blocks import BLOCK_FORMATS
from ...types import TensorSpec
from .config import DecoderConfig
from .text import TextCodec

__all__ = ["UNQUANTIZED", "Checkpoint", "blocks_name"]

UNQUANTIZED = frozenset(["F64", "F32", "F16", "BF16"])
"""Formats of a GGUF file whose values are floats."""


@dataclass(frozen=True)
class Checkpoint:
    """A stored model.

    files: for each weight, its file in ``folder``; empty for weights in memory.
    text:  the tokenizer; None if only tokens are supported.
    generation: the words of ``generation_config.json``.
    sources: the files that arrays come from; empty for weights in memory.
    formats: for weights of a GGUF file, the format that each is stored in.
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
    formats: Mapping[str, str] = field(default_factory=dict)

    @property
    def blocks(self) -> Mapping[str, str]:
        """The format of each matrix that is stored in blocks which kernels can read. ``arrays`` has its rows of blocks, uint8, under
        ``blocks_name``; iteration omits these.
        """
        return {n: f for n, f in self.formats.items() if f in BLOCK_FORMATS and self.specs[n].rank > 1}


def blocks_name(name: str) -> str:
    """Return the name of the array with the blocks of a weight."""
    return f"{name}:blocks"
