"""Who may have a speed in benchmarks/cpu_llm.py: errors against float32, greedy tokens, and what weights of few bits lose on real text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llm_contenders import Contender

NEAR = 1e-4
"""Largest max|d|/max|ref| of logits in float32 against transformers."""
TIMES = 1.25
"""How often its own error transformers eager may be away from float32: computing in bfloat16 has more than one right result."""
NATS = 0.1
"""How much less likely, in nats a token, weights of few bits may make a real text."""
TEXT = 384
"""Tokens of real text that they are judged by."""


@dataclass(frozen=True)
class Exact:
    """What transformers says in float32 over the same weights: ``rows`` [tokens, vocab] after each of ``tokens`` from the prompt's last on."""

    tokens: list[int]
    prompt: int
    rows: np.ndarray
    greedy: list[int]

    def error(self, logits: np.ndarray) -> float:
        """Root of the mean square of what is off, as a share of the same of the logits."""
        return float(np.sqrt(np.mean((logits - self.rows) ** 2) / np.mean(self.rows**2)))

    def judge(self, contender: Contender, eager: float | None, *, narrow: bool = False) -> str:
        """In words how right it is. Raises ValueError when it is not.

        eager:  transformers' own error in this type, None for float32. narrow: the contender's weights have four bits, perhaps other ones.
        """
        if not contender.gives_logits:
            return self._by_tokens(contender, exact=eager is None and not narrow)
        logits = contender.logits(self.tokens, self.prompt)
        if eager is None:
            max_error = float(abs(logits - self.rows).max() / abs(self.rows).max())
            if not max_error <= NEAR:
                raise ValueError(f"logits are {max_error:.2g} from transformers'")
            return f"logits within {max_error:.2g} of transformers'"
        ratio = self.error(logits) / eager
        if not ratio <= TIMES:
            raise ValueError(f"logits are {ratio:.2f} times as far from float32 as transformers'")
        return f"{ratio:.2f} times transformers' own error against float32"

    def _by_tokens(self, contender: Contender, exact: bool) -> str:
        tokens = contender.greedy(self.tokens[: self.prompt], len(self.greedy))
        pairs = enumerate(zip(tokens, self.greedy, strict=True))
        matching = next((i for i, (a, b) in pairs if a != b), len(self.greedy))
        if exact and matching < len(self.greedy):
            raise ValueError(f"greedy tokens are {tokens}, transformers' {self.greedy}")
        return f"the first {matching} of {len(self.greedy)} greedy tokens are transformers' in float32"


def reference(model: Any, tokens: list[int], prompt: int, greedy: int) -> Exact:
    """By a transformers model in float32, in one pass over all tokens; then it continues greedily, without a cache."""
    import torch

    def rows(ids: Sequence[int], keep: int) -> np.ndarray:
        with torch.inference_mode():
            out = model(input_ids=torch.tensor([list(ids)]), logits_to_keep=keep, use_cache=False)
            return np.asarray(out.logits[0].float().numpy())

    logits = rows(tokens, len(tokens) - prompt + 1)
    greedy_tokens: list[int] = []
    while len(greedy_tokens) < greedy:
        greedy_tokens.append(int(rows([*tokens[:prompt], *greedy_tokens], 1)[-1].argmax()))
    return Exact(tokens, prompt, logits, greedy_tokens)


def real_text() -> str:
    """The beginning of Python's language reference, as every CPython carries it for ``help()``: nothing was calibrated with it."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics)[:6])


def nats(rows: np.ndarray, tokens: Sequence[int]) -> float:
    """Mean of -log p of each next token. rows: logits [len(tokens), vocab] or one less."""
    wide = rows[: len(tokens) - 1].astype(np.float64)
    wide -= wide.max(1, keepdims=True)
    sure = wide[np.arange(len(wide)), list(tokens[1:])] - np.log(np.exp(wide).sum(1))
    return float(-sure.mean())


def lost(contender: Contender, text: list[int], exact: float) -> str:
    """In words what a real text loses. Raises ValueError when it is too much."""
    rows = contender.logits(text[:-1], 1)
    loss = nats(rows, text) - exact
    if not loss <= NATS:
        raise ValueError(f"loses {loss:.3f} nats a token of real text")
    return f"{loss:+.4f} nats a token of real text against float32 weights ({exact:.3f})"
