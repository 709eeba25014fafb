"""The plan of a session: one region on one engine, or the regions of a partitioned model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..decisions import Decision
from ..program.plan import Plan, PlanNode, Region
from ..protocols import ModelSource, ReportsDecisions, ReportsKernels
from .models.edges import node_inputs, node_reads
from .models.node_facts import NodeDetail
from .partitioned.mixed import MixedExecutable
from .select import Selection
from .selection.request import SessionRequest
from .selection.vendor_policy import family_of_ref, kernel_decisions

__all__ = ["REGION", "detailed", "first_plan", "with_kernels"]

REGION = "r0"
"""The only region of a plan that is not partitioned."""


def first_plan(
    model: ModelSource,
    request: SessionRequest,
    selection: Selection,
    details: Callable[[], Mapping[str, NodeDetail]],
) -> Plan:
    """Return the plan without IR details of its nodes, unless a kernel policy needs them: then ``details`` is called."""
    loaded = selection.loaded
    reads, inputs = node_reads(model), node_inputs(model)
    nodes = tuple(
        PlanNode(
            n.name,
            n.op,
            family_of_ref(n),
            REGION,
            n.domain,
            reads=reads.get(n.name, ()),
            inputs=inputs.get(n.name, ()),
        )
        for n in model.nodes
    )
    region = Region(
        id=REGION,
        engine=loaded.candidate.engine,
        engine_version=loaded.version,
        device=str(loaded.candidate.device),
        precision=loaded.precision.value,
        threads=loaded.candidate.request.threads,
        alternatives=selection.alternatives,
        float_products=loaded.model.products.floats if loaded.precision.is_integer else 0,
    )
    policy = request.policy.kernel
    kernels: tuple[Decision, ...] = ()
    if isinstance(loaded.executable, ReportsKernels):
        nodes = with_kernels(nodes, loaded.executable.kernels)
    if isinstance(loaded.executable, MixedExecutable):
        return loaded.executable.plan(_whole(model, request, selection, nodes, (), ()))
    if isinstance(loaded.executable, ReportsDecisions):
        kernels = tuple(loaded.executable.decisions)
    elif policy.layers:
        met = loaded.facts.get("kernels_by_option", {})
        known = details()
        kernels = kernel_decisions(policy, nodes, known, region, met)
        nodes = detailed(nodes, known)
    return _whole(model, request, selection, nodes, (region,), kernels)


def detailed(nodes: Sequence[PlanNode], details: Mapping[str, NodeDetail]) -> tuple[PlanNode, ...]:
    """Return the nodes with their spec and the ops that they are lowered to, where known."""

    def one(node: PlanNode) -> PlanNode:
        detail = details.get(node.name)
        return node if detail is None else replace(node, spec=str(detail.spec or ""), lowered=detail.lowered)

    return tuple(map(one, nodes))


def with_kernels(nodes: Sequence[PlanNode], kernels: Mapping[str, str]) -> tuple[PlanNode, ...]:
    """Return the nodes with their kernels."""
    return tuple(replace(n, kernel=kernels.get(n.name, "")) for n in nodes)


def _whole(
    model: ModelSource,
    request: SessionRequest,
    selection: Selection,
    nodes: tuple[PlanNode, ...],
    regions: tuple[Region, ...],
    kernels: tuple[Decision, ...],
) -> Plan:
    executable = selection.loaded.executable
    return Plan(
        model={"name": model.name, "digest": model.digest, "format": model.format},
        request=request.demanded,
        inputs=executable.inputs,
        outputs=executable.outputs,
        regions=regions,
        nodes=nodes,
        decisions=(*selection.decisions, *kernels),
        warnings=tuple(selection.warnings),
    )
