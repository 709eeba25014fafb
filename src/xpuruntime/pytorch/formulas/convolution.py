"""Convolutions of one to three spatial dims, and transposed ones."""

from __future__ import annotations

from typing import Any

from .formula import Formula, Writer

__all__ = ["CONVOLUTION", "CONVOLUTION_BACKWARD"]

_ATTRIBUTES = ("stride", "padding", "dilation", "groups", "transposed", "output_padding")


def _options(w: Writer) -> dict[str, Any]:
    options = {name: w.attributes[name] for name in _ATTRIBUTES}
    if not options["transposed"]:
        del options["output_padding"]
    return options


def _convolution(w: Writer) -> list[str]:
    return [w.b.convolution(w["x"], w["weight"], w.optional("bias"), **_options(w))]


def _convolution_backward(w: Writer) -> list[str]:
    results = w.b.convolution_backward(w["grad"], w["x"], w["weight"], **_options(w))
    return [value for value, wanted in zip(results, w.attributes["wanted"], strict=True) if wanted]


CONVOLUTION = Formula("convolution", ("x", "weight", "bias"), _ATTRIBUTES, _convolution)
CONVOLUTION_BACKWARD = Formula(
    "convolution_backward", ("grad", "x", "weight"), (*_ATTRIBUTES, "wanted"), _convolution_backward
)
