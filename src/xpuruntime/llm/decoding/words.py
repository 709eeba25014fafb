"""GenerationOptions: the words of a generation, as in transformers' ``GenerationConfig``, checked once.

Words come from a ``generation_config`` and from keyword arguments, which take precedence. A word that is unknown, or that this release does not
support and that would change the text, is an error.
"""

from __future__ import annotations

import difflib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...storage.files import read_regular
from ..sampling import Sampling
from .timestamps import Timestamps

__all__ = ["IGNORED", "NEUTRAL", "WORDS", "GenerationOptions", "read_words", "speculation_of"]

_WHO = "generation"
_MAX_JSON = 1 << 20
_MAX_LOGPROBS = 1024
_MAX_EXPONENT = 8  # powers of lengths must fit into float32


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """Checked options of a generation; ``docs/how-to/language-models.md`` lists the words."""

    sampling: Sampling
    stop_tokens: frozenset[int]
    max_new_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int = 0
    min_length: int = 0
    stop_strings: tuple[str, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    suppressed: tuple[int, ...] = ()
    no_repeat_ngram_size: int = 0
    seeds: tuple[int, ...] | None = None
    logprobs: int | None = None
    samples: int = 1
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    grammar: tuple[str, str] | None = None
    prompt_lookup_num_tokens: int = 0
    max_matching_ngram_size: int = 2
    assistant_model: Any = None
    num_assistant_tokens: int = 5
    begin_suppressed: tuple[int, ...] = ()
    forced_first: int | None = None
    forced_last: int | None = None
    decoder_input_ids: tuple[int, ...] = ()
    language: str = ""
    task: str = ""
    return_timestamps: bool = False
    timestamps: Timestamps | None = None

    def limit(self, prompt_tokens: int) -> int:
        """Return the maximum number of tokens of an answer. Raises InputError if ``max_length`` leaves none."""
        if self.max_new_tokens is not None or self.max_length is None:
            return 128 if self.max_new_tokens is None else self.max_new_tokens
        if self.max_length <= prompt_tokens:
            do = "Give max_new_tokens, or a larger max_length."
            raise InputError(
                _WHO, f"has a prompt of {prompt_tokens} tokens and a max_length of {self.max_length}", do=do
            )
        return self.max_length - prompt_tokens

    def forced(self, prompt_tokens: int, answer_tokens: int) -> int | None:
        """Return the token that must follow a prompt and an answer of these lengths, or None."""
        if self.forced_first is not None and prompt_tokens + answer_tokens == 1:
            return self.forced_first
        last = self.forced_last is not None and answer_tokens + 1 == self.limit(prompt_tokens)
        return self.forced_last if last else None

    def begins_at(self, prompt_tokens: int) -> int:
        """Return the index of the token of an answer that ``begin_suppressed`` is for: the first one that is not forced."""
        return int(prompt_tokens == 1 and self.forced_first is not None)

    def least(self, prompt_tokens: int) -> int:
        """Return the minimum number of tokens of an answer."""
        return max(self.min_new_tokens, self.min_length - prompt_tokens)

    def seeds_of(self, texts: int) -> list[int]:
        """Return the seed of each text: its own, the common one, or a random one. Raises InputError."""
        if self.seeds is None:
            return [secrets.randbits(63) for _ in range(texts)]
        if len(self.seeds) not in (1, texts):
            do = "Give one seed, or one per prompt."
            raise InputError(_WHO, f"has {len(self.seeds)} seeds for {texts} prompts", do=do)
        return list(self.seeds) if len(self.seeds) == texts else list(self.seeds) * texts

    @property
    def drafts(self) -> int:
        """Return how many tokens are guessed at a time; 0 without speculative decoding."""
        return (
            self.num_assistant_tokens if self.assistant_model is not None else self.prompt_lookup_num_tokens
        )

    @property
    def on_device(self) -> bool:
        """Return True if the device selects every token after the first; otherwise logits go to the host."""
        multiple = any(len(w) > 1 for w in self.bad_words)
        lengths = (self.min_new_tokens > 0 or self.min_length > 0) and bool(self.stop_tokens)
        rest = self.no_repeat_ngram_size or self.logprobs is not None or self.grammar or self.num_beams > 1
        later = bool(self.begin_suppressed) and self.forced_first is not None
        return not (multiple or lengths or rest or later or self.timestamps)

    @property
    def most_likely(self) -> bool:
        """Return True if each token is the most likely one by the model alone."""
        first = bool(self.begin_suppressed) or self.forced_first is not None or self.forced_last is not None
        return self.sampling.greedy and self.on_device and not self.counts and not first

    @property
    def counts(self) -> bool:
        """Return True if logits depend on counts of tokens, or tokens are suppressed."""
        return self.sampling.penalizes or bool(self.suppressed) or any(len(w) == 1 for w in self.bad_words)


# ── checks of one value ──


def _wrong(word: str, value: object, do: str) -> InputError:
    got = str(value) if isinstance(value, Exception) else repr(value)
    return InputError(_WHO, f"has an invalid {word}", got=got[:80], do=do)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return _is_number(value) and abs(value) < float("inf") and value == int(value)  # type: ignore[arg-type,call-overload]


def _count(least: int, most: int = 2**62) -> Callable[[str, Any], int]:
    def check(word: str, value: Any) -> int:
        if not _is_whole(value):
            raise _wrong(word, value, "Give a whole number.")
        if not least <= value <= most:
            limit = f"at least {least}" if value < least else f"at most {most}"
            raise InputError(_WHO, f"needs {word} of {limit}", got=value, do="Give a value in that range.")
        return int(value)

    return check


def _exponent(word: str, value: Any) -> float:
    if not _is_number(value) or not abs(value) <= _MAX_EXPONENT:
        raise _wrong(word, value, f"Give a number from -{_MAX_EXPONENT} to {_MAX_EXPONENT}.")
    return float(value)


def _flag(word: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(word, value, "Give true or false.")
    return value


def _early(word: str, value: Any) -> bool | str:
    if not isinstance(value, bool) and not (isinstance(value, str) and value == "never"):
        raise _wrong(word, value, "Give true, false or 'never'.")
    return value


def _tokens(word: str, value: Any) -> tuple[int, ...]:
    items = (
        [value]
        if _is_number(value)
        else list(value)
        if isinstance(value, Sequence | set | frozenset) or (isinstance(value, np.ndarray) and value.ndim)
        else None
    )
    if items is None or isinstance(value, str) or not all(map(_is_whole, items)):
        raise _wrong(word, value, "Give a token or a list of tokens.")
    return tuple(int(t) for t in items)


def _one_token(word: str, value: Any) -> int:
    """Return a token, or the first by number of several, which are equally likely."""
    tokens = _tokens(word, value)
    if not tokens:
        raise _wrong(word, value, "Give a token.")
    return min(tokens)


def _word(word: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(word, value, "Give a text.")
    return value


def _token_lists(word: str, value: Any) -> tuple[tuple[int, ...], ...]:
    if (
        isinstance(value, str)
        or not isinstance(value, Sequence)
        or not all(isinstance(w, Sequence) and len(w) for w in value)
    ):
        raise _wrong(word, value, "Give a list of lists of tokens, none of them empty.")
    return tuple(_tokens(word, w) for w in value)


def _texts(word: str, value: Any) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, Sequence) or not all(isinstance(t, str) and t for t in items):
        raise _wrong(word, value, "Give a text or a list of texts, none of them empty.")
    return tuple(items)


def _seeds(word: str, value: Any) -> tuple[int, ...]:
    seeds = _tokens(word, value)
    if not seeds or not all(0 <= s < 2**63 for s in seeds):
        raise _wrong(word, value, "Give a number from 0 to 2**63 - 1, or one for each prompt.")
    return seeds


def _grammar(word: str, value: Any) -> str:
    """Return a grammar as text; a JSON schema may be given as an object."""
    if word == "json_schema" and not isinstance(value, str):
        try:
            return json.dumps(value)
        except (TypeError, ValueError) as error:
            raise _wrong(word, error, "Give a schema as a dict or as JSON text.") from error
    if not isinstance(value, str) or not value:
        raise _wrong(word, value, "Give a text.")
    return value


def _sampling(word: str, value: Any) -> Any:
    Sampling(**{word: value})  # raises InputError
    return value


def _raw(word: str, value: Any) -> Any:
    return value  # whoever opens it checks it


def _is_neutral(value: Any, neutral: Sequence[Any]) -> bool:
    """Return True for a value that is one of those without an effect."""
    return isinstance(value, bool | int | float | np.generic) and any(value == n for n in neutral)


GRAMMARS = ("json_schema", "regex", "grammar")
_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
WORDS: Mapping[str, Callable[[str, Any], Any]] = {
    "max_new_tokens": _count(1),
    "max_length": _count(1),
    "min_new_tokens": _count(0),
    "min_length": _count(0),
    "do_sample": _flag,
    **dict.fromkeys(_SAMPLING, _sampling),
    "seed": _seeds,
    "eos_token_id": _tokens,
    "stop_strings": _texts,
    "bad_words_ids": _token_lists,
    "suppress_tokens": _tokens,
    "begin_suppress_tokens": _tokens,
    "forced_bos_token_id": _one_token,
    "forced_eos_token_id": _one_token,
    "decoder_input_ids": _tokens,
    "language": _word,
    "task": _word,
    "return_timestamps": _flag,
    "no_repeat_ngram_size": _count(0),
    "logprobs": _count(0, _MAX_LOGPROBS),
    "num_return_sequences": _count(1, 1 << 16),
    "num_beams": _count(1, 1 << 10),
    "length_penalty": _exponent,
    "early_stopping": _early,
    **dict.fromkeys(GRAMMARS, _grammar),
    "prompt_lookup_num_tokens": _count(1, 1 << 10),
    "max_matching_ngram_size": _count(1, 64),
    "assistant_model": _raw,
    "num_assistant_tokens": _count(1, 1 << 10),
}
"""Every word and the check of its value."""
ALIASES = {"n": "num_return_sequences", "stops": "eos_token_id"}
"""Other names of words."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "constraints": (), "diversity_penalty": (0,), "dola_layers": (), "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,), "epsilon_cutoff": (0,), "eta_cutoff": (0,), "exponential_decay_length_penalty": (),
    "force_words_ids": (), "guidance_scale": (1,), "max_time": (), "num_beam_groups": (1,),
    "penalty_alpha": (0,), "remove_invalid_values": (False,), "renormalize_logits": (False,), "sequence_bias": (), "token_healing": (False,),
    "top_h": (), "typical_p": (1,), "watermarking_config": (), "use_mtp": (False,), "speculation_type": (),
}  # fmt: skip
"""Words of transformers that are not supported, and the values that have no effect. None never has one."""
IGNORED = frozenset(
    [
        "_from_model_config",
        "alignment_heads",
        "assistant_confidence_threshold",
        "assistant_early_exit",
        "assistant_ensemble_weight",
        "assistant_lookbehind",
        "bos_token_id",
        "cache_config",
        "cache_implementation",
        "chat_format",
        "compile_config",
        "continuous_batching_config",
        "decoder_start_token_id",
        "disable_compile",
        "forced_decoder_ids",
        "is_assistant",
        "is_multilingual",
        "lang_to_id",
        "low_memory",
        "max_cache_len",
        "max_initial_timestamp_index",
        "max_window_size",
        "no_timestamps_token_id",
        "num_assistant_tokens_schedule",
        "output_attentions",
        "output_hidden_states",
        "output_logits",
        "output_scores",
        "pad_token_id",
        "prefill_chunk_size",
        "prev_sot_token_id",
        "return_dict_in_generate",
        "target_lookbehind",
        "task_to_id",
        "transformers_version",
        "use_cache",
    ]
)
"""Words of transformers that do not change the text."""
_TOP_K_OF_CONFIGS = 50
"""top_k of a ``GenerationConfig`` that samples and does not say it."""


def speculation_of(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the words of speculative decoding that a policy's options of an engine name. Raises InputError."""
    words: dict[str, Any] = {}
    for name, text in options.items():
        value = int(text) if name != "assistant_model" and text.isascii() and text.isdecimal() else text
        words[name] = WORDS[name](name, value)
    return words


def read_words(
    arguments: Mapping[str, Any],
    generation_config: Any,
    own: Mapping[str, Any],
    stops: Sequence[int],
    vocab: int,
    always: Mapping[str, Any] | None = None,
) -> GenerationOptions:
    """Return checked options.

    arguments:         keyword arguments by word.
    generation_config: a ``GenerationConfig``, a dict, a file, a folder with ``generation_config.json``, True for the checkpoint's own, or None.
    own:               the checkpoint's ``generation_config.json``.
    always:            words of the model that hold unless an argument says otherwise; None as an argument removes one.
    stops:             the model's stop tokens. vocab: the number of its tokens.
    Raises InputError.
    """
    given = _known(arguments, "argument")
    configured = (
        {}
        if generation_config is None
        else _known(_config_words(generation_config, own), "word of the generation config")
    )
    inherent = {w: v for w, v in (always or {}).items() if w not in arguments}
    words = {**_known(inherent, "word of the model"), **configured, **given}
    samples = words.get("do_sample", bool(given.get("temperature", 0)))
    values = {w: words[w] for w in _SAMPLING if w in words}
    values["temperature"] = values.get("temperature", 1.0) if samples else 0.0
    if generation_config is not None and samples:
        values.setdefault("top_k", _TOP_K_OF_CONFIGS)
    # A temperature of 0 as an argument makes a config that samples greedy.
    precedes = "temperature" in given and "do_sample" not in given
    if words.get("do_sample") and values["temperature"] == 0 and not precedes:
        do = "Give a temperature above 0, or leave do_sample out for greedy decoding."
        raise InputError(_WHO, "cannot sample at a temperature of 0", got="do_sample", do=do)
    grammars = [(w, words[w]) for w in GRAMMARS if w in words]
    if len(grammars) > 1:
        raise InputError(
            _WHO, "takes one grammar", got=" and ".join(w for w, _ in grammars), do="Keep one of them."
        )
    ends = frozenset(words.get("eos_token_id", stops))
    options = GenerationOptions(
        sampling=Sampling(**values),
        stop_tokens=ends,
        stop_strings=words.get("stop_strings", ()),
        # A word that only ends the text is not bad, as in transformers.
        bad_words=tuple(w for w in words.get("bad_words_ids", ()) if len(w) > 1 or w[0] not in ends),
        suppressed=words.get("suppress_tokens", ()),
        begin_suppressed=words.get("begin_suppress_tokens", ()),
        forced_first=words.get("forced_bos_token_id"),
        forced_last=words.get("forced_eos_token_id"),
        seeds=words.get("seed"),
        samples=words.get("num_return_sequences", 1),
        grammar=grammars[0] if grammars else None,
        **{w: words[w] for w in _PLAIN if w in words},
    )
    if "max_new_tokens" in configured and "max_length" in given and "max_new_tokens" not in given:
        raise InputError(
            _WHO, "has a max_length next to the config's max_new_tokens", do="Give max_new_tokens."
        )
    _consistent(options, vocab)
    return options


_PLAIN = (
    "max_new_tokens", "max_length", "min_new_tokens", "min_length", "no_repeat_ngram_size", "logprobs", "num_beams", "length_penalty",
    "early_stopping", "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_model", "num_assistant_tokens",
    "decoder_input_ids", "language", "task", "return_timestamps",
)  # fmt: skip
"""Words that are fields of ``GenerationOptions``."""


def _consistent(options: GenerationOptions, vocab: int) -> None:
    """Raise InputError for options that do not fit each other or the vocabulary."""
    if options.assistant_model is not None and options.prompt_lookup_num_tokens:
        do = "Give one of them."
        raise InputError(_WHO, "has both assistant_model and prompt_lookup_num_tokens", do=do)
    lists = {
        "bad_words_ids": [t for w in options.bad_words for t in w],
        "suppress_tokens": options.suppressed,
        "begin_suppress_tokens": options.begin_suppressed,
        "forced_bos_token_id": [t for t in (options.forced_first,) if t is not None],
        "forced_eos_token_id": [t for t in (options.forced_last,) if t is not None],
        "decoder_input_ids": options.decoder_input_ids,
    }
    for word, tokens in lists.items():
        if bad := [t for t in tokens if not 0 <= t < vocab]:
            raise InputError(
                _WHO,
                f"has {word} beyond the vocabulary of {vocab} tokens",
                got=bad[0],
                do="Give token ids of this model.",
            )
    if options.num_beams > 1:
        wrong = {
            "sampling (do_sample or a temperature)": not options.sampling.greedy,
            "stop_strings": bool(options.stop_strings),
            "logprobs": options.logprobs is not None,
            f"a {(options.grammar or ('grammar',))[0]}": options.grammar is not None,
            "speculative decoding": options.drafts > 0,
        }
        for what, is_wrong in wrong.items():
            if is_wrong:
                raise InputError(
                    _WHO,
                    f"does not support {what} with num_beams",
                    got=options.num_beams,
                    do="Drop one of the two.",
                )
        if options.samples > options.num_beams:
            raise InputError(
                _WHO,
                "needs num_beams of at least num_return_sequences",
                got=options.num_beams,
                do="Raise num_beams.",
            )
    elif options.samples > 1 and options.sampling.greedy:
        do = "Give a temperature or num_beams."
        raise InputError(
            _WHO, "would return equal answers for num_return_sequences", got=options.samples, do=do
        )


def _known(words: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the checked words that have an effect. Raises InputError for one that is unknown or not supported."""
    known: dict[str, Any] = {}
    for name, value in words.items():
        word = ALIASES.get(name, name)
        if word in IGNORED or (value is None and (word in WORDS or word in NEUTRAL)):
            continue
        if word in WORDS:
            known[word] = WORDS[word](name, value)
        elif word not in NEUTRAL:
            near = difflib.get_close_matches(name, [*WORDS, *ALIASES], n=1)
            do = f"Did you mean {near[0]}?" if near else f"The words are {', '.join(WORDS)}."
            raise InputError(_WHO, f"has an unknown {what}", got=name, do=do)
        elif not _is_neutral(value, NEUTRAL[word]):
            raise InputError(_WHO, f"does not support {name}", got=str(value)[:80], do="Remove it.")
    return known


def _config_words(config: Any, own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the words of a config. Raises InputError."""
    if config is True:
        return own
    if isinstance(config, Mapping):
        return config
    if callable(getattr(config, "to_dict", None)):
        return dict(config.to_dict())
    if isinstance(config, str | Path):
        path = Path(config)
        path = path / "generation_config.json" if path.is_dir() else path
        try:
            data = json.loads(read_regular(path, _MAX_JSON).decode("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            what, do = (
                f"cannot read the generation config {path}",
                "Give a JSON file, or a folder with generation_config.json.",
            )
            raise InputError(_WHO, what, got=error, do=do) from error
        if isinstance(data, dict):
            return data
    do = "Give a GenerationConfig, a dict, a file, a folder with generation_config.json, or True for the checkpoint's."
    raise InputError(_WHO, "has an invalid generation_config", got=type(config).__name__, do=do)
