"""Attention. Forward also returns the log-sum-exp of each query's scores, from which backward computes the weights again."""

from __future__ import annotations

from typing import Any

from .formula import Formula, Writer

__all__ = ["ATTENTION", "ATTENTION_BACKWARD"]

_ATTRIBUTES = ("causal", "scale")


def _options(w: Writer) -> dict[str, Any]:
    return {name: w.attributes[name] for name in _ATTRIBUTES}


def _attention(w: Writer) -> list[str]:
    y, lse = w.b.attention_train(w["q"], w["k"], w["v"], w.optional("mask"), **_options(w))
    return [y, lse]


def _attention_backward(w: Writer) -> list[str]:
    names = ("grad", "q", "k", "v", "y", "lse")
    results = w.b.attention_backward(*(w[n] for n in names), w.optional("mask"), **_options(w))
    return [value for value, wanted in zip(results, w.attributes["wanted"], strict=True) if wanted]


ATTENTION = Formula("attention", ("q", "k", "v", "mask"), _ATTRIBUTES, _attention)
ATTENTION_BACKWARD = Formula(
    "attention_backward",
    ("grad", "q", "k", "v", "y", "lse", "mask"),
    (*_ATTRIBUTES, "wanted"),
    _attention_backward,
)
