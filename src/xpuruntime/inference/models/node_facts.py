"""IR facts about each node of the user's model: its lowered ops, its result type, and the named dims that policy rules use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...errors import XpuError
from ...faults import contained
from ...frontends.onnx.importer import load_onnx
from ...ir import Graph, Node
from ...ir.family import family_of
from ...ir.shapes.named_dims import Dims, named_dims
from ...printable import logger
from ...protocols import ModelSource
from ...types import TensorSpec

__all__ = ["NodeDetail", "node_details"]

_log = logger("xpuruntime.session")


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """One node of the model as seen in the IR.

    lowered: the IR ops that it was lowered to, in order; ``opaque: reason`` if only vendor engines support it.
    spec:    type of its result; None if the shape is known only at run time.
    dims:    named dims by op family (policies' vocabulary: M, N, K of a product, ...); values may be symbolic.
    """

    lowered: str
    spec: TensorSpec | None
    dims: Mapping[str, Dims] = field(default_factory=dict)


def node_details(model: ModelSource) -> dict[str, NodeDetail]:
    """Return details by node name. The result is empty for a format that is not lowered (OpenVINO IR) and if lowering fails, which is logged."""
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
