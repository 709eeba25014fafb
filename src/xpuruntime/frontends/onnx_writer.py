"""Export of IR graphs to ONNX, for engines that read ONNX and for viewers.

    proto = to_onnx(graph, weights)          # an onnx.ModelProto with shapes
    write_onnx(graph, "model.onnx", weights)

Each op has an exporter in ``onnx.exporters``. Opaque ONNX nodes are written back unchanged. Value names stay. A graph that came from
ONNX keeps its opset (at least 11); others get the lowest that all their ops have, at least 18.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..errors import IrError, ModelError
from ..ir import Graph, Node, Weight, inline_fused
from ..ir.draws import unexported_draw
from ..ir.extensions import is_complex_tensor
from ..ir.ops.control import CONTROL, bodies_of
from ..protocols import Array
from ..storage.store import write_atomic
from ..types import DType, TensorSpec
from .onnx.exporters import EXPORTERS, MIN_OPSETS, NodeExport, OnnxGraphBuilder
from .onnx.exporters.control import write_control
from .onnx.exporters.dense import with_loops
from .onnx.opaque import CAPTURES, decode
from .onnx.proto import dtype_table, sub_graphs
from .onnx.types import OnnxTypes

__all__ = ["WeightSource", "to_onnx", "write_onnx"]

WeightSource: TypeAlias = "Mapping[str, Array] | Callable[[Weight], Array]"
_MIN_OPSET, _DEFAULT_OPSET = 11, 18


def write_onnx(graph: Graph, path: str | os.PathLike[str], weights: WeightSource | None = None) -> None:
    """Write ``to_onnx`` to a file, atomically. Raise its errors, and StoreError."""
    write_atomic(Path(path), to_onnx(graph, weights).SerializeToString(deterministic=True))


def to_onnx(graph: Graph, weights: WeightSource | None = None, *, opset: int | None = None) -> Any:
    """Return the graph as an ``onnx.ModelProto``.

    weights: arrays by name, or a function from a Weight to its array. A missing one that is stored as raw data in a file is written as
             external data that refers to that file.
    opset:   version of the default domain; by default as described in the module.
    Raises IrError for an op (or an attribute of it) that ONNX of that opset cannot represent, naming the node; for states; and for a
    weight without data. Raises ModelError if the onnx package is missing.
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
            f"graph {graph.name!r}",
            "has states, which ONNX does not support",
            do="Make them inputs and outputs.",
        )
    for value in graph.inputs:
        if value.spec is not None and value.spec.dtype.is_complex:
            raise IrError(
                f"input {value.name!r}",
                "is complex, and ONNX's operators take real tensors only",
                got=value.spec,
                do="Pass torch.view_as_real(x) and call torch.view_as_complex(x) in the module.",
            )
    graph = with_loops(inline_fused(graph))
    version = _opset(graph, onnx) if opset is None else opset
    types = OnnxTypes(dtype_table(onnx), set(graph.symbols))
    builder = OnnxGraphBuilder(graph, version, types.numbers)
    for value in (*graph.inputs, *(w.value for w in graph.weights)):
        builder.learn(value.name, value.spec)
    for weight in graph.weights:
        builder.initializers.append(_tensor(weight, weights, types))
    for node in graph.nodes:
        _write(builder, node)
        for value in node.outputs:
            builder.learn(value.name, value.spec)
    return _model(graph, builder, types, onnx)


def _opset(graph: Graph, onnx: Any) -> int:
    needed = max([MIN_OPSETS.get(n.op, _MIN_OPSET) for n in _nodes(graph)], default=_MIN_OPSET)
    model_opset = graph.metadata.get("opset") or 0
    newest = int(onnx.defs.onnx_opset_version())
    return min(max(needed, model_opset or _DEFAULT_OPSET, _MIN_OPSET), newest)


def _nodes(graph: Graph) -> Iterator[Node]:
    """Yield every node, those of bodies too."""
    for node in graph.nodes:
        yield node
        for body in bodies_of(node):
            yield from _nodes(body)


def _write(builder: OnnxGraphBuilder, node: Node) -> None:
    label = node.sources[0].name if node.sources and node.sources[0].name else node.name
    builder.begin(label)
    if node.outputs and all(_is_empty(value.spec) for value in node.outputs):
        # ONNX Runtime expands, for example, 1 to 0 as 1.
        for value in node.outputs:
            assert value.spec is not None
            nothing = np.zeros([int(d) for d in value.spec.shape], value.spec.dtype.numpy)  # type: ignore[arg-type]
            builder.add("Identity", [builder.constant(nothing)], [value.name])
        return
    if draw := unexported_draw(node):
        raise IrError(
            f"{node.op} %{node.name}",
            "draws random numbers, which ONNX Runtime does not draw independently of those of other nodes",
            got=f"{draw}{_line_of(node)}",
            do="Draw outside of the model and give the numbers as an input"
            + ("." if node.op in CONTROL else ", or run it natively (engine='native')."),
        )
    if node.op == "opaque":
        _write_opaque(builder, node, label)
        return
    if node.op in CONTROL:
        write_control(builder, node, label, _write)
        return
    export = EXPORTERS.get(node.op)
    if export is None:
        raise IrError(
            f"{node.op} %{node.name}",
            "has no ONNX equivalent",
            do="Decompose it first, or keep it for the native engine.",
        )
    export(NodeExport(builder, node))


