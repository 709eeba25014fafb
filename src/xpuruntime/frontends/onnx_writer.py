"""IR -> ONNX: for engines that take ONNX, for graphs from elsewhere, and for viewers.

    proto = to_onnx(graph, weights)          # an onnx.ModelProto with shapes written
    write_onnx(graph, "model.onnx", weights)

One row per op in ``onnx_forms``. Opaque nodes of ONNX are written back as they were. Names of values stay. A graph that came from
ONNX keeps its opset (11 at least); others get the lowest that all their ops have, 18 at least.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import IrError, ModelError
from ..ir import Graph, Node, Weight, inline_fused
from ..protocols import Array
from ..store import write_atomic
from ..types import TensorSpec
from .onnx.exporters import FORMS, NEEDS, Pen, Writing
from .onnx.opaque import CAPTURES, decode
from .onnx.proto import dtype_table, sub_graphs
from .onnx.types import Types

__all__ = ["WeightSource", "to_onnx", "write_onnx"]

WeightSource: TypeAlias = "Mapping[str, Array] | Callable[[Weight], Array]"
_OLDEST, _USUAL = 11, 18


def write_onnx(graph: Graph, path: str | os.PathLike[str], weights: WeightSource | None = None) -> None:
    """``to_onnx`` to a file, whole or not at all. Raises as it does, and StoreError."""
    write_atomic(Path(path), to_onnx(graph, weights).SerializeToString(deterministic=True))


def to_onnx(graph: Graph, weights: WeightSource | None = None, *, opset: int | None = None) -> Any:
    """The graph as an ``onnx.ModelProto``.

    weights: arrays by name, or a function from a Weight to its array. One that is not there but lies dense in a file is written as
             external data that refers to it.
    opset:   of the default domain; by default see the module.
    Raises IrError for an op (or an attribute of it) that ONNX of that opset has no form for, naming the node; for states; and for a
    weight that is nowhere. ModelError where the onnx package is missing.
    """
    try:
        import onnx
    except ImportError as error:
        raise ModelError(
            f"graph {graph.name!r}",
            "writing ONNX needs the Python package 'onnx'",
            got=str(error),
            do="Run: pip install 'xpuruntime[onnx]'",
        ) from error
    if graph.states:
        raise IrError(
            f"graph {graph.name!r}", "has states, and ONNX has none", do="Make them inputs and outputs."
        )
    graph = inline_fused(graph)
    version = _opset(graph, onnx) if opset is None else opset
    types = Types(dtype_table(onnx), set(graph.symbols))
    pen = Pen(graph, version, types.numbers)
    for value in (*graph.inputs, *(w.value for w in graph.weights)):
        pen.learn(value.name, value.spec)
    for weight in graph.weights:
        pen.initializers.append(_tensor(weight, weights, types))
    for node in graph.nodes:
        _write(pen, node)
        for made in node.outputs:
            pen.learn(made.name, made.spec)
    return _model(graph, pen, types, onnx)


def _opset(graph: Graph, onnx: Any) -> int:
    needed = max([NEEDS.get(n.op, _OLDEST) for n in graph.nodes], default=_OLDEST)
    own = graph.metadata.get("opset") or 0
    newest = int(onnx.defs.onnx_opset_version())
    return min(max(needed, own or _USUAL, _OLDEST), newest)


def _write(pen: Pen, node: Node) -> None:
    label = node.sources[0].name if node.sources and node.sources[0].name else node.name
    pen.begin(label)
    if node.op == "opaque":
        _write_opaque(pen, node, label)
        return
    form = FORMS.get(node.op)
    if form is None:
        raise IrError(
            f"{node.op} %{node.name}",
            "has no ONNX form",
            do="Decompose it first, or keep it for the native engine.",
        )
    form(Writing(pen, node))


def _write_opaque(pen: Pen, node: Node, label: str) -> None:
    from onnx import helper

    domain, op, attributes = node.attrs["domain"], node.attrs["op_type"], node.attrs["attributes"]
    if domain == "aten":
        raise IrError(f"opaque {op} %{node.name}", "is an op of PyTorch, which ONNX does not have")
    captures = attributes.get(CAPTURES, ())
    operands = list(node.inputs[: len(node.inputs) - len(captures)])
    made = helper.make_node(
        op,
        ["" if i is None else str(i) for i in operands],
        [v.name for v in node.outputs],
        name=pen.node_name(label),
        domain=domain,
    )
    made.attribute.extend(decode(attributes))
    renamed = dict(zip(captures, node.inputs[len(operands) :], strict=True))
    for graph in sub_graphs(made):
        _rename(graph, {k: str(v) for k, v in renamed.items() if k != v})
    if domain:
        versions = pen.graph.metadata.get("opsets") or {}
        pen.domains[domain] = versions.get(domain, 1)
    else:
        _same_meaning(pen, op, node)
    pen.nodes.append(made)


def _same_meaning(pen: Pen, op: str, node: Node) -> None:
    import onnx

    own = pen.graph.metadata.get("opset") or pen.opset
    if own == pen.opset:
        return
    versions = [onnx.defs.get_schema(op, v, "").since_version for v in (own, pen.opset)]
    if versions[0] != versions[1]:
        raise IrError(
            f"opaque {op} %{node.name}",
            f"is an op of opset {own}, which opset {pen.opset} defines otherwise",
            do=f"Write the graph with opset={own}.",
        )


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Values that a subgraph reads from outside, under the names that they have now."""
    own = {v.name for group in (graph.input, graph.initializer) for v in group}
    own |= {o for n in graph.node for o in n.output}
    seen = {k: v for k, v in names.items() if k not in own}
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = seen.get(name, name)
        for inner in sub_graphs(node):
            _rename(inner, seen)
    for output in graph.output:
        output.name = seen.get(output.name, output.name)


