"""Mutants of a model, each broken in one place. A useful comparison must detect them.

    for mutant in mutants(onnx.load("model.onnx"), per_kind=3):
        print(mutant)                                  # drop_bias at conv1.bias: of node_conv: every element is 0
        assert not agrees(mutant.model, original)
    print(not_applicable(model))                       # {"drop_mask": "no softmax reads masked scores", ...}

Takes an ``onnx.ModelProto``, a pair of ``ir.Graph`` and its weights by name (as ``frontends.onnx.import_onnx`` gives), or a
``torch.nn.Module``, and returns the same kind. The given model is never changed.

Some mutants are equivalent to the model: a bias of attention keys adds the same number to every score of a query, which does not change
the softmax (unless a rotary embedding follows). Checks that use mutants must exclude those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from xpuruntime.ir import Graph

from .site import KINDS, Form, NotApplicableError, Site, Use
from .weights import weight_sites

__all__ = ["KINDS", "Mutant", "NotApplicableError", "Site", "Use", "mutants", "not_applicable", "sites"]


@dataclass(frozen=True)
class Mutant:
    """A changed copy of a model: the kind of change, its place, its description, and the copy."""

    kind: str
    where: str
    change: str
    model: Any

    def __str__(self) -> str:
        return f"{self.kind} at {self.where}: {self.change}"


def sites(model: Any) -> list[Site]:
    """Return every place that can be broken, ordered by kind. Raises TypeError for an unknown type of model."""
    form = _form(model)
    all_sites = [*weight_sites(form), *form.structure()]
    return sorted(all_sites, key=lambda s: list(KINDS).index(s.kind))


def mutants(
    model: Any, kinds: Iterable[str] | None = None, *, per_kind: int | None = None
) -> Iterator[Mutant]:
    """Yield copies of the model, each broken in one place.

    per_kind: maximum number of mutants per kind, spread evenly over the model.
    A site is skipped if no valid model would remain.
    """
    all_sites = sites(model)
    for kind in KINDS if kinds is None else kinds:
        if kind not in KINDS:
            raise ValueError(f"no mutation is called {kind!r}; there are {', '.join(KINDS)}")
        count, of_kind = 0, [s for s in all_sites if s.kind == kind]
        for site in _spread(of_kind, per_kind):
            if count == per_kind:
                break
            try:
                yield Mutant(site.kind, site.where, site.change, site.make())
            except NotApplicableError:
                continue
            count += 1


def not_applicable(model: Any) -> dict[str, str]:
    """Return the kinds of change that this model has no site for, each with the reason."""
    return {k: reason for k, reason in KINDS.items() if next(mutants(model, [k]), None) is None}


def _spread(all_sites: list[Site], count: int | None) -> list[Site]:
    """Return all sites, ``count`` evenly spaced ones first."""
    if count is None or count >= len(all_sites):
        return all_sites
    picked = {round(k * (len(all_sites) - 1) / max(1, count - 1)): None for k in range(count)}
    return [all_sites[k] for k in picked] + [s for k, s in enumerate(all_sites) if k not in picked]


def _form(model: Any) -> Form:
    kind = type(model)
    if isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], Graph):
        from .graph import GraphForm

        return GraphForm(*model)
    if kind.__module__.startswith("onnx") and kind.__name__ == "ModelProto":
        from .onnx_model import OnnxForm

        return OnnxForm(model)
    if any(c.__module__ == "torch.nn.modules.module" for c in kind.__mro__):
        from .module import ModuleForm

        return ModuleForm(model)
    raise TypeError(f"mutate: {kind.__name__} is no onnx.ModelProto, (ir.Graph, weights) or torch.nn.Module")
