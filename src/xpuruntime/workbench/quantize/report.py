"""The report of a quantization: the error of the outputs and of each node, and which nodes stay in floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...protocols import Array

__all__ = ["NodeError", "QuantizeReport", "RelativeError"]


class RelativeError:
    """The root of sum((got - want)^2) / sum(want^2) over pairs of arrays; infinite if a result is not finite where the reference is."""

    def __init__(self) -> None:
        self._square = self._reference = 0.0

    def add(self, got: Array, want: Array) -> None:
        """Take a pair of arrays of one size."""
        x, y = (np.asarray(a, np.float64).reshape(-1) for a in (got, want))
        finite = np.isfinite(y)
        if np.isfinite(x[finite]).all():
            self._square += float(np.square(x[finite] - y[finite]).sum())
            self._reference += float(np.square(y[finite]).sum())
        else:
            self._square = float("inf")

    @property
    def value(self) -> float:
        """The error over everything that was added; the root of the numerator if the reference is 0."""
        return float(np.sqrt(self._square / self._reference if self._reference else self._square))


@dataclass(frozen=True, slots=True)
class NodeError:
    """The error of one convolution or matrix product of the model.

    error: relative error of its result in the quantized model, with the errors of all nodes before it.
    added: how much of that it adds to the largest error among its inputs.
    kept:  whether it stays in floats to meet the error budget or because it is excluded.
    """

    node: str
    op: str
    error: float
    added: float
    kept: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"node": self.node, "op": self.op, "error": self.error, "added": self.added, "kept": self.kept}


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """The result of ``quantize``.

    model, policy: paths of the files that were written. samples: number of calibration samples.
    error:         relative error of all outputs over the calibration samples, ``||quantized - float|| / ||float||``. Ranges and codes are fitted to
                   these samples, so the error of other inputs is larger.
    max_error:     the budget, or None. nodes: by added error, the largest first. smoothed: number of norms that take a part of their
                   weights' range. corrected: number of biases that take the mean error of their weights.
    gptq:          number of weights whose codes GPTQ chose. activations: their type.
    """

    model: str
    policy: str
    samples: int
    error: float
    max_error: float | None
    nodes: tuple[NodeError, ...]
    smoothed: int = 0
    corrected: int = 0
    gptq: int = 0
    activations: str = "uint8"

    @property
    def ok(self) -> bool:
        """True if the error is within the budget and at least one product is quantized."""
        return self.worst is not None and (self.max_error is None or self.error <= self.max_error)

    @property
    def worst(self) -> NodeError | None:
        """The quantized node that adds the largest error."""
        return next((n for n in self.nodes if not n.kept), None)

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the products that stay in floats."""
        return tuple(n.node for n in self.nodes if n.kept)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "model": self.model,
            "policy": self.policy,
            "samples": self.samples,
            "error": self.error,
            "max_error": self.max_error,
            "ok": self.ok,
            "smoothed": self.smoothed,
            "corrected": self.corrected,
            "gptq": self.gptq,
            "activations": self.activations,
            "worst": None if self.worst is None else self.worst.node,
            "nodes": [n.to_json() for n in self.nodes],
        }
