"""Costs of nodes and of transfers between regions: measured times, or predictions from arithmetic and memory traffic (roofline)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...ir import Graph, Node
from ...ir.family import family_of, source_names
from ...ir.shapes.named_dims import named_dims
from ...types import DimLike, TensorSpec

__all__ = ["Costs", "flops_of", "traffic_of"]

_UNKNOWN = 64  # size of symbolic dims in predictions


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Rates and measured times.

    measured:    seconds by engine and node (the node's own name or a source's), as a profile has them. They take precedence over predictions.
    region_s:    seconds to enter a region, by engine, in addition to its work; ``other_s`` for engines that are not listed.
    flops_per_s, bytes_per_s: rates of the processor, for predictions.
    copy_bytes_per_s: rate of copies between two devices.

    Defaults were measured on a machine with two cores (docs/development/runtime-notes.md). The order of magnitude is enough.
    """

    measured: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    region_s: Mapping[str, float] = field(
        default_factory=lambda: {"native": 4.4e-6, "onnxruntime": 6.7e-6, "openvino": 22.7e-6}
    )
    other_s: float = 22.7e-6
    flops_per_s: float = 244e9
    bytes_per_s: float = 62e9
    copy_bytes_per_s: float = 31e9

    def measured_s(self, node: Node, engine: str) -> float | None:
        """Return the measured seconds of a node; None if it was not measured."""
        times = self.measured.get(engine, {})
        return next((times[n] for n in (node.name, *source_names(node)) if n in times), None)

    def predicted_s(self, graph: Graph, node: Node) -> float:
        """Return predicted seconds: the slower of arithmetic and memory traffic."""
        return max(flops_of(graph, node) / self.flops_per_s, traffic_of(graph, node) / self.bytes_per_s)

    def enter_s(self, engine: str) -> float:
        """Return the seconds to enter one more region of an engine."""
        return self.region_s.get(engine, self.other_s)

    def size_of(self, spec: TensorSpec | None) -> int:
        """Return the bytes of a value. A symbolic dim counts as 64."""
        return _bytes(spec)

    def copy_s(self, spec: TensorSpec | None) -> float:
        """Return the seconds to copy a value to another device."""
        return _bytes(spec) / self.copy_bytes_per_s


_WEIGHT_OF = {"qlinear_convolution": 3}
"""Convolution -> the position of its filter, if that is not 1."""


def flops_of(graph: Graph, node: Node) -> int:
    """Return the floating-point operations of a node: one per result element if the op is not a sum of products."""
    dims = {k: _size(v) for k, v in named_dims(graph, node).items()}
    out = sum(_elements(v.spec) for v in node.outputs)
    match family_of(node):
        case "matmul" if "K" in dims:
            return 2 * out * dims["K"]
        case "attention" if "D" in dims:
            return 4 * dims["batch"] * dims["heads"] * dims["Q"] * dims["S"] * dims["D"]
        case "conv":
            position = _WEIGHT_OF.get(node.op, 1)
            weight = _spec(graph, node.inputs[position]) if len(node.inputs) > position else None
            if weight is None or not weight.shape:
                return out
            return 2 * out * (_elements(weight) // max(_size(weight.shape[0]), 1))
        case _:
            return out


def traffic_of(graph: Graph, node: Node) -> int:
    """Return the bytes that a node reads and writes, each buffer once."""
    reads = sum(_bytes(_spec(graph, v)) for v in dict.fromkeys(node.values))
    return reads + sum(_bytes(v.spec) for v in node.outputs)


def _spec(graph: Graph, value: object) -> TensorSpec | None:
    return graph.values[value].spec if isinstance(value, str) else None


def _size(d: DimLike) -> int:
    if isinstance(d, int):
        return d
    size = d.substitute(dict.fromkeys(d.symbols, _UNKNOWN))
    return size if isinstance(size, int) else _UNKNOWN


def _elements(spec: TensorSpec | None) -> int:
    return 0 if spec is None else functools.reduce(operator.mul, map(_size, spec.shape), 1)


def _bytes(spec: TensorSpec | None) -> int:
    return 0 if spec is None else _elements(spec) * spec.dtype.bits // 8
