"""What the IR knows of each node of the user's model: its ops there, its type, and the named dims that policy rules ask for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...errors import XpuError
from ...faults import contained
from ...frontends.onnx import load_onnx
from ...ir import Graph, Node
from ...ir.family import family_of
from ...ir.named_dims import Dims, named_dims
from ...printable import logger
from ...protocols import ModelSource
from ...types import TensorSpec

__all__ = ["NodeDetail", "node_details"]

_log = logger("xpuruntime.session")


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """One node of the model in the IR's words.

    lowered: the IR ops that it became, in order; ``opaque: reason`` where only vendor engines take it.
    spec:    type of its result; None where the shape cannot be known before it runs.
    dims:    named dims by op family (policies' vocabulary: M, N, K of a product, ...); values may be symbolic.
    """

    lowered: str
    spec: TensorSpec | None
    dims: Mapping[str, Dims] = field(default_factory=dict)


def node_details(model: ModelSource) -> dict[str, NodeDetail]:
    """Detail by node name; empty for a format that is not lowered (OpenVINO IR), and where lowering fails, which is logged."""
    if model.format not in ("onnx", "graph"):
        return {}
    try:
        with contained(f"plan of {model.name}"):
            graph = load_onnx(model) if model.graph is None else model.graph[0]
            by_source: dict[str, list[Node]] = defaultdict(list)
            for node in graph:
                for source in node.sources:
                    by_source[source.name].append(node)
            return {name: _detail(graph, nodes) for name, nodes in by_source.items() if name}
    except XpuError as error:
        _log.info("no node details for %s: %s", model.name, error)
        return {}


def _detail(graph: Graph, nodes: list[Node]) -> NodeDetail:
    words = [f"opaque: {n.attrs['reason']}" if n.op == "opaque" else n.op for n in nodes]
    dims: dict[str, Dims] = {}
    for node in nodes:
        dims.setdefault(family_of(node), {}).update(named_dims(graph, node))
    return NodeDetail(" ".join(dict.fromkeys(words)), nodes[-1].outputs[0].spec, dims)
