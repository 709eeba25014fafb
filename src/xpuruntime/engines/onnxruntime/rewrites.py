"""ONNX Runtime's graph rewrites, traced back from its final graph to the nodes of the model.

The optimizers of releases 1.24 to 1.31 leave these traces in the graphs that they write:
- a fused node is named after its last value: ``add/MatMulAddFusion``, ``fused conv``;
- the NCHWc rewrite names a convolution after its output value (``VALUE_nchwc``) and renames the output (``reorder_token_3``). The
  convolution may include the addition and the activation that follow it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...protocols import ModelSource, NodeRef
from ..attribution import SourceGraph, inherit

__all__ = ["executed_nodes", "source_of_name"]

# Ops that ONNX Runtime inserts to move or convert data. Such a node belongs to a node of the model only if its output is a value of the model.
_MOVERS = frozenset({"ReorderInput", "ReorderOutput", "MemcpyFromHost", "MemcpyToHost", "Transpose", "Cast"})

# A light op never computes a heavy one. If data flow assigns it one, a value name between the two was lost.
_HEAVY = frozenset(
    {"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "MaxPool", "AveragePool", "Softmax"}
)
_LIGHT = frozenset(
    {
        "Concat",
        "Add",
        "Mul",
        "Sub",
        "Div",
        "Relu",
        "Sigmoid",
        "Reshape",
        "Transpose",
        "Slice",
        "Split",
        "Resize",
    }
)


def source_of_name(name: str, model: ModelSource) -> str:
    """Return the model's node that a rewritten name refers to, or an empty string: ``fused a/MatMulAddFusion`` -> ``a``."""
    names = _names(model)
    for candidate in (name, name.removeprefix("fused ")):
        while candidate:
            if candidate in names:
                return candidate
            candidate = candidate.rpartition("/")[0]
    return ""


_NAMES: dict[str, frozenset[str]] = {}


def _names(model: ModelSource) -> frozenset[str]:
    if model.digest not in _NAMES:
        _NAMES.clear()
        _NAMES[model.digest] = frozenset(n.name for n in model.nodes)
    return _NAMES[model.digest]


def executed_nodes(path: Path, model: ModelSource) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return, for each node of the optimized graph, its name, op, and the model's nodes that it computes."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    source = SourceGraph(model)
    alias = _aliases(graph, source)
    available = {alias.get(v, v) for n in graph.node for v in n.output} | {i.name for i in graph.initializer}
    available |= {v.name for v in graph.input}
    rows: list[set[str]] = []
    owner: dict[
        str, int
    ] = {}  # node of the model -> the row that produces its output, which alone computes it
    for i, node in enumerate(graph.node):
        values = {alias.get(v, v) for v in node.output if v}
        if node.op_type in _MOVERS and not any(v in source.maker for v in node.output):
            values = set()
        rows.append(set(source.between(values, available - values)))
        direct = {source.maker[v].name for v in values & source.maker.keys()}
        if not direct and node.op_type not in _MOVERS and (origin := source_of_name(node.name, model)):
            rows[i] = direct = {origin}
        for name in direct:
            owner.setdefault(name, i)
    for i, row in enumerate(rows):
        row -= {n for n in row if owner.setdefault(n, i) != i}
    for node, row in zip(graph.node, rows, strict=True):
        if node.op_type in _LIGHT:
            row -= {n for n in row if source.nodes[n].op in _HEAVY}
    # A node without a row was fused into one, but not into a data movement, nor a heavy node into a light one.
    ops = [n.op_type for n in graph.node]
    source.absorb(rows, lambda n, i: ops[i] not in _MOVERS and not (n.op in _HEAVY and ops[i] in _LIGHT))
    # Parts of a decomposed op inherit the node of their reader. An inlined branch of an If (prefix ``_if_``) does not.
    inherit(
        rows, _readers(graph), lambda i: ops[i] not in _MOVERS and not graph.node[i].name.startswith("_if_")
    )
    return [(n.name, n.op_type, source.ordered(r)) for n, r in zip(graph.node, rows, strict=True)]


def _aliases(graph: Any, source: SourceGraph) -> dict[str, str]:
    """Return a mapping from the value names that the NCHWc rewrite created to the model's values."""
    alias: dict[str, str] = {}
    for node in graph.node:
        base, model_node = _base(node, source), source.nodes.get(node.name)
        if base:
            alias[node.output[0]] = _result(node, base, source)
        elif model_node is not None and model_node.op == node.op_type and not source.known(node.output[0]):
            alias[node.output[0]] = model_node.outputs[0]
    for node in reversed(graph.node):
        result = _base(node, source) or alias.get(node.output[0], node.output[0])
        if not node.input or not source.known(result):
            continue
        like = _nearest(result, node.op_type, source)
        if node.op_type == "ReorderOutput":  # a reorder changes the layout of a value only
            alias.setdefault(node.input[0], result)
        elif like is not None:
            data = len(like.inputs) if node.op_type == "Concat" and len(node.input) == len(like.inputs) else 1
            for new, old in zip(node.input[:data], like.inputs[:data], strict=True):
                if not source.known(new):
                    alias.setdefault(new, old)
    return alias


def _base(node: Any, source: SourceGraph) -> str:
    """Return the value after which the NCHWc rewrite named a node; ``_bn`` and ``_mul`` mark ops that it converted to a convolution."""
    name = node.name.removesuffix("_nchwc")
    if name == node.name:
        return ""
    return next(
        (b for b in (name, name.removesuffix("_bn"), name.removesuffix("_mul")) if source.known(b)), ""
    )


def _nearest(value: str, op: str, source: SourceGraph, steps: int = 16) -> NodeRef | None:
    """Return the closest node of that op before ``value`` along first inputs, or None."""
    node = source.maker.get(value)
    while node is not None and node.op != op and node.inputs and steps:
        node, steps = source.maker.get(node.inputs[0]), steps - 1
    return node if node is not None and node.op == op and node.inputs else None


def _result(node: Any, value: str, source: SourceGraph) -> str:
    """Return the model's value that a fused NCHWc node outputs, after its fused addition and activation."""
    steps = ["Add"] if len(node.input) > 3 and node.input[3] else []
    activation = next((a.s.decode() for a in node.attribute if a.name == "activation"), "")
    maker = source.maker.get(value)
    if activation and not (maker is not None and maker.op == activation):
        steps.append(activation)
    for step in steps:
        reader = source.only_reader(value)
        while reader is not None and reader.op in ("Identity", "BatchNormalization"):
            value = reader.outputs[0]
            reader = source.only_reader(value)
        if reader is None or reader.op != step:
            break
        value = reader.outputs[0]
    return value


def _readers(graph: Any) -> list[set[int]]:
    """Return, for each node, the nodes that read its values."""
    by_value: dict[str, set[int]] = {}
    for i, node in enumerate(graph.node):
        for value in node.input:
            by_value.setdefault(value, set()).add(i)
    return [{r for v in n.output if v for r in by_value.get(v, ())} for n in graph.node]
