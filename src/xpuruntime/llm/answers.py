"""Inputs and outputs of a generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Completion", "Piece", "Prompt"]

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""A text, its tokens, or a conversation (``[{"role": "user", "content": "..."}]``) for the model's chat template."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One generated token. ``text`` is the text that it completes (possibly empty); ``finish`` is the reason if it is the last one, else empty."""

    token: int
    text: str
    finish: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """A generated text. ``finish`` is ``stop`` (a stop token, which ``tokens`` does not include), ``length`` or ``capacity``. Times are in seconds."""

    tokens: tuple[int, ...]
    text: str
    prompt_tokens: int
    finish: str
    prefill_s: float = field(compare=False)
    decode_s: float = field(compare=False)

    @property
    def tokens_per_second(self) -> float:
        """Return the decoding rate. The first token comes from the prefill and does not count."""
        return (len(self.tokens) - 1) / self.decode_s if self.decode_s > 0 and len(self.tokens) > 1 else 0.0
