"""Chains of pointwise ops in which a value is rounded to 16 bits between two wider ones, as one fused kernel, compared bit by bit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from xpuruntime import ir
from xpuruntime.codegen.target import CodegenTarget
from xpuruntime.ir import interp
from xpuruntime.types import DType

from .native import run_native

__all__ = ["PAIRS", "check_chains"]

PAIRS = [
    (wide, narrow)
    for wide, narrow in itertools.product(
        ("float64", "float32", "bfloat16", "float16"), ("bfloat16", "float16")
    )
    if wide != narrow
]
"""A wide dtype, or one of 16 bits with more exponents or more digits, and the dtype that values are rounded to."""


def check_chains(wide: str, narrow: str, target: str | CodegenTarget) -> None:
    """Raise AssertionError if a result differs from the interpreter's. Products by 1.5 are exact in float32, so that each result has one value."""
    draw = np.random.default_rng(0)
    size = draw.standard_normal(1000) * 10.0 ** draw.integers(-9, 6, 1000)
    edges = [65504, 65519, 65520, 70000, 43680, 1e6, 1e38, 3.3e38, 6e-8, 3e-8, 1e-40, 0.0, np.inf]
    numbers = np.concatenate([size, edges, np.negative(edges), [np.nan]])
    with np.errstate(all="ignore"):
        x = numbers.astype(DType(wide).numpy)
    b = ir.GraphBuilder("chains")
    value = b.input("x", f"{wide}[{x.size}]")
    rounded = b.cast(value, dtype=narrow)
    product = b.mul(rounded, 1.5)
    results: dict[str, Any] = {
        "back": b.neg(b.cast(rounded, dtype=wide)),
        "computed": b.neg(b.cast(product, dtype=wide)),
        "selected": b.neg(b.cast(b.maximum(b.relu(product), rounded), dtype=wide)),
        "integer": b.cast(b.clamp(product, -3000.0, 3000.0), dtype="int32"),
        "promoted": b.minimum(product, b.cast(value, dtype="float64")),
        "infinite": b.isinf(product),
        "larger": b.gt(product, rounded),
        "floor": b.floor(product),
    }
    for name, result in results.items():
        b.output(name, result)
    with np.errstate(all="ignore"):
        feeds = {"x": x}
        got, want = run_native(b.build(), feeds, target=target), interp.run(b.build(), feeds)
        for name, expected in want.items():
            assert got[name].dtype == expected.dtype
            a, e = got[name].astype(np.float64), expected.astype(np.float64)
            wrong = (a != e) & ~(np.isnan(a) & np.isnan(e))
            assert not wrong.any(), (name, x[wrong][:4], a[wrong][:4], e[wrong][:4])
        assert np.isinf(want["computed"]).sum() > 4 or narrow == "bfloat16"
