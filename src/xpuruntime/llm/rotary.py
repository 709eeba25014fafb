"""Rotary positions (Su et al. 2021): tables of cosines and sines, with the scalings of positions that checkpoints use."""

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
_LLAMA3 = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_YARN = (
    *("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "original_max_position_embeddings",
)
_LONG = ("attention_factor", "short_factor", "long_factor", "original_max_position_embeddings")
_KINDS: Mapping[str, tuple[str, ...]] = {
    "default": ("factor", *_LLAMA3),
    "linear": ("factor", *_LLAMA3),
    "dynamic": ("factor", *_LLAMA3),
    "llama3": ("factor", *_LLAMA3),
    "yarn": ("factor", *_YARN),
    "longrope": ("factor", *_LONG),
}
"""Scaling -> known fields of ``rope_scaling`` and ``rope_parameters`` in addition to the common ones."""
_COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_SCALED = ("linear", "dynamic", "llama3", "yarn")
"""Scalings by a factor that the config must have; ``yarn`` may have the original maximum instead."""
_OTHER_NAMES = {"su": "longrope"}


@dataclass(frozen=True, slots=True)
class Rotary:
    """Parameters of rotary positions.

    base:     theta.
    kind:     a key of ``_KINDS``. ``dynamic`` changes positions beyond the model's maximum only, which no cache has.
    factor:   scale of positions.
    low, high, original: parameters of ``llama3``. Wavelengths above original / low are stretched by ``factor``, those below
              original / high are not, and those between are interpolated. ``yarn`` (Peng et al. 2023) interpolates between ``low`` and
              ``high`` rotations in ``original`` positions, at whole pairs if ``truncate``.
    attention: the factor of cosines and sines. scores: that of attention scores (DeepSeek).
    short, long: divisors of the frequencies (``longrope``, Ding et al. 2024) for caches of up to ``original`` positions, and for longer ones.
    explicit: radians per position of each pair, if the model stores them; empty to compute them by the formula.
    """

    base: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192
    attention: float = 1.0
    scores: float = 1.0
    truncate: bool = True
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()
    explicit: tuple[float, ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Rotary:
        """Read a config: ``rope_theta`` and ``rope_scaling``, or ``rope_parameters``. Raises ModelError for another kind or field."""
        facts: dict[str, Any] = {**(data.get("rope_scaling") or {}), **(data.get("rope_parameters") or {})}
        facts = {k: v for k, v in facts.items() if v is not None}
        kind = str(facts.get("rope_type") or facts.get("type") or "default")
        kind = _OTHER_NAMES.get(kind, kind)
        if kind not in _KINDS:
            do = f"Supported: {', '.join(_KINDS)}."
            raise ModelError("rotary positions", "have an unsupported scaling", got=kind, do=do)
        for name, value in facts.items():
            if name not in (*_COMMON, *_KINDS[kind]):
                do = "Remove the field if no result depends on it."
                raise ModelError("rotary positions", f"have an unknown {name}", got=repr(value)[:80], do=do)
        longest = data.get("max_position_embeddings", 8192)
        own = data.get("original_max_position_embeddings")
        original = int(own or facts.get("original_max_position_embeddings") or longest)
        if kind in ("default", "linear", "dynamic", "llama3"):
            original = int(facts.get("original_max_position_embeddings", 8192))
        if kind in _SCALED and "factor" not in facts and (kind != "yarn" or original == longest):
            raise ModelError(
                "rotary positions",
                f"of the scaling {kind} need a factor",
                do="Add the factor to rope_scaling in config.json.",
            )
        factor = float(facts.get("factor", longest / original if kind in ("yarn", "longrope") else 1.0))
        first = {"yarn": ("beta_slow", 1.0), "llama3": ("low_freq_factor", 1.0)}.get(kind, ("", 1.0))
        second = {"yarn": ("beta_fast", 32.0), "llama3": ("high_freq_factor", 4.0)}.get(kind, ("", 4.0))
        short, long = (tuple(map(float, facts.get(n, ()))) for n in ("short_factor", "long_factor"))
        rotary = cls(
            base=float(facts.get("rope_theta") or data.get("rope_theta") or 10000.0),
            kind=kind,
            factor=factor,
            low=float(facts.get(*first)),
            high=float(facts.get(*second)),
            original=original,
            attention=_attention_factor(kind, facts, factor, original),
            scores=_mscale(factor, facts.get("mscale_all_dim", 0.0)) ** 2,
            truncate=bool(facts.get("truncate", True)),
            short=short,
            long=long,
        )
        sizes = (
            rotary.base,
            rotary.factor,
            rotary.low,
            rotary.high,
            rotary.original,
            rotary.attention,
            *short,
            *long,
        )
        if not all(math.isfinite(v) and v > 0 for v in sizes) or (
            kind == "llama3" and rotary.low >= rotary.high
        ):
            raise ModelError(
                "rotary positions",
                "have parameters that are not finite and positive",
                got=str(sizes)[:120],
                do="Correct rope_scaling in config.json.",
            )
        if kind == "longrope" and not 0 < len(short) == len(long):
            got = f"{len(short)} and {len(long)}"
            raise ModelError(
                "rotary positions",
                "need as many short factors as long ones",
                got=got,
                do="Correct rope_scaling in config.json.",
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
                "rotary positions",
                f"have a rope_theta that differs from {theta}",
                got=sorted(bases),
                do="Keep one of the two values in config.json.",
            )
        plain = {**data, "rope_theta": next(iter(bases), None)}
        if any(isinstance(v, Mapping) for v in parameters.values()):
            if {*parameters} != {*_LAYER_TYPES}:
                raise ModelError(
                    "rotary positions",
                    "need one entry per type of layers",
                    got=sorted(parameters),
                    do="Correct rope_parameters in config.json.",
                )
            full, local = (cls.from_json({**plain, "rope_parameters": parameters[t]}) for t in _LAYER_TYPES)
            return full, local
        full = cls.from_json(plain)
        if "rope_local_base_freq" not in data:
            return full, full
        return full, cls.from_json({"rope_theta": data["rope_local_base_freq"]})

    def frequencies(self, size: int, capacity: int = 0) -> NDArray[np.float32]:
        """Return the radians per position of each pair, [size / 2], for a cache of ``capacity`` positions.

        Powers are computed in float64 and rounded once, which matches PyTorch's float32 powers best (docs/development/runtime-notes.md).
        """
        if len(self.explicit) == size // 2:
            return np.array(self.explicit, np.float32)
        steps = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
        powers = (np.float64(self.base) ** steps.astype(np.float64)).astype(np.float32)
        plain = np.float32(1) / powers
        scaled = {"linear": self._linear, "llama3": self._llama3, "yarn": self._yarn}.get(self.kind)
        if self.kind == "longrope":
            factors = self.long if capacity > self.original else self.short
            if len(factors) != size // 2:
                raise ModelError(
                    "rotary positions",
                    f"need {size // 2} short and long factors",
                    got=len(factors),
                    do="Correct rope_scaling in config.json.",
                )
            return (1 / (np.array(factors, np.float32) * powers)).astype(np.float32)
        return plain if scaled is None else scaled(plain).astype(np.float32)

    def _linear(self, plain: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(plain / np.float32(self.factor))

    def _llama3(self, plain: NDArray[Any]) -> NDArray[Any]:
        length = 2 * math.pi / plain
        smooth = (self.original / length - self.low) / (self.high - self.low)
        mixed = (1 - smooth) * plain / self.factor + smooth * plain
        long = np.where(length > self.original / self.low, plain / self.factor, plain)
        middle = (length <= self.original / self.low) & (length >= self.original / self.high)
        return np.where(middle, mixed, long)

    def _yarn(self, plain: NDArray[Any]) -> NDArray[Any]:
        size = 2 * len(plain)
        ends = [self._pair_of(rotations, size) for rotations in (self.high, self.low)]
        first, last = (math.floor(ends[0]), math.ceil(ends[1])) if self.truncate else ends
        first, last = max(first, 0), min(last, size - 1)
        last = last + 0.001 if first == last else last
        ramp = np.clip(
            (np.arange(len(plain), dtype=np.float32) - np.float32(first)) / np.float32(last - first), 0, 1
        )
        return np.asarray(plain / np.float32(self.factor) * ramp + plain * (1 - ramp))

    def _pair_of(self, rotations: float, size: int) -> float:
        """Return the pair that rotates so often in ``original`` positions."""
        return size * math.log(self.original / (rotations * 2 * math.pi)) / (2 * math.log(self.base))

    def tables(self, size: int, positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return cosines and sines, [positions, size / 2] each."""
        angles = np.arange(positions, dtype=np.float32)[:, None] * self.frequencies(size, positions)[None, :]
        factor = np.float32(self.attention)
        return np.cos(angles) * factor, np.sin(angles) * factor


def _mscale(factor: float, mscale: float) -> float:
    """Return YaRN's growth of attention with the factor of positions."""
    return 1.0 if factor <= 1 or not mscale else 0.1 * float(mscale) * math.log(factor) + 1.0


def _attention_factor(kind: str, facts: Mapping[str, Any], factor: float, original: int) -> float:
    if kind not in ("yarn", "longrope"):
        return 1.0
    if "attention_factor" in facts:
        return float(facts["attention_factor"])
    if kind == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    mscale, all_dims = facts.get("mscale"), facts.get("mscale_all_dim")
    if mscale and all_dims:
        return _mscale(factor, mscale) / _mscale(factor, all_dims)
    return _mscale(factor, 1.0)
