"""Options of ``xpu generate`` that are words of a generation; ``llm.decoding.words`` checks them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError

__all__ = ["GenerationFlags"]

_LENGTH, _SAMPLING, _SEARCH, _LIMITS = "Length", "Sampling", "Beam search", "What the text may be"
_SPECULATION = "Speculative decoding"


def _option(panel: str, text: str, *names: str, **limits: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFlags:
    """Words of a generation. None: not given, so that the generation config or the default decides."""

    generation_config: Annotated[
        str | None,
        _option(
            _LENGTH,
            "Words from a generation_config.json: a file or a folder, or 'checkpoint' for the model's own. Other options take precedence.",
            metavar="FILE",
        ),
    ] = None
    language: Annotated[
        str | None, _option(_LENGTH, "Language of the speech, such as en, for a model that reads audio.")
    ] = None
    task: Annotated[
        str | None, _option(_LENGTH, "Task of a model that reads audio: transcribe or translate.")
    ] = None
    max_new_tokens: Annotated[
        int | None,
        _option(_LENGTH, "Most tokens to generate. Default: 128.", "--max-new-tokens", "-n", min=1),
    ] = None
    min_new_tokens: Annotated[int | None, _option(_LENGTH, "Fewest tokens to generate.", min=0)] = None
    stop_strings: Annotated[
        list[str] | None,
        _option(_LENGTH, "Text that ends the answer, which does not contain it. Repeatable.", metavar="TEXT"),
    ] = None
    eos_token_id: Annotated[
        list[int] | None,
        _option(_LENGTH, "Token that ends the answer. Repeatable. Default: the model's.", metavar="TOKEN"),
    ] = None
    temperature: Annotated[
        float | None, _option(_SAMPLING, "Sampling temperature; 0: greedy decoding, the default.", min=0)
    ] = None
    do_sample: Annotated[
        bool | None,
        _option(
            _SAMPLING,
            "Sample, or decode greedily. Default: as the temperature or the generation config says.",
        ),
    ] = None
    top_k: Annotated[
        int | None, _option(_SAMPLING, "Sample from the K most likely tokens; 0: from all.", min=0)
    ] = None
    top_p: Annotated[
        float | None, _option(_SAMPLING, "Sample from the fewest tokens with this total probability.")
    ] = None
    min_p: Annotated[
        float | None, _option(_SAMPLING, "Sample from tokens with this share of the largest probability.")
    ] = None
    repetition_penalty: Annotated[
        float | None, _option(_SAMPLING, "Penalty of tokens of the prompt and the answer; 1: none.")
    ] = None
    presence_penalty: Annotated[
        float | None, _option(_SAMPLING, "Penalty of tokens of the answer; 0: none.")
    ] = None
    frequency_penalty: Annotated[
        float | None, _option(_SAMPLING, "Penalty of tokens of the answer for each time they occur; 0: none.")
    ] = None
    seed: Annotated[int | None, _option(_SAMPLING, "Seed of the random choices.", min=0)] = None
    num_return_sequences: Annotated[
        int | None, _option(_SAMPLING, "Number of answers, or of beams to return.", min=1)
    ] = None
    logprobs: Annotated[
        int | None,
        _option(_SAMPLING, "With --json: log probabilities of each token and the N most likely ones.", min=0),
    ] = None
    num_beams: Annotated[int | None, _option(_SEARCH, "Number of beams; 1: none.", min=1)] = None
    length_penalty: Annotated[
        float | None, _option(_SEARCH, "Exponent of the length that scores are divided by. Default: 1.")
    ] = None
    early_stopping: Annotated[
        str | None,
        _option(
            _SEARCH,
            "End when enough answers have ended: true, false or never (only when none can improve).",
            metavar="WHEN",
        ),
    ] = None
    prompt_lookup_num_tokens: Annotated[
        int | None,
        _option(
            _SPECULATION,
            "Guess N tokens at a time from what followed the last tokens earlier.",
            metavar="N",
            min=1,
        ),
    ] = None
    max_matching_ngram_size: Annotated[
        int | None, _option(_SPECULATION, "Most last tokens to look up. Default: 2.", metavar="N", min=1)
    ] = None
    assistant_model: Annotated[
        str | None,
        _option(_SPECULATION, "Guess tokens with a smaller model of the same tokens.", metavar="MODEL"),
    ] = None
    num_assistant_tokens: Annotated[
        int | None, _option(_SPECULATION, "Tokens that it guesses at a time. Default: 5.", metavar="N", min=1)
    ] = None
    no_repeat_ngram_size: Annotated[
        int | None, _option(_LIMITS, "No sequence of N tokens occurs twice; 0: no limit.", min=0)
    ] = None
    bad_words_ids: Annotated[
        list[str] | None,
        _option(
            _LIMITS, "Tokens, separated by commas, that never follow each other. Repeatable.", metavar="A,B"
        ),
    ] = None
    json_schema: Annotated[
        Path | None, _option(_LIMITS, "File with a JSON schema that the answer matches.", metavar="FILE")
    ] = None
    regex: Annotated[
        str | None, _option(_LIMITS, "Regular expression that the answer matches.", metavar="PATTERN")
    ] = None
    grammar: Annotated[
        Path | None, _option(_LIMITS, "File with a Lark grammar that the answer matches.", metavar="FILE")
    ] = None

    def words(self) -> dict[str, Any]:
        """Return the words that are given. Raises InputError."""
        words = {f.name: v for f in fields(self) if (v := getattr(self, f.name)) not in (None, [])}
        for name in ("json_schema", "grammar"):
            if name in words:
                words[name] = _text_of(words[name])
        if words.get("generation_config") == "checkpoint":
            words["generation_config"] = True
        if "bad_words_ids" in words:
            words["bad_words_ids"] = [_tokens(text) for text in words["bad_words_ids"]]
        when = words.get("early_stopping")
        words["early_stopping"] = {"true": True, "false": False}.get(str(when), when)
        return words


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError("generate", f"cannot read {file}", got=error, do="Give a file of text.") from error


def _tokens(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        do = "Give tokens, separated by commas."
        raise InputError("generate", "has invalid --bad-words-ids", got=text, do=do) from error
