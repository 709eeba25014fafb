"""Export of control flow: ``cond`` as If, ``loop`` as Loop.

A body of ONNX reads values of the enclosing graph by name, so inputs for captured operands take the operands' names. All other values of a
body get names that nothing else in the model has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ....errors import IrError
from ....ir import Graph, Input, Node, Value
from ....types import DType, TensorSpec
from .graph_builder import OnnxGraphBuilder

__all__ = ["WriteNode", "write_control"]

WriteNode = Callable[[OnnxGraphBuilder, Node], None]
"""Writes one node of a graph."""


def write_control(builder: OnnxGraphBuilder, node: Node, label: str, write: WriteNode) -> None:
    """Write a node with bodies. ``write`` writes the nodes of a body. Raises IrError."""
    if node.op == "cond":
        operands = [_name(node, i) for i in node.inputs[1:]]
        branches = {
            name: _body(builder, node.attrs[name], operands, write) for name in ("then_branch", "else_branch")
        }
        _add(builder, node, label, "If", [_name(node, node.inputs[0])], branches)
        return
    trips, condition, *rest = (*node.inputs, None, None)[: max(len(node.inputs), 2)]
    operands, carried = [_name(node, i) for i in rest], node.attrs["carried"]
    limit = "" if trips is None else _name(node, trips)
    if node.attrs["trips"] is not None:
        limit = builder.add(
            "Reshape", [builder.dim(node.attrs["trips"]), builder.constant(np.zeros(0, np.int64))]
        )
    body = _loop_body(builder, node, operands[carried:], write)
    loop_inputs = [limit, "" if condition is None else _name(node, condition), *operands[:carried]]
    _add(builder, node, label, "Loop", loop_inputs, {"body": body})


def _name(node: Node, operand: Input) -> str:
    if not isinstance(operand, str):
        raise IrError(f"{node.op} %{node.name}", "has an operand that is not a value", got=operand)
    return operand


def _add(
    builder: OnnxGraphBuilder,
    node: Node,
    label: str,
    op: str,
    inputs: Sequence[str],
    bodies: Mapping[str, Any],
) -> None:
    from onnx import helper

    operands = list(inputs)
    outputs = [v.name for v in node.outputs]
    builder.nodes.append(helper.make_node(op, operands, outputs, name=builder.node_name(label), **bodies))


def _loop_body(builder: OnnxGraphBuilder, node: Node, captured: Sequence[str], write: WriteNode) -> Any:
    body: Graph = node.attrs["body"]
    own = [builder.fresh(f"{node.name}/{v.name}") for v in body.inputs[: 1 + node.attrs["carried"]]]
    going = builder.fresh(f"{node.name}/going")
    formal = [own[0], going, *own[1:]]
    specs = [body.inputs[0].spec, TensorSpec((), DType.BOOL), *(v.spec for v in body.inputs[1 : len(own)])]
    return _body(
        builder,
        body,
        [*own, *captured],
        write,
        inputs=[Value(n, s) for n, s in zip(formal, specs, strict=True)],
        first="" if node.attrs["checked"] else going,
    )


def _body(
    builder: OnnxGraphBuilder,
    body: Graph,
    names: Sequence[str],
    write: WriteNode,
    *,
    inputs: Sequence[Value] = (),
    first: str = "",
) -> Any:
    """Return a body as a GraphProto. ``names``: of its inputs; ``inputs``: those that it declares; ``first``: a first result to pass on."""
    from onnx import helper

    renamed = {v.name: n for v, n in zip(body.inputs, names, strict=True)}
    for value in (v for n in body.nodes for v in n.outputs):
        renamed[value.name] = builder.fresh(f"{builder.label}/{value.name}")
    nodes = tuple(
        Node(
            n.op,
            tuple(renamed[i] if isinstance(i, str) else i for i in n.inputs),
            n.attrs,
            tuple(Value(renamed[v.name], v.spec) for v in n.outputs),
            n.sources,
        )
        for n in body.nodes
    )
    values = tuple(Value(renamed[v.name], v.spec) for v in body.inputs)
    inner = builder.inner(body.replace(inputs=values, nodes=nodes, outputs=()))
    for value in values:
        inner.learn(value.name, value.spec)
    for node in nodes:
        write(inner, node)
        for value in node.outputs:
            inner.learn(value.name, value.spec)
    results = []
    for source, spec in [
        *([(first, TensorSpec((), DType.BOOL))] if first else []),
        *((renamed[o.value], body.spec(o.value)) for o in body.outputs),
    ]:
        name = builder.fresh(f"{source}.out")
        inner.nodes.append(helper.make_node("Identity", [source], [name], name=builder.node_name(name)))
        results.append(_info(builder, name, spec))
    return helper.make_graph(
        inner.nodes,
        body.name or "body",
        [_info(builder, v.name, v.spec) for v in inputs],
        results,
        inner.initializers,
    )


def _info(builder: OnnxGraphBuilder, name: str, spec: TensorSpec | None) -> Any:
    from onnx import helper

    if spec is None:
        raise IrError(f"value %{name}", "has no known type, so it cannot cross a body's border")
    shape = [d if isinstance(d, int) else None for d in spec.shape]
    return helper.make_tensor_value_info(name, builder.numbers[spec.dtype], shape)
