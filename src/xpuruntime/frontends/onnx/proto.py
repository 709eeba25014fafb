"""Queries on ONNX messages: element types, nested nodes, values that a node reads, names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from ...types import DType

__all__ = ["all_nodes", "dtype_table", "names_in", "node_names", "reads", "sub_graphs"]

_NOT_BY_NAME = {
    "FLOAT": DType.FLOAT32,
    "DOUBLE": DType.FLOAT64,
    "FLOAT8E4M3FN": DType.FLOAT8_E4M3FN,
    "FLOAT8E4M3FNUZ": DType.FLOAT8_E4M3FNUZ,
    "FLOAT8E5M2": DType.FLOAT8_E5M2,
    "FLOAT8E5M2FNUZ": DType.FLOAT8_E5M2FNUZ,
    "FLOAT8E8M0": DType.FLOAT8_E8M0FNU,
    "FLOAT4E2M1": DType.FLOAT4_E2M1FN,
}


def dtype_table(onnx: Any) -> dict[int, DType]:
    """Return TensorProto.DataType -> DType for the types that the installed onnx package knows."""
    return {
        number: _NOT_BY_NAME.get(name) or DType(name.lower())
        for name, number in onnx.TensorProto.DataType.items()
        if name in _NOT_BY_NAME or name.lower() in DType._value2member_map_
    }


def sub_graphs(node: Any) -> list[Any]:
    """Return the graphs in a node's attributes."""
    return [g for a in node.attribute for g in ([a.g] if a.HasField("g") else []) + list(a.graphs)]


def names_in(proto: Any) -> Iterator[Any]:
    """Yield every name in a model. Protobuf returns bytes for a name that is not UTF-8."""
    yield from (proto.producer_name, proto.producer_version)
    yield from (o.domain for o in proto.opset_import)
    todo = [proto.graph, *proto.functions]
    while todo:
        holder = todo.pop()
        yield holder.name
        if type(holder).__name__ == "FunctionProto":
            yield from (holder.domain, *holder.input, *holder.output, *holder.attribute)
        else:
            for value in (*holder.input, *holder.output, *holder.value_info):
                yield value.name
                yield from (d.dim_param for d in value.type.tensor_type.shape.dim)
            yield from (t.name for t in holder.initializer)
            yield from (t.values.name for t in holder.sparse_initializer)
        for node in holder.node:
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            yield from (text for a in node.attribute for text in (a.name, a.ref_attr_name))
            todo += sub_graphs(node)


def all_nodes(graph: Any) -> Iterator[Any]:
    """Yield every node; nodes of subgraphs follow the node that has them."""
    for node in graph.node:
        yield node
        for sub in sub_graphs(node):
            yield from all_nodes(sub)


def reads(node: Any) -> Iterator[str]:
    """Yield the names that a node reads, including captures of its subgraphs, without duplicates."""
    names = dict.fromkeys(filter(None, node.input))
    for graph in sub_graphs(node):
        defined = {v.name for v in graph.input} | {i.name for i in graph.initializer}
        defined |= {o for n in graph.node for o in n.output}
        names |= dict.fromkeys(r for n in graph.node for r in reads(n) if r not in defined)
        names |= dict.fromkeys(o.name for o in graph.output if o.name not in defined)
    yield from names


def node_names(nodes: Iterable[Any]) -> list[str]:
    """Return a unique name per node: the model's own; ``op_index`` without one; ``name#index`` for a duplicate."""
    listed = list(nodes)
    counts = Counter(n.name for n in listed if n.name)
    used = set(counts)
    seen: set[str] = set()
    names = []
    for index, node in enumerate(listed):
        if node.name and node.name not in seen:
            seen.add(node.name)
            names.append(str(node.name))
            continue
        name = f"{node.name}#{index}" if node.name else f"{node.op_type}_{index}"
        while name in used:
            name += "_"
        used.add(name)
        names.append(name)
    return names
