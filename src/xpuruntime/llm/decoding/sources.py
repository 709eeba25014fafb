"""Sources of encoder-decoders: what the encoder reads, and the tokens that the decoder's text begins with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ..audio import HOP, RATE, log_mel
from ..checkpoint.config import DecoderConfig
from ..checkpoint.data import Checkpoint
from .timestamps import Timestamps
from .words import GenerationOptions

__all__ = [
    "MODEL_WORDS",
    "SOURCE_WORDS",
    "features_of",
    "first_tokens",
    "source_inputs",
    "source_rows",
    "with_timestamps",
]

MODEL_WORDS = ("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens")
"""Words of the checkpoint's ``generation_config.json`` that hold for an encoder-decoder unless an argument says otherwise."""
SOURCE_WORDS = ("decoder_input_ids", "language", "task")
"""Words that are for encoder-decoders alone."""
_FREE = "Give decoder_input_ids: the tokens that the answer begins with."


def features_of(prompt: Any, encoder: DecoderConfig, who: str) -> NDArray[np.float32]:
    """Return the log-mel features of audio, [features, frames], which may be given, too. Raises InputError."""
    frames = 2 * encoder.max_positions
    try:
        x = np.asarray(prompt, np.float32)
    except (TypeError, ValueError) as error:
        do = f"Give samples at {RATE} Hz, or features [{encoder.features}, {frames}]."
        raise InputError(who, "reads audio", got=repr(prompt)[:80], do=do) from error
    if not x.size or not np.isfinite(x).all():
        raise InputError(
            who,
            "needs audio of one sample or more, all of them finite",
            got=f"shape {x.shape}",
            do="Give a mono array of float32 samples.",
        )
    if x.shape == (encoder.features, frames):
        return x
    if x.ndim != 1:
        do = f"Give samples of one channel at {RATE} Hz, or features [{encoder.features}, {frames}]."
        raise InputError(who, "reads audio of one channel", got=x.shape, do=do)
    if x.size > frames * HOP:
        seconds = frames * HOP / RATE
        raise InputError(
            who, f"reads {seconds:g} s of audio at once", got=f"{x.size / RATE:g} s", do="Split the audio."
        )
    return log_mel(x, encoder.features, frames)


def source_rows(source: Sequence[int] | NDArray[Any]) -> int:
    """Return the rows of the encoder's output for a source."""
    return source.shape[1] // 2 if isinstance(source, np.ndarray) else len(source)


def source_inputs(
    source: Sequence[int] | NDArray[Any], lengths: Iterable[int], dtype: Any
) -> tuple[int, NDArray[Any], NDArray[np.int64]]:
    """Return the smallest of some lengths that a source fits, and the encoder's first two inputs for it."""
    count = source_rows(source)
    length = min(n for n in lengths if n >= count)
    if isinstance(source, np.ndarray):
        inputs: NDArray[Any] = source[None].astype(dtype)
    else:
        inputs = np.zeros((1, length), np.int64)
        inputs[0, :count] = source
    return length, inputs, np.array([count], np.int64)


def first_tokens(
    checkpoint: Checkpoint,
    options: GenerationOptions,
    capacity: int,
    detect: Callable[[int, Sequence[int]], int] | None = None,
) -> list[int]:
    """Return the tokens that the decoder's text begins with: the given ones, else the start token, and for a model of many languages
    those of the language and the task. Raises InputError.

    detect: returns the most likely of some tokens after a token, for a language that is not given.
    """
    who, words = f"language model {checkpoint.name}", checkpoint.generation
    if options.decoder_input_ids:
        tokens = list(options.decoder_input_ids)
    else:
        start = words.get("decoder_start_token_id", checkpoint.config.start)
        start = words.get("bos_token_id") if start is None else start
        if not isinstance(start, int) or isinstance(start, bool):
            raise InputError(who, "has no decoder_start_token_id", got=repr(start)[:80], do=_FREE)
        tokens = [start, *_spoken(words, options, who, detect and partial(detect, start))]
    if bad := [t for t in tokens if not 0 <= t < checkpoint.config.vocab]:
        raise InputError(who, f"takes tokens from 0 to {checkpoint.config.vocab - 1}", got=bad[0], do=_FREE)
    if len(tokens) > capacity:
        do = f"Give fewer decoder_input_ids, or capacity={len(tokens)} or more."
        raise InputError(who, f"has a capacity of {capacity} tokens", got=len(tokens), do=do)
    return tokens


def _spoken(
    words: Mapping[str, Any],
    options: GenerationOptions,
    who: str,
    detect: Callable[[Sequence[int]], int] | None,
) -> list[int]:
    """Return the tokens of language and task, and the one that says that no times are wanted, as far as a model has them."""
    languages, tasks = words.get("lang_to_id") or {}, words.get("task_to_id") or {}
    tokens: list[int] = []
    if options.language or languages:
        names = (options.language.lower(), f"<|{options.language.lower()}|>")
        language = next((languages[n] for n in names if n in languages), None)
        if not options.language and detect is not None:
            language = detect(list(languages.values()))
        if language is None:
            known = ", ".join(sorted(n.strip("<|>") for n in languages)) or "none"
            what = "knows no such language" if options.language else "needs a language"
            raise InputError(who, what, got=options.language or None, do=f"Give language, one of {known}.")
        tokens.append(language)
    if options.task or (tasks and options.language):
        task = options.task or "transcribe"
        if task not in tasks:
            known = ", ".join(sorted(tasks)) or "none"
            raise InputError(who, "knows no such task", got=task, do=f"Give task, one of {known}.")
        tokens.append(tasks[task])
    silent = words.get("no_timestamps_token_id")
    return tokens if silent is None or options.timestamps else [*tokens, silent]


def with_timestamps(checkpoint: Checkpoint, options: GenerationOptions) -> GenerationOptions:
    """Return options with the rules of times, if they are wanted. Raises InputError for a model that writes none."""
    if not options.return_timestamps:
        return options
    words, who = checkpoint.generation, f"language model {checkpoint.name}"
    encoder, silent = checkpoint.config.encoder, words.get("no_timestamps_token_id")
    if encoder is None or not encoder.features or not _is_count(silent, checkpoint.config.vocab - 1):
        do = "Remove it, or open a Whisper model with its generation_config.json."
        raise InputError(who, "writes no times, which return_timestamps asks for", got=silent, do=do)
    if options.grammar is not None:
        do = "Drop one of the two."
        raise InputError(
            who, "does not support return_timestamps with a grammar", got=options.grammar[0], do=do
        )
    latest = words.get("max_initial_timestamp_index")
    # The model's own end is the first token after those of text. Other stop tokens may be text.
    text = 1 + max((t for t in checkpoint.config.stops if t <= silent), default=silent)
    latest = latest if _is_count(latest, checkpoint.config.vocab) else None
    times = Timestamps(silent + 1, text, options.stop_tokens, latest)
    return replace(options, timestamps=times)


def _is_count(value: object, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < most
