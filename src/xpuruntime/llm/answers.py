"""Inputs and outputs of a generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..protocols import Array

__all__ = ["Completion", "Piece", "Prompt", "Source", "SpokenSegment", "TokenLogprob"]

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]] | Array
"""A text, its tokens, or a conversation (``[{"role": "user", "content": "..."}]``) for the model's chat template. For a model that reads
audio: samples at 16 kHz, float[samples], or log-mel features, float[features, frames].
"""
Source = Sequence[int] | Array
"""Tokens, or log-mel features, which an encoder reads."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probabilities of one position, before penalties and temperature: of its token, and of the most likely tokens, the largest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """One generated token.

    text:    the text that it completes, possibly empty.
    finish:  the reason if it is the last one, else empty.
    logprob: its log probabilities, if ``logprobs`` is given.
    """

    token: int
    text: str
    finish: str = ""
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class SpokenSegment:
    """A part of the text of speech, and when it is spoken, in seconds. end: None if the answer ends before it says so."""

    start: float
    end: float | None
    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """A generated text. Times are in seconds.

    tokens:   without the stop token, and with those of a stop string.
    text:     without the stop string.
    prompt_tokens: tokens of the prompt, or rows of the encoder's output of audio.
    finish:   ``stop`` (a stop token or a stop string), ``length`` or ``capacity``.
    logprobs: log probabilities of ``tokens``, if ``logprobs`` is given.
    segments: of speech with ``return_timestamps``: what is spoken when. ``text`` has no times, ``tokens`` have.
    score:    of a beam search: the sum of log probabilities over length ** length_penalty.
    """

    tokens: tuple[int, ...]
    text: str
    prompt_tokens: int
    finish: str
    prefill_s: float = field(compare=False)
    decode_s: float = field(compare=False)
    logprobs: tuple[TokenLogprob, ...] = ()
    score: float | None = None
    segments: tuple[SpokenSegment, ...] = ()

    @property
    def tokens_per_second(self) -> float:
        """Return the decoding rate. The first token comes from the prefill and does not count."""
        return (len(self.tokens) - 1) / self.decode_s if self.decode_s > 0 and len(self.tokens) > 1 else 0.0