def _is_empty(spec: TensorSpec | None) -> bool:
    """Return whether a value has no element, in a shape that is known."""
    return (
        spec is not None
        and 0 in spec.shape
        and all(isinstance(d, int) for d in spec.shape)
        and spec.dtype.bits >= 8
        and spec.dtype is not DType.STRING
    )


def _write_opaque(builder: OnnxGraphBuilder, node: Node, label: str) -> None:
    from onnx import helper

    domain, op, attributes = node.attrs["domain"], node.attrs["op_type"], node.attrs["attributes"]
    if is_complex_tensor(node):
        raise IrError(
            f"node %{node.name}",
            f"{node.attrs['reason']}, and ONNX's operators take real tensors only{_line_of(node)}",
            do="Use torch.view_as_real of the tensor.",
        )
    if domain in ("aten", "torch"):  # torch: control flow, whose bodies are no nodes
        raise IrError(
            f"opaque {op} %{node.name}",
            f"is a PyTorch op without an ONNX equivalent{_line_of(node)}",
            do="Write the module with other ops, or open it as a session without a named engine.",
        )
    captures = attributes.get(CAPTURES, ())
    operands = list(node.inputs[: len(node.inputs) - len(captures)])
    proto = helper.make_node(
        op,
        ["" if i is None else str(i) for i in operands],
        [v.name for v in node.outputs],
        name=builder.node_name(label),
        domain=domain,
    )
    proto.attribute.extend(decode(attributes))
    renamed = dict(zip(captures, node.inputs[len(operands) :], strict=True))
    for graph in sub_graphs(proto):
        _rename(graph, {k: str(v) for k, v in renamed.items() if k != v})
    if domain:
        versions = builder.graph.metadata.get("opsets") or {}
        builder.domains[domain] = versions.get(domain, 1)
    else:
        _check_version(builder, op, node)
    builder.nodes.append(proto)


def _line_of(node: Node) -> str:
    """Return the place in the user's code, for the end of a sentence."""
    source = node.sources[0] if node.sources else None
    return f", in {source.file}:{source.line}" if source is not None and source.file else ""


def _check_version(builder: OnnxGraphBuilder, op: str, node: Node) -> None:
    import onnx

    model_opset = builder.graph.metadata.get("opset") or builder.opset
    if model_opset == builder.opset:
        return
    versions = [onnx.defs.get_schema(op, v, "").since_version for v in (model_opset, builder.opset)]
    if versions[0] != versions[1]:
        raise IrError(
            f"opaque {op} %{node.name}",
            f"is an op of opset {model_opset}, which opset {builder.opset} defines differently",
            do=f"Write the graph with opset={model_opset}.",
        )


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Rename the values that a subgraph captures."""
    defined = {v.name for group in (graph.input, graph.initializer) for v in group}
    defined |= {o for n in graph.node for o in n.output}
    captured = {k: v for k, v in names.items() if k not in defined}
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = captured.get(name, name)
        for inner in sub_graphs(node):
            _rename(inner, captured)
    for output in graph.output:
        output.name = captured.get(output.name, output.name)


def _tensor(weight: Weight, weights: WeightSource | None, types: OnnxTypes) -> Any:
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
            "has no data: it was not passed, and is not in a file that ONNX can refer to",
            do="Pass weights={name: array}.",
        )
    dims = [d for d in spec.shape if isinstance(d, int)]
    tensor = onnx.TensorProto(name=weight.name, data_type=types.numbers[spec.dtype], dims=dims)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", weight.file), ("offset", weight.offset), ("length", spec.size_bytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _model(graph: Graph, builder: OnnxGraphBuilder, types: OnnxTypes, onnx: Any) -> Any:
    from onnx import helper

    for output in graph.outputs:  # a value may be several outputs
        if output.name != output.value:
            builder.begin(output.name)
            builder.add("Identity", [output.value], [output.name])
    proto = onnx.GraphProto(name=graph.name or "graph", node=builder.nodes, initializer=builder.initializers)
    kinds = graph.metadata.get("types") or {}
    proto.input.extend(_info(v.name, v.spec, types, onnx, kinds) for v in graph.inputs)
    proto.output.extend(_info(o.name, graph.values[o.value].spec, types, onnx, kinds) for o in graph.outputs)
    output_names = {o.name for o in graph.outputs}
    inner = [v for n in graph.nodes for v in n.outputs if v.spec is not None and v.name not in output_names]
    proto.value_info.extend(_info(v.name, v.spec, types, onnx, {}) for v in inner)
    opsets = [
        helper.make_opsetid("", builder.opset),
        *(helper.make_opsetid(d, v) for d, v in builder.domains.items()),
    ]
    model = onnx.ModelProto(
        ir_version=_ir_version(graph, builder.opset, onnx), producer_name="xpuruntime", graph=proto
    )
    model.opset_import.extend(opsets)
    return model


def _ir_version(graph: Graph, opset: int, onnx: Any) -> int:
    """Return the lowest IR version that has the opset, or the model's own if that is newer."""
    table = {("ai.onnx", opset): onnx.IR_VERSION} | dict(onnx.helper.OP_SET_ID_VERSION_MAP)
    return max(int(table[("ai.onnx", opset)]), int(graph.metadata.get("ir_version") or 0), 4)


def _info(name: str, spec: TensorSpec | None, types: OnnxTypes, onnx: Any, kinds: Mapping[str, str]) -> Any:
    info = onnx.ValueInfoProto(name=name)
    if spec is None and name in kinds:
        info.type.ParseFromString(base64.b64decode(kinds[name]))
    if spec is not None:
        info.type.CopyFrom(types.proto(spec))
    return info
