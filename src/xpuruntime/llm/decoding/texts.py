"""AnswerTexts: prompts as tokens, and the states of their answers, for one checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import index
from typing import Any

from ...errors import InputError
from ..answers import Prompt, Source
from ..checkpoint.data import Checkpoint
from ..checkpoint.text import TextCodec
from .answer import AnswerState
from .grammar import Grammars
from .sources import MODEL_WORDS, SOURCE_WORDS, features_of, first_tokens, with_timestamps
from .words import GenerationOptions, read_words

__all__ = ["AnswerTexts", "options_of"]


class AnswerTexts:
    """The texts of one checkpoint.

    capacity: maximum tokens of prompt and answer.
    detect:   returns the most likely of some tokens after a source and a first token, for the language of speech.
    speculation: words of speculative decoding that apply unless a call has its own, or searches by beams.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        capacity: int,
        detect: Callable[[Source, int, Sequence[int]], int] | None = None,
        speculation: Mapping[str, Any] | None = None,
    ) -> None:
        self._speculation = dict(speculation or {})
        self.checkpoint, self.capacity, self.detect = checkpoint, capacity, detect
        self._grammars = Grammars(checkpoint.text, checkpoint.config.vocab)

    def tokens(self, prompt: Prompt) -> list[int]:
        """Return a prompt as tokens. Raises InputError if it is empty, has unknown tokens, or needs a tokenizer that is missing."""
        who = f"language model {self.checkpoint.name}"
        text = self.checkpoint.text
        tokens: list[int]
        if isinstance(prompt, str) or (
            isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping)
        ):
            if text is None:
                raise InputError(who, "has no tokenizer", do="Give tokens, or a folder with tokenizer.json.")
            tokens = text.encode(prompt) if isinstance(prompt, str) else text.chat(list(prompt))  # type: ignore[arg-type]
        else:
            do = "Give a text, a list of tokens, or a conversation; or a list of such prompts."
            tokens = self._whole(prompt, "has an invalid prompt", do)
        if not tokens:
            raise InputError(who, "needs a prompt of one token or more", do="Give a text that is not empty.")
        self._check_vocab(tokens)
        encoder = self.checkpoint.config.encoder
        word, capacity = (
            ("capacity", self.capacity) if encoder is None else ("source_capacity", encoder.max_positions)
        )
        if len(tokens) > capacity:
            do = f"Shorten the prompt, or give {word}={len(tokens)} or more."
            raise InputError(who, f"has a {word} of {capacity} tokens", got=len(tokens), do=do)
        return tokens

    def rows(self, tokens: Sequence[int], start: int) -> list[int]:
        """Return the tokens of one text for the rows of the cache from ``start`` on. Raises InputError if they do not fit into it."""
        who = f"language model {self.checkpoint.name}"
        rows = self._whole(tokens, "has invalid tokens", "Give a list of tokens.")
        if not rows:
            raise InputError(who, "needs one token or more", got=[], do="Give a list of tokens.")
        self._check_vocab(rows)
        if start + len(rows) > self.capacity:
            do = f"Give fewer tokens, a smaller position, or open the model with capacity={start + len(rows)} or more."
            got = f"{len(rows)} tokens from position {start} on"
            raise InputError(who, f"has a capacity of {self.capacity} tokens", got=got, do=do)
        return rows

    def _whole(self, tokens: Any, what: str, do: str) -> list[int]:
        """Return an iterable of whole numbers as a list. Raises InputError."""
        try:
            if isinstance(tokens, bytes | bytearray):
                raise TypeError("bytes are no tokens")
            return [index(t) for t in tokens]
        except TypeError as error:
            who = f"language model {self.checkpoint.name}"
            raise InputError(who, what, got=repr(tokens)[:80], do=do) from error

    def _check_vocab(self, tokens: Sequence[int]) -> None:
        """Raise InputError for a token that the model does not have."""
        vocab = self.checkpoint.config.vocab
        if bad := [t for t in tokens if not 0 <= t < vocab]:
            raise InputError(
                f"language model {self.checkpoint.name}",
                f"takes tokens from 0 to {vocab - 1}",
                got=str(bad[0])[:40],
                do="Tokenize the text with this model's tokenizer.",
            )

    def source(self, prompt: Prompt) -> Source:
        """Return what the model reads of a prompt: its tokens, or for a model that reads audio its features. Raises InputError."""
        encoder = self.checkpoint.config.encoder
        if encoder is not None and encoder.features:
            return features_of(prompt, encoder, f"language model {self.checkpoint.name}")
        return self.tokens(prompt)

    def begun(self, source: Source, options: GenerationOptions) -> tuple[list[int], Source | None]:
        """Return the tokens that the decoder's text begins with, and what the encoder reads if there is one. Raises InputError."""
        if self.checkpoint.config.encoder is None:
            return list(source), None
        detect = self.detect and partial(self.detect, source)
        return first_tokens(self.checkpoint, options, self.capacity, detect), source

    def options(self, words: Mapping[str, Any]) -> GenerationOptions:
        """Return the checked options of a call. Raises InputError."""
        options = options_of(self.checkpoint, words)
        if options.num_beams == 1 and not options.drafts:
            options = replace(options, **self._speculation)
        if options.drafts and self.checkpoint.config.encoder is not None:
            who, do = f"language model {self.checkpoint.name}", "Leave the speculation out."
            what = "is an encoder-decoder, which does not support speculative decoding"
            raise InputError(who, what, got=options.drafts, do=do)
        return options

    def states(self, texts: Sequence[Source], options: GenerationOptions) -> list[AnswerState]:
        """Return the states of all answers, those of one text together."""
        begun = [self.begun(text, options) for text in texts]
        return [
            AnswerState(
                prompt,
                options,
                seed=seed,
                sample=sample,
                vocab=self.checkpoint.config.vocab,
                capacity=self.capacity,
                text=self._codec(options),
                matcher=self._grammars.matcher(options.grammar, options.stop_tokens)
                if options.grammar
                else None,
                source=source,
            )
            for (prompt, source), seed in zip(begun, options.seeds_of(len(texts)), strict=True)
            for sample in range(options.samples)
        ]

    def _codec(self, options: GenerationOptions) -> TextCodec | None:
        """Return the tokenizer. Raises InputError if the options need it and it is missing."""
        text = self.checkpoint.text
        if text is None and options.stop_strings:
            who = f"language model {self.checkpoint.name}"
            raise InputError(who, "has no tokenizer, which stop_strings need", do="Give stops: tokens.")
        return text


def options_of(checkpoint: Checkpoint, words: Mapping[str, Any]) -> GenerationOptions:
    """Return the checked options of a call with these words. Raises InputError."""
    config = words.get("generation_config")
    arguments = {k: v for k, v in words.items() if k != "generation_config"}
    sizes, own = checkpoint.config, checkpoint.generation
    if sizes.encoder is None and (given := [w for w in SOURCE_WORDS if w in words]):
        who = f"language model {checkpoint.name}"
        raise InputError(who, "has no encoder, which this word is for", got=given[0], do="Remove it.")
    always = {w: own[w] for w in MODEL_WORDS if w in own} if sizes.encoder is not None else {}
    options = read_words(arguments, config, own, sizes.stops, sizes.vocab, always)
    return with_timestamps(checkpoint, options)
