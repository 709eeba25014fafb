"""Warnings of a session about its policy: what ``lint`` finds, and rules that match no node of the model.

``xpu lint POLICY MODEL`` finds more: this check reads only the names of the nodes and the decisions that the session has anyway.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.family import source_names
from ...policies import Policy, lint
from ...policies.fields.record import FieldPath, path_text
from ...policies.matching import demands_of
from ...policies.rule import matches_name
from ...program.plan import Plan
from ...protocols import ModelSource

__all__ = ["policy_warnings"]


def policy_warnings(policy: Policy, model: ModelSource, plan: Plan) -> tuple[str, ...]:
    """Return one sentence for each finding. Conflicts are errors elsewhere and are left out."""
    if not policy.kernel.layers and not policy.execution.engine_options:
        return ()
    findings = [(f.path, f.text) for f in lint(policy) if not f.is_error]
    findings += _unreachable(policy, model, plan)
    return tuple(dict.fromkeys(f"policy{_at(policy, path)}: {text}" for path, text in findings))


def _at(policy: Policy, path: FieldPath) -> str:
    """Return the origin of a demand and its path in that document."""
    layer, rest = policy.kernel, path
    if path[:2] == ("kernel", "under"):
        layer, rest = policy.kernel.under[int(path[2])], ("kernel", *path[3:])
    origin = layer.origin if path[0] == "kernel" else ""
    origin = origin.removeprefix("policy ").removeprefix("argument")
    return f" {origin}".rstrip() + f", {path_text(rest)}"


def _unreachable(policy: Policy, model: ModelSource, plan: Plan) -> Iterator[tuple[FieldPath, str]]:
    names = _names(model)
    decided = {d.question.partition(" ")[2] for d in plan.decisions if d.question.startswith("kernel ")}
    is_native = len(plan.regions) == 1 and plan.regions[0].engine == "native"
    for demand in demands_of(policy.kernel):
        families = (demand.family,) if demand.rule is None else demand.rule.op
        patterns = () if demand.rule is None else demand.rule.node
        if patterns and not any(matches_name(p, n) for p in patterns for n in names):
            yield demand.path, f"matches none of the {len(model.nodes)} nodes of {model.name}"
        elif demand.rule is not None and families and is_native and decided and not decided & set(families):
            text = f"has no effect: no node of {' or '.join(families)} gets a kernel in {model.name}"
            yield demand.path, text


def _names(model: ModelSource) -> set[str]:
    """Return the names that a rule's pattern may match: of nodes, of their results, and of modules of a PyTorch model."""
    names = {n.name for n in model.nodes} | {o for n in model.nodes for o in n.outputs}
    if model.format == "graph":
        graph = model.graph[0]
        names |= {name for node in graph.nodes for name in (node.name, *source_names(node))}
    return names
