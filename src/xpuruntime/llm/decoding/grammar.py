"""Constrained output: text that matches a JSON schema, a regular expression or a grammar, by the package ``llguidance``.

Before each token the matcher says which tokens may follow, and all others are removed. The text can end only where it matches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError, UnavailableError
from ..checkpoint.text import TextCodec

__all__ = ["GrammarMatcher", "Grammars"]

_WHO = "constrained output"


class Grammars:
    """The grammars of one model: its tokens as ``llguidance`` needs them, prepared once for each set of stop tokens."""

    def __init__(self, text: TextCodec | None, vocab: int) -> None:
        self._text, self._vocab = text, vocab
        self._tokens: dict[frozenset[int], Any] = {}

    def matcher(self, grammar: tuple[str, str], stops: frozenset[int]) -> GrammarMatcher:
        """Return a new matcher of ``(kind, text)``; a kind is ``json_schema``, ``regex`` or ``grammar`` (Lark). Raises InputError, UnavailableError."""
        try:
            import llguidance
        except ImportError as error:
            do = "pip install 'xpuruntime[grammar]'"
            raise UnavailableError(_WHO, "needs the package llguidance", do=do) from error
        kind, text = grammar
        makers: dict[str, Callable[[Any], str]] = {
            "json_schema": lambda m: m.grammar_from_json_schema(
                text, defaults={"whitespace_flexible": False}
            ),
            "regex": lambda m: m.grammar_from_regex(text),
            "grammar": lambda m: m.grammar_from_lark(text),
        }
        matchers: Any = llguidance.LLMatcher
        try:
            matcher = matchers(self._prepared(llguidance, stops), makers[kind](matchers), log_level=0)
        except ValueError as error:
            raise InputError(
                _WHO, f"has an invalid {kind}", got=str(error)[:500], do="Correct the grammar or schema."
            ) from error
        if matcher.is_error():
            raise InputError(
                _WHO,
                f"has an invalid {kind}",
                got=str(matcher.get_error())[:500],
                do="Correct the grammar or schema.",
            )
        return GrammarMatcher(matcher, self._vocab, kind, stops)

    def _prepared(self, llguidance: Any, stops: frozenset[int]) -> Any:
        if self._text is None:
            raise InputError(_WHO, "needs a tokenizer", do="Give a folder with tokenizer.json.")
        if not stops:
            raise InputError(_WHO, "needs a stop token, which ends the text", do="Give eos_token_id.")
        if stops not in self._tokens:
            try:
                self._tokens[stops] = llguidance.LLTokenizer(
                    self._text.tokenizer.to_str(), n_vocab=self._vocab, eos_token=sorted(stops)
                )
            except (ValueError, RuntimeError) as error:
                raise InputError(
                    _WHO,
                    "cannot use the model's tokenizer",
                    got=str(error)[:500],
                    do="Generate without a grammar.",
                ) from error
        return self._tokens[stops]


class GrammarMatcher:
    """The state of one text in its grammar."""

    def __init__(self, matcher: Any, vocab: int, kind: str, stops: frozenset[int]) -> None:
        self._matcher, self._vocab, self._kind, self._stops = matcher, vocab, kind, sorted(stops)

    def constrain(self, x: NDArray[np.float32]) -> None:
        """Set the logits of tokens that may not follow to -inf. Raises InputError if the matcher gives up."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[: self._vocab].astype(bool)
        self._check()
        x[: allowed.size][~allowed] = -np.inf
        x[allowed.size :] = -np.inf
        if not self._matcher.is_accepting():
            x[self._stops] = -np.inf  # a stop token may be text, too

    def accept(self, token: int) -> None:
        """Continue after a token. Raises InputError if the matcher gives up."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            do = "Simplify it."
            raise InputError(
                _WHO, f"cannot follow the {self._kind}", got=str(self._matcher.get_error())[:500], do=do
            )
