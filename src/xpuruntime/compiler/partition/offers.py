"""Candidates for a node: the engine that it is placed on, or every engine with its answer. No engine is loaded."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...decisions import Reason, Support
from ...ir import Graph, Node
from ...ir.extensions import ATEN
from ...ir.family import family_of, source_names
from ...kernels.kernel import NodeCall
from ...policies import KernelPolicy, Rule
from ...policies.choose import vendor_keeps_to
from ..demands import facts_of
from .support import call_of, demand_kernels, is_op_supported

__all__ = ["PartitionRequest", "Supports"]

Supports: TypeAlias = Callable[[NodeCall], "Support | bool"]
"""A function that returns whether an engine supports a node, such as ``is_op_supported``."""


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """Engines, placements and rules of one ``partition`` call.

    supports: the user's support function for ``engine``, if any. native: the native engine with its device, for nodes whose kernel a rule forces
    if neither ``engine`` nor ``others`` have it.
    """

    engine: str
    others: tuple[str, ...]
    place: Mapping[str, str]
    kernels: KernelPolicy
    supports: Supports | None
    target: Any
    native: str

    def forced(self, graph: Graph, node: Node) -> tuple[str, str] | None:
        """Return the engine that the node is placed on, and what places it; None if it is not placed."""
        placed_name = next((n for n in (node.name, *source_names(node)) if n in self.place), None)
        if placed_name is not None:
            return self.place[placed_name], f"place {placed_name!r}"
        names = {node.name, node.op, family_of(node), *source_names(node)}
        for pattern in sorted(self.place, key=lambda p: (-len(p), p)):
            if any(fnmatch.fnmatchcase(n, pattern) for n in names):
                return self.place[pattern], f"place {pattern!r}"
        rule = self.forcing(graph, node)
        if rule is None:
            return None
        named = (e for e in (self.engine, *self.others) if e.partition(" on ")[0] == "native")
        return next(named, self.native), f"the rule for {rule.label()} uses kernel {rule.use!r}"

    def forcing(self, graph: Graph, node: Node) -> Rule | None:
        """Return the rule that forces a kernel for the node."""
        if not any(rule.use for layer in self.kernels.layers for rule in layer.rules):
            return None
        facts = facts_of(graph, node, phase="inference", device="cpu")
        rules = (rule for layer in self.kernels.layers for rule in layer.rules)
        return next((rule for rule in rules if rule.use and rule.matches(facts)), None)

    def check_kernels(self, graph: Graph, node: Node) -> None:
        """Raise KernelUnavailable if the kernel that a rule forces is not available."""
        call = call_of(graph, node)
        if self.forcing(graph, node) is not None and not isinstance(call, Support):
            demand_kernels(call, self.kernels, self.target)

    def offers(self, graph: Graph, node: Node) -> dict[str, Support]:
        """Return every engine with its answer, in order of preference."""
        engines = [self.engine, *self.others]
        if node.op == "opaque" and node.attrs["domain"] in ATEN and "torch" not in engines:
            engines.append("torch")
        return {e: self.answer(graph, node, e) for e in engines}

    def _keeps_to(self, graph: Graph, node: Node, engine: str) -> Support:
        """Return whether an engine without selectable kernels satisfies the rules."""
        if not any(layer.rules or layer.weights for layer in self.kernels.layers):
            return Support.yes()
        return vendor_keeps_to(self.kernels, facts_of(graph, node, phase="inference", device="cpu"), engine)

    def answer(self, graph: Graph, node: Node, engine: str) -> Support:
        """Return whether an engine supports the node, as far as is known without loading it."""
        name = engine.partition(" on ")[0]
        if name != "native" and not (rules_met := self._keeps_to(graph, node, name)):
            return rules_met
        supports = self.supports if engine == self.engine else None
        if supports is None and name == "native":
            supports = lambda call: is_op_supported(call, self.target)  # noqa: E731
        if supports is not None:
            call = call_of(graph, node)
            if isinstance(call, Support):
                return call
            answer = supports(call)
            if isinstance(answer, Support):
                return answer
            no = Support.no(Reason.OP_UNSUPPORTED, f"the support function refused {node.op}")
            return Support.yes() if answer else no
        aten = node.op == "opaque" and node.attrs["domain"] in ATEN
        if name == "torch":
            no = Support.no(Reason.OP_UNSUPPORTED, "the torch engine evaluates opaque ATen ops only")
            return Support.yes() if aten else no
        if name == "interpreter" and node.op == "opaque":
            return Support.no(Reason.OP_UNSUPPORTED, f"{node.attrs['op_type']} has no form in the IR")
        if aten:
            return Support.no(Reason.OP_UNSUPPORTED, f"{node.attrs['op_type']} is an op of PyTorch only")
        return Support.yes()
