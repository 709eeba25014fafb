"""Rotary positions (Su et al. 2021): tables of cosines and sines, with Llama 3.1's and linear scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError

__all__ = ["Rotary"]

_LAYER_TYPES = ("full_attention", "sliding_attention")
_FIELDS = frozenset(
    [
        "rope_type",
        "type",
        "rope_theta",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "partial_rotary_factor",
    ]
)
"""Known fields of ``rope_scaling`` and ``rope_parameters``."""


@dataclass(frozen=True, slots=True)
class Rotary:
    """Parameters of rotary positions.

    base:     theta.
    kind:     ``default``, ``linear`` or ``llama3``.
    factor:   scale of positions.
    low, high, original: parameters of ``llama3``. Wavelengths above original / low are stretched by ``factor``, those below
              original / high are not, and those between are interpolated.
    explicit: radians per position of each pair, if the model stores them; empty to compute them by the formula.
    """

    base: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192
    explicit: tuple[float, ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Rotary:
        """Read a config: ``rope_theta`` and ``rope_scaling``, or ``rope_parameters``. Raises ModelError for another kind or field."""
        facts: dict[str, Any] = {**(data.get("rope_scaling") or {}), **(data.get("rope_parameters") or {})}
        for name, value in facts.items():
            if value is not None and name not in _FIELDS:
                do = "Remove the field if no result depends on it."
                raise ModelError("rotary positions", f"have an unknown {name}", got=repr(value)[:80], do=do)
        kind = str(facts.get("rope_type") or facts.get("type") or "default")
        if kind not in ("default", "linear", "llama3"):
            do = "Supported: default, linear, llama3."
            raise ModelError("rotary positions", "have an unsupported scaling", got=kind, do=do)
        rotary = cls(
            base=float(facts.get("rope_theta") or data.get("rope_theta") or 10000.0),
            kind=kind,
            factor=float(facts.get("factor", 1.0)),
            low=float(facts.get("low_freq_factor", 1.0)),
            high=float(facts.get("high_freq_factor", 4.0)),
            original=int(facts.get("original_max_position_embeddings", 8192)),
        )
        sizes = (rotary.base, rotary.factor, rotary.low, rotary.high, rotary.original)
        if not all(math.isfinite(v) and v > 0 for v in sizes) or (
            kind == "llama3" and rotary.low >= rotary.high
        ):
            raise ModelError(
                "rotary positions", "have parameters that are not finite and positive", got=sizes
            )
        return rotary

    @classmethod
    def of_layers(cls, data: Mapping[str, Any], theta: str = "rope_theta") -> tuple[Rotary, Rotary]:
        """Return the positions of layers without a window, and with one. They differ if ``rope_parameters`` has one entry per type of
        layer, or if there is a ``rope_local_base_freq``. ``theta`` is the family's name of ``rope_theta``.
        """
        parameters = data.get("rope_parameters") or {}
        if unknown := [n for n, v in parameters.items() if isinstance(v, Mapping) and n not in _LAYER_TYPES]:
            do = f"Supported: {', '.join(_LAYER_TYPES)}."
            raise ModelError(
                "rotary positions", "are given for an unknown type of layers", got=unknown[0], do=do
            )
        bases = {data[n] for n in ("rope_theta", theta) if data.get(n) is not None}
        if len(bases) > 1:
            raise ModelError(
                "rotary positions", f"have a rope_theta that differs from {theta}", got=sorted(bases)
            )
        plain = {**data, "rope_theta": next(iter(bases), None)}
        if any(isinstance(v, Mapping) for v in parameters.values()):
            if {*parameters} != {*_LAYER_TYPES}:
                raise ModelError(
                    "rotary positions", "need one entry per type of layers", got=sorted(parameters)
                )
            full, local = (cls.from_json({**plain, "rope_parameters": parameters[t]}) for t in _LAYER_TYPES)
            return full, local
        full = cls.from_json(plain)
        if "rope_local_base_freq" not in data:
            return full, full
        return full, cls.from_json({"rope_theta": data["rope_local_base_freq"]})

    def frequencies(self, size: int) -> NDArray[np.float32]:
        """Return the radians per position of each pair, [size / 2].

        Powers are computed in float64 and rounded once, which matches PyTorch's float32 powers best (docs/development/runtime-notes.md).
        """
        if len(self.explicit) == size // 2:
            return np.array(self.explicit, np.float32)
        steps = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
        powers = (np.float64(self.base) ** steps.astype(np.float64)).astype(np.float32)
        plain = np.float32(1) / powers
        if self.kind == "linear":
            return (plain / np.float32(self.factor)).astype(np.float32)
        if self.kind != "llama3":
            return plain
        length = 2 * math.pi / plain
        smooth = (self.original / length - self.low) / (self.high - self.low)
        mixed = (1 - smooth) * plain / self.factor + smooth * plain
        long = np.where(length > self.original / self.low, plain / self.factor, plain)
        middle = (length <= self.original / self.low) & (length >= self.original / self.high)
        return np.where(middle, mixed, long).astype(np.float32)

    def tables(self, size: int, positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return cosines and sines, [positions, size / 2] each."""
        angles = np.arange(positions, dtype=np.float32)[:, None] * self.frequencies(size)[None, :]
        return np.cos(angles), np.sin(angles)