def _tensor(weight: Weight, weights: WeightSource | None, types: Types) -> Any:
    import onnx
    from onnx import numpy_helper

    array = None
    if callable(weights):
        array = weights(weight)
    elif weights is not None and weight.name in weights:
        array = weights[weight.name]
    if array is None and weight.data:
        array = weight.array()
    if array is not None:
        return numpy_helper.from_array(array, weight.name)
    spec = weight.spec
    if weight.format != "raw" or not weight.file:
        raise IrError(
            f"weight {weight.name!r}",
            "was not handed in, and lies in no file that ONNX can refer to",
            do="Give weights={name: array}.",
        )
    dims = [d for d in spec.shape if isinstance(d, int)]
    tensor = onnx.TensorProto(name=weight.name, data_type=types.numbers[spec.dtype], dims=dims)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", weight.file), ("offset", weight.offset), ("length", spec.size_bytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _model(graph: Graph, pen: Pen, types: Types, onnx: Any) -> Any:
    from onnx import helper

    renamed = {o.value: o.name for o in graph.outputs if o.name != o.value}
    for value, name in renamed.items():
        pen.begin(name)
        pen.add("Identity", [value], [name])
    made = onnx.GraphProto(name=graph.name or "graph", node=pen.nodes, initializer=pen.initializers)
    kinds = graph.metadata.get("types") or {}
    made.input.extend(_info(v.name, v.spec, types, onnx, kinds) for v in graph.inputs)
    made.output.extend(_info(o.name, graph.values[o.value].spec, types, onnx, kinds) for o in graph.outputs)
    seen = {o.name for o in graph.outputs}
    inner = [v for n in graph.nodes for v in n.outputs if v.spec is not None and v.name not in seen]
    made.value_info.extend(_info(v.name, v.spec, types, onnx, {}) for v in inner)
    opsets = [
        helper.make_opsetid("", pen.opset),
        *(helper.make_opsetid(d, v) for d, v in pen.domains.items()),
    ]
    model = onnx.ModelProto(
        ir_version=_ir_version(graph, pen.opset, onnx), producer_name="xpuruntime", graph=made
    )
    model.opset_import.extend(opsets)
    return model


def _ir_version(graph: Graph, opset: int, onnx: Any) -> int:
    """The lowest IR version that has the opset, or the model's own where that is newer."""
    table = {("ai.onnx", opset): onnx.IR_VERSION} | dict(onnx.helper.OP_SET_ID_VERSION_MAP)
    return max(int(table[("ai.onnx", opset)]), int(graph.metadata.get("ir_version") or 0), 4)


def _info(name: str, spec: TensorSpec | None, types: Types, onnx: Any, kinds: Mapping[str, str]) -> Any:
    info = onnx.ValueInfoProto(name=name)
    if spec is None and name in kinds:
        info.type.ParseFromString(base64.b64decode(kinds[name]))
    if spec is not None:
        info.type.CopyFrom(types.proto(spec))
    return info
