"""ExpertSizes: the mixture of experts of one model, read from its config by the family's ``ExpertLayers``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ModelError
from ..families.experts import ExpertLayers

__all__ = ["ExpertSizes"]

_MAX_EXPERTS, _MAX_WIDTH = 1 << 14, 1 << 24
_METHODS = ("greedy", "group_limited_greedy")
Size = Callable[[str, int, int | None], int]
"""Reads the integer of a field: its name, the maximum, and the value of an absent one."""


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """Sizes and switches.

    count, chosen: experts, and how many of them compute a token. inner, shared: sizes of an expert and of the shared one; 0 without.
    normalize: chosen scores are divided by their sum. scale: the factor of the chosen scores.
    groups, chosen_groups: groups of experts, and from how many of them experts are chosen; 1 without groups.
    sparse:    whether each layer has experts.
    names:     the names of weights in a layer (``ExpertLayers.layouts``).
    """

    count: int
    chosen: int
    inner: int
    shared: int
    normalize: bool
    scale: float
    groups: int
    chosen_groups: int
    sparse: tuple[bool, ...]
    names: Mapping[str, str]

    @classmethod
    def of(cls, spec: ExpertLayers, facts: Mapping[str, Any], layers: int, size: Size) -> ExpertSizes:
        """Read a config. Raises ModelError."""
        numbers = {n: facts[n] for n in spec.count if facts.get(n) is not None}
        if len({*numbers.values()}) > 1:
            raise _wrong(*next(iter(numbers.items())), f"that of {list(numbers)[-1]}")
        count = size(next(iter(numbers), spec.count[0]), _MAX_EXPERTS, None)
        inner = size(spec.inner, _MAX_WIDTH, None)
        shared = size(spec.shared, _MAX_WIDTH, None) if spec.shared else 0
        if spec.shared_times and facts.get(spec.shared_times) != 0:
            shared = inner * size(spec.shared_times, _MAX_EXPERTS, None)
        normalize = facts.get(spec.normalize) if isinstance(spec.normalize, str) else spec.normalize
        if normalize is not None and not isinstance(normalize, bool):
            raise _wrong(str(spec.normalize), normalize, "true or false")
        scale = facts.get(spec.scale, 1.0) if spec.scale else 1.0
        if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < 1e6:
            raise _wrong(spec.scale, scale, "a positive number")
        groups, chosen_groups = _groups(spec, facts, count, size)
        chosen = size("num_experts_per_tok", count // groups * chosen_groups, None)
        names = {k: n for k, n in spec.layouts[-1].items() if shared or not k.startswith("shared")}
        sparse = _sparse(spec, facts, layers)
        return cls(
            count, chosen, inner, shared, bool(normalize), float(scale), groups, chosen_groups, sparse, names
        )

    def shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the weights of a layer by name."""
        sizes = {
            "gate": (self.inner, hidden),
            "up": (self.inner, hidden),
            "gate_up": (2 * self.inner, hidden),
            "down": (hidden, self.inner),
        }
        others = {
            "router": (self.count, hidden),
            "shared_gate": (self.shared, hidden),
            "shared_up": (self.shared, hidden),
            "shared_down": (hidden, self.shared),
            "shared_scale": (1, hidden),
        }
        shapes: dict[str, tuple[int, ...]] = {}
        for part, name in self.names.items():
            if part not in sizes:
                shapes[name] = others[part]
            elif "{}" in name:
                shapes |= {name.format(i): sizes[part] for i in range(self.count)}
            else:
                shapes[name] = (self.count, *sizes[part])
        return shapes

    def stored_as(
        self, spec: ExpertLayers, layer: Callable[[int], str], names: Collection[str]
    ) -> Mapping[str, str]:
        """Return the names of the layout that the weights ``names`` have; the current ones if none fits. ``layer``: a layer's prefix."""
        first = next((i for i, sparse in enumerate(self.sparse) if sparse), 0)
        for layout in spec.layouts:
            needed = (layout["router"], layout["down"])
            if all(f"{layer(first)}.{name.format(0)}" in names for name in needed):
                return {k: n for k, n in layout.items() if self.shared or not k.startswith("shared")}
        return self.names


def _groups(spec: ExpertLayers, facts: Mapping[str, Any], count: int, size: Size) -> tuple[int, int]:
    if not spec.groups:
        return 1, 1
    number, chosen, method = spec.groups
    if facts.get(method) not in _METHODS:
        raise ModelError(
            "language model",
            f"has an unsupported {method}",
            got=repr(facts.get(method))[:80],
            do=f"Supported: {', '.join(_METHODS)}.",
        )
    if facts[method] == "greedy":
        return 1, 1
    groups = size(number, count, None)
    if count % groups:
        raise _wrong(number, groups, f"a divisor of {count}")
    return groups, size(chosen, groups, None)


def _sparse(spec: ExpertLayers, facts: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    if spec.dense == "first":
        first = facts.get("first_k_dense_replace", 0)
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise _wrong("first_k_dense_replace", first, "a count of layers")
        return tuple(i >= first for i in range(layers))
    if spec.dense == "steps":
        step, dense = facts.get("decoder_sparse_step", 1), facts.get("mlp_only_layers") or []
        if isinstance(step, bool) or not isinstance(step, int) or step < 1:
            raise _wrong("decoder_sparse_step", step, "a whole number from 1")
        if not isinstance(dense, list | tuple) or not all(type(i) is int for i in dense):
            raise _wrong("mlp_only_layers", dense, "a list of layers")
        return tuple(i not in dense and (i + 1) % step == 0 for i in range(layers))
    return (True,) * layers


def _wrong(name: str, value: Any, requirement: str) -> ModelError:
    do = "Fetch the checkpoint's config.json again."
    return ModelError(
        "language model", f"has a {name} that is not {requirement}", got=repr(value)[:80], do=do
    )
