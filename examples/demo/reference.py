"""A model's outputs in float64, computed by the IR interpreter with NumPy: the reference for engines. It shares no kernel or pass with an engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xpuruntime import ir
from xpuruntime.frontends.onnx import import_onnx
from xpuruntime.ir import interp
from xpuruntime.numerics import compare


@dataclass(frozen=True)
class Exact:
    """A model's outputs in float64, and the rounding error of float32 for each output.

    rounding: max|d|/max|ref| of the same ops, each computed in float64 and rounded to float32. No engine can be expected to be much closer.
    """

    outputs: Mapping[str, np.ndarray]
    rounding: Mapping[str, float]


def exact_outputs(path: Path, feeds: Mapping[str, np.ndarray]) -> Exact:
    """Run an ONNX model with float64 in place of float32, and again with float32 values. Raises ModelError, IrError."""
    graph, weights = import_onnx(path)
    wide = ir.Graph.from_json(_widened(graph.to_json()))

    def weight(of: Any) -> np.ndarray:
        return _wide_array(np.asarray(weights[of.name]))

    exact = interp.run(wide, {name: _wide_array(array) for name, array in feeds.items()}, weights=weight)
    rounded = interp.run(graph, feeds, weights=weights)
    far = {name: compare(name, rounded[name], exact[name], math.inf).max_rel for name in exact}
    return Exact(exact, {name: value if math.isfinite(value) else 0.0 for name, value in far.items()})


def _wide_array(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype == np.float32 else array


def _widened(data: Any) -> Any:
    """Return a graph's JSON with float64 in place of float32. A constant is a pair of its type and its bytes in hexadecimal."""
    match data:
        case dict():
            return {key: _widened(value) for key, value in data.items()}
        case [str(kind), str(digits)] if kind.startswith("float32["):
            values = np.frombuffer(bytes.fromhex(digits), np.float32).astype(np.float64)
            return [kind.replace("float32", "float64", 1), values.tobytes().hex()]
        case list() | tuple():
            return [_widened(value) for value in data]
        case str():
            return data.replace("float32", "float64") if data.startswith("float32") else data
        case _:
            return data
