"""TextCodec: a checkpoint's tokenizer (``tokenizer.json``) and chat template. Needs the package ``tokenizers``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InputError, ModelError, UnavailableError
from ...storage.files import read_regular
from .template import render

__all__ = ["TextCodec", "TextStream", "open_text"]

_MAX_BYTES = 64 << 20
"""Maximum size of a tokenizer's config or template in bytes."""


class TextCodec:
    """A tokenizer.

    template: source of the chat template; empty if there is none.
    facts:    variables of the template, such as ``bos_token``.
    """

    def __init__(self, tokenizer: Any, template: str = "", facts: Mapping[str, Any] | None = None) -> None:
        self.tokenizer, self.template, self.facts = tokenizer, template, dict(facts or {})

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of a text; ``special`` adds the tokenizer's special tokens."""
        return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=special).ids]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens, without special ones."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the tokens of a conversation for the model to continue. Raises InputError if the model has no template."""
        if not self.template:
            raise InputError(
                "chat", "needs a chat template, and this model has none", do="Give a plain prompt."
            )
        text = render(self.template, messages, self.facts)
        return self.encode(text, special=False)


class TextStream:
    """Incremental decoding. ``add`` returns the text that later tokens do not change. Bytes of an incomplete character are kept for later."""

    def __init__(self, text: TextCodec) -> None:
        self._text = text
        self._tokens: list[int] = []
        self._start = self._done = 0

    def add(self, token: int) -> str:
        """Return the text that this token completes, possibly empty."""
        self._tokens.append(token)
        text_before = self._text.decode(self._tokens[self._start : self._done])
        now = self._text.decode(self._tokens[self._start :])
        if now.endswith("\ufffd") or len(now) <= len(text_before):
            return ""
        # Keep the last piece as context, since the decoder drops the leading space of a text.
        self._start, self._done = self._done, len(self._tokens)
        return now[len(text_before) :]

    def end(self) -> str:
        """Return the remaining text."""
        text_before = self._text.decode(self._tokens[self._start : self._done])
        return self._text.decode(self._tokens[self._start :])[len(text_before) :]


def open_text(folder: Path) -> TextCodec | None:
    """Open the tokenizer of a checkpoint's folder; None if it has none. Raises ModelError, UnavailableError."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UnavailableError(
            "tokenizer", "needs the tokenizers package", do="pip install tokenizers"
        ) from error
    try:
        tokenizer = Tokenizer.from_file(str(file))
        facts = _facts(folder / "tokenizer_config.json")
    except Exception as error:  # the package raises Exception itself
        raise ModelError(
            f"tokenizer {file}", "cannot be read", got=error, do="Download the tokenizer's files again."
        ) from error
    template = facts.pop("chat_template", "")
    try:
        if isinstance(template, list):  # a list of named templates
            template = next((t["template"] for t in template if t.get("name") == "default"), "")
        if (folder / "chat_template.jinja").is_file():
            template = _text(folder / "chat_template.jinja")
        if not isinstance(template, str | None):
            raise TypeError(f"a template is text, not {type(template).__name__}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"tokenizer {file}",
            "has a chat template that cannot be read",
            got=error,
            do="Correct it, or give a prompt without chat.",
        ) from error
    return TextCodec(tokenizer, str(template or ""), facts)


def _text(path: Path) -> str:
    return read_regular(path, _MAX_BYTES).decode("utf-8")


def _facts(path: Path) -> dict[str, Any]:
    """Return the special tokens' texts, and the template."""
    data = json.loads(_text(path)) if path.is_file() else {}
    tokens = {k: v["content"] if isinstance(v, dict) else v for k, v in data.items() if k.endswith("_token")}
    return {**tokens, "chat_template": data.get("chat_template", "")}
