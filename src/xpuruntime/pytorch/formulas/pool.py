"""Maxima and means of sliding windows. The maximum's backward adds each gradient to the element that was the largest."""

from __future__ import annotations

from typing import Any

from .formula import Formula, Writer

__all__ = ["AVG_POOL", "AVG_POOL_BACKWARD", "MAX_POOL", "MAX_POOL_BACKWARD"]

_WINDOW = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
_MEAN = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor")


def _options(w: Writer) -> dict[str, Any]:
    options = {name: value for name, value in w.attributes.items() if name != "wanted"}
    options.setdefault("dilation", (1,) * len(options["kernel_size"]))
    return options


def _max_pool(w: Writer) -> list[str]:
    return list(w.b.max_pool(w["x"], outputs=2, **_options(w)))


def _max_pool_backward(w: Writer) -> list[str]:
    return [w.b.max_pool_backward(w["grad"], w["x"], w["indices"], **_options(w))]


def _avg_pool(w: Writer) -> list[str]:
    return [w.b.avg_pool(w["x"], **_options(w))]


def _avg_pool_backward(w: Writer) -> list[str]:
    return [w.b.avg_pool_backward(w["grad"], w["x"], **_options(w))]


MAX_POOL = Formula("max_pool", ("x",), _WINDOW, _max_pool)
MAX_POOL_BACKWARD = Formula(
    "max_pool_backward", ("grad", "x", "indices"), (*_WINDOW, "wanted"), _max_pool_backward
)
AVG_POOL = Formula("avg_pool", ("x",), _MEAN, _avg_pool)
AVG_POOL_BACKWARD = Formula("avg_pool_backward", ("grad", "x"), (*_MEAN, "wanted"), _avg_pool_backward)
